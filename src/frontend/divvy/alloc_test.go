//go:build !race

package divvy

import (
	"strings"
	"testing"
)

// The race detector empties pools at random, so this runs without it: see
// `make test`.
//
// HITs on a connection that is there allocate nothing.
func TestHitDoesNotAllocate(t *testing.T) {
	s := build(t, Config{})
	c := &conn{srv: s, tcpConn: &script{}, Conn: &script{}}
	c.inputBuffer.resize(readBufferBytes)
	burst := []byte(strings.Repeat("HIT ip=10.0.0.1 method=GET\nHIT user=x action=y\nhit ip=\xff\n", 20))
	hit := func() {
		c.inputBuffer.recordRead(copy(c.inputBuffer.freeSpace(), burst))
		if n, err := c.answerLines(false); n != 60 || err != nil {
			t.Fatalf("%d lines, %v", n, err)
		}
		c.Conn.(*script).said.Reset()
	}
	hit()
	if n := testing.AllocsPerRun(100, hit); n > 0 {
		t.Errorf("%v allocations for 60 HITs", n)
	}
}
