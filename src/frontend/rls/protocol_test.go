package rls

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"ratelimit/src/limiter"
)

// protocolRecorder sends the protocol of each request.
type protocolRecorder chan string

func (r protocolRecorder) Record(req *limiter.Request, _ *limiter.Answer) { r <- req.Protocol }

// The limiter learns which protocol a request came with.
func TestProtocol(t *testing.T) {
	eachEngine(t, func(t *testing.T, cfg ServerConfig) {
		got := make(protocolRecorder, 1)
		f := startWith(t, testRules, limiter.Config{Recorders: []limiter.Recorder{got}})
		_, conn := dial(t, f, cfg)
		if _, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(),
			request(descriptor("ip", "1"))); err != nil {
			t.Fatal(err)
		}
		if p := <-got; p != "grpc" {
			t.Errorf("gRPC: got %q", p)
		}
		body := strings.NewReader(`{"domain": "d", "descriptors": [{"entries": [{"key": "ip", "value": "1"}]}]}`)
		f.JSONHandler().ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/json", body))
		if p := <-got; p != "json" {
			t.Errorf("/json: got %q", p)
		}
	})
}
