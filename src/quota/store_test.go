package quota

import (
	"context"
	"errors"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/fallback"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

// brokenStore answers only while it is whole.
type brokenStore struct {
	backend.Backend
	isWhole bool
}

func (s *brokenStore) Take(ctx context.Context, b *backend.Batch) error {
	if s.isWhole {
		return s.Backend.Take(ctx, b)
	}
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: errors.New("the store is away")}
	}
	return nil
}

// newNode returns a Divider on a store, with a limit of 100 a second and the text of other keys.
func newNode(t *testing.T, store backend.Backend, keys string) *Divider {
	t.Helper()
	text := "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 100" + keys + "}}]"
	l := limitertest.New(t, limiter.Config{Backend: store}, text)
	return New(Config{Limiter: l, Backend: store, VirtualTime: true})
}

// While the store does not answer, on_store_failure decides. The stream lives on, and gets units when the store is
// back.
func TestStoreFailure(t *testing.T) {
	t.Parallel()
	for mode, want := range map[string]struct {
		sends  bool
		action Action
		most   uint32
	}{
		"error": {sends: false},
		"deny":  {sends: true, action: DenyAll},
		"allow": {sends: true, action: AssignUnits, most: 100},
		"local": {sends: true, action: AssignUnits, most: 50},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			w := limitedWorld(t, "unit: second, requests_per_unit: 1", 1)
			store := &brokenStore{Backend: w.store}
			front, err := fallback.New(store, fallback.Config{Replicas: func() int { return 2 }})
			if err != nil {
				t.Fatal(err)
			}
			n := newNode(t, front, ", on_store_failure: "+mode)
			p := n.Connect([]byte("d"))
			report := func(now time.Duration) []Assignment {
				at := NewInstant(now, w.start.Add(now))
				if err := p.Report([]byte("id"), 0, 500, at, oneEntry); err != nil {
					t.Fatal(err)
				}
				n.Step(t.Context(), at)
				return p.TakePending(nil)
			}
			got := report(time.Second)
			if (len(got) > 0) != want.sends {
				t.Fatalf("without a store: %+v", got)
			}
			if want.sends && (got[0].Action != want.action || got[0].Units > want.most ||
				(want.most > 0) != (got[0].Units > 0)) {
				t.Errorf("without a store: %+v, want action %d and at most %d units", got[0], want.action, want.most)
			}
			store.isWhole = true
			if got = report(7 * time.Second); len(got) != 1 || got[0].Action != AssignUnits || got[0].Units != 100 {
				t.Errorf("when the store is back: %+v, want all 100 units", got)
			}
		})
	}
}

func oneEntry() ([]rules.Entry, error) {
	return []rules.Entry{{Key: []byte("k"), Value: []byte("v")}}, nil
}
