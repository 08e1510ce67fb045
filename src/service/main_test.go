package service

import (
	"net/http"
	"testing"

	"go.uber.org/goleak"
)

// TestMain fails if a goroutine of a service or of a test is left. http.DefaultClient opens a connection for each
// request: it may open a second one while it waits for the first, and a service that stops waits 5 s for a connection
// without a request.
func TestMain(m *testing.M) {
	http.DefaultTransport.(*http.Transport).DisableKeepAlives = true
	goleak.VerifyTestMain(m)
}
