package redis

import (
	"fmt"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/redistest"
)

// A hit waits in a server that stands still until the next fixed window has begun and a hold has expired in it. The
// server decides the hit in the window in which it was sent, but the hold is charged in the window in which it expired.
func TestHoldExpiresInItsWindow(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	store := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: 10 * time.Second, BreakerFailures: -1}})
	l := &algorithm.Limit{Max: 100, Period: time.Second, Hold: 200 * time.Millisecond}
	for n := 0; ; n++ { // On a busy machine a step may come too late.
		if n == 20 {
			t.Fatal("the machine is too busy")
		}
		take := func(op algorithm.Op, id algorithm.HoldID) backend.Verdict {
			b := backend.Batch{Hits: []backend.Hit{{
				Key: fmt.Appendf(nil, "k%d_", n), Limit: l, Amount: 5, Op: op,
				HoldID: id,
			}}, Verdicts: make([]backend.Verdict, 1)}
			if err := store.Take(t.Context(), &b); err != nil || b.FirstErr() != nil {
				t.Error(err, b.FirstErr())
			}
			return b.Verdicts[0]
		}
		now := time.Now()
		border := now.Truncate(l.Period).Add(l.Period)
		time.Sleep(border.Add(-l.Hold / 2).Sub(now))
		take(algorithm.Charge, backend.NewHoldID([]byte("a")))
		expired := time.Now().Add(l.Hold)
		server.Pause()
		decided := make(chan backend.Verdict, 1)
		go func() { decided <- take(algorithm.Charge, algorithm.HoldID{}) }()
		if time.Sleep(time.Until(border) / 2); !time.Now().Before(border) {
			server.Resume()
			<-decided
			continue
		}
		time.Sleep(time.Until(expired))
		server.Resume()
		late := <-decided
		got := take(algorithm.Look, algorithm.HoldID{})
		if expired.Before(border) || !time.Now().Before(border.Add(l.Period)) {
			continue
		}
		if late.Before != 5 || late.HoldsExpired != 0 || got.Before != 5 || got.HoldsExpired != 1 {
			t.Errorf("the hit of the window before found %d, and %d holds expired; later %d and %d", late.Before,
				late.HoldsExpired, got.Before, got.HoldsExpired)
		}
		return
	}
}
