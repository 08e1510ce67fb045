package overlimit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
)

func take(t *testing.T, store backend.Backend, h backend.Hit) backend.Verdict {
	t.Helper()
	b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1)}
	if err := store.Take(t.Context(), &b); err != nil || b.Verdicts[0].Err != nil {
		t.Fatal(err, b.Verdicts[0].Err)
	}
	return b.Verdicts[0]
}

// Another replica resets a counter in the store. The cache knows it as full until Clear.
func TestClear(t *testing.T) {
	t.Parallel()
	store := counters(t)
	c := New(store, 0)
	h := backend.Hit{Key: []byte("k"), Limit: &algorithm.Limit{
		Max: 1, Period: 365 * 24 * time.Hour,
		CountBlocked: true,
	}, Amount: 1}
	for range 2 {
		take(t, c, h)
	}
	reset := backend.Batch{Hits: []backend.Hit{{Key: h.Key, Limit: h.Limit}}, Verdicts: make([]backend.Verdict, 1)}
	if err := store.SetCounts(t.Context(), &reset); err != nil {
		t.Fatal(err)
	}
	if v := take(t, c, h); !v.Over || !v.Cached {
		t.Fatalf("before Clear: %+v", v)
	}
	c.Clear()
	if v := take(t, c, h); v.Over || v.Cached {
		t.Errorf("after Clear: %+v", v)
	}
	for range 2 {
		take(t, c, h)
	}
	if v := take(t, c, h); !v.Cached {
		t.Errorf("the cache learns nothing after Clear: %+v", v)
	}
	if err := c.SetCounts(t.Context(), &reset); err != nil {
		t.Fatal(err)
	}
	if v := take(t, c, h); v.Over || v.Cached {
		t.Errorf("after SetCounts of the cache: %+v", v)
	}
}

// A verdict that was under way during Clear does not become an entry.
func TestClearDuringTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := counters(t)
		slow := &pausing{Store: store, answered: make(chan struct{}), resume: make(chan struct{})}
		c := New(slow, 0)
		h := backend.Hit{Key: []byte("k"), Limit: &algorithm.Limit{
			Max: 1, Period: 365 * 24 * time.Hour,
			CountBlocked: true,
		}, Amount: 2}
		go func() {
			b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1)}
			if err := c.Take(t.Context(), &b); err != nil || !b.Verdicts[0].Over {
				t.Errorf("error %v, verdict %+v", err, b.Verdicts[0])
			}
		}()
		<-slow.answered // The store has refused the hit, and the cache has yet to learn it.
		reset := backend.Batch{Hits: []backend.Hit{{Key: h.Key, Limit: h.Limit}}, Verdicts: make([]backend.Verdict, 1)}
		if err := store.SetCounts(t.Context(), &reset); err != nil {
			t.Fatal(err)
		}
		c.Clear()
		close(slow.resume)
		synctest.Wait()
		slow.answered = nil
		h.Amount = 1
		if v := take(t, c, h); v.Over {
			t.Errorf("the verdict from before the reset is in the cache: %+v", v)
		}
	})
}

// pausing is a store whose answers wait for resume, while answered is set.
type pausing struct {
	*memory.Store
	answered, resume chan struct{}
}

func (p *pausing) Take(ctx context.Context, b *backend.Batch) error {
	err := p.Store.Take(ctx, b)
	if p.answered != nil {
		close(p.answered)
		<-p.resume
	}
	return err
}
