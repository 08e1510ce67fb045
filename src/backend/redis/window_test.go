package redis

import (
	"context"
	"sync"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// No call waits for the window of a batch more than once: not behind those that fill
// batches before, nor behind those whose callers have left.
func TestWindowIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	const timeout = 15 * time.Second
	s := open(t, Config{
		Addr: server.Addr, PipelineLimit: 1,
		Config: remote.Config{Timeout: timeout, PipelineWindow: 200 * time.Millisecond},
	})
	harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })

	t.Run("a queue", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 200 { // 40 s of windows
			wg.Go(func() {
				if v := send(t, s, hot(0)); v.Err != nil {
					t.Error(v.Err)
				}
			})
		}
		wg.Wait()
	})
	t.Run("those who left", func(t *testing.T) {
		left, leave := context.WithCancel(t.Context())
		leave()
		batches := s.Stats().Batches
		for range 5000 {
			b := backend.Batch{Hits: []backend.Hit{hot(0)}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
			if err := s.Take(left, &b); err != nil {
				t.Fatal(err)
			}
		}
		if v := send(t, s, hot(0)); v.Err != nil {
			t.Error(v.Err)
		}
		if n := s.Stats().Batches - batches; n > 2500 { // one may be sent before its caller leaves
			t.Errorf("%d batches for those who left", n)
		}
	})
}
