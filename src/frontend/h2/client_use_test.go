package h2

import "testing"

func TestClient(t *testing.T) {
	t.Parallel()
	s := startServer(t, Config{})
	c := s.connect()
	c.expectAlive()
	id := c.openOther()
	c.finishCall(id, "x")
	c.expectBody(id, prefixed("x"))
}
