package service

import (
	"net/http"
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a goroutine of a service or of a test is left.
func TestMain(m *testing.M) { goleak.VerifyTestMain(idleCloser{m}) }

// idleCloser closes the connections that http.DefaultClient keeps, after all tests.
type idleCloser struct{ *testing.M }

func (m idleCloser) Run() int {
	defer http.DefaultClient.CloseIdleConnections()
	return m.M.Run()
}
