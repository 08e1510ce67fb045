package divvy

import (
	"testing"

	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/limiter"
)

// protocolRecorder has the protocols of the requests.
type protocolRecorder struct{ protocols []string }

func (r *protocolRecorder) Record(req *limiter.Request, _ *limiter.Answer) {
	r.protocols = append(r.protocols, req.Protocol)
}

// The limiter learns the protocol of all requests of a connection, also of those in a batch that is used again.
func TestProtocol(t *testing.T) {
	t.Parallel()
	got := new(protocolRecorder)
	s := build(t, Config{Limiter: decide(t, limiter.Config{Recorders: []limiter.Recorder{got}})})
	for range 3 {
		b := s.newBatch(t.Context(), new(pipeline.Replies))
		if f := b.addRequest([]byte("HIT ip=10.0.0.1\n")); f != nil {
			t.Fatal(f)
		}
		if f := b.decideRequests(); f != nil {
			t.Fatal(f)
		}
		b.returnToPool()
	}
	for i, p := range got.protocols {
		if p != "divvy" {
			t.Errorf("request %d: got %q", i, p)
		}
	}
	if len(got.protocols) != 3 {
		t.Errorf("%d requests", len(got.protocols))
	}
}
