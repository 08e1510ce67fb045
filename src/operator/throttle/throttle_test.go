package throttle

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestPass(t *testing.T) {
	t.Parallel()
	throttle := New(2, time.Second)
	for i, step := range []struct {
		at      time.Duration
		skipped uint64
		ok      bool
	}{
		{at: 900 * time.Millisecond, ok: true},
		{at: 950 * time.Millisecond, ok: true},
		{at: 960 * time.Millisecond},
		{at: 999 * time.Millisecond},
		{at: time.Second, skipped: 2, ok: true},
		{at: 1100 * time.Millisecond, ok: true},
		{at: 1200 * time.Millisecond},
		{at: 500 * time.Millisecond, skipped: 1, ok: true}, // The clock goes back.
	} {
		if skipped, ok := throttle.Pass(time.Unix(100, 0).Add(step.at)); skipped != step.skipped || ok != step.ok {
			t.Errorf("step %d: %d %t, want %d %t", i, skipped, ok, step.skipped, step.ok)
		}
	}
	throttle.Skip(5)
	if skipped, ok := throttle.Pass(time.Unix(200, 0)); skipped != 5 || !ok {
		t.Errorf("after 5 others: %d %t", skipped, ok)
	}
}

// Of events at the same time exactly as many pass as may, and each other one is counted.
func TestPassConcurrently(t *testing.T) {
	t.Parallel()
	throttle, now := New(7, time.Second), time.Unix(100, 0)
	var passed atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				if _, ok := throttle.Pass(now); ok {
					passed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if skipped, _ := throttle.Pass(now.Add(time.Second)); passed.Load() != 7 || skipped != 8*1000-7 {
		t.Errorf("%d passed, %d were skipped", passed.Load(), skipped)
	}
}
