package model

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// mutant is a store with a mistake: mutate changes what is asked of the real one, or
// what it answers.
type mutant struct {
	backend.Backend
	mutate func(ctx context.Context, next backend.Backend, b *backend.Batch) error
}

func (m *mutant) Take(ctx context.Context, b *backend.Batch) error {
	return m.mutate(ctx, m.Backend, b)
}

type mutation = func(ctx context.Context, next backend.Backend, b *backend.Batch) error

// changing asks for something else.
func changing(change func(h *backend.Hit)) mutation {
	return func(ctx context.Context, next backend.Backend, b *backend.Batch) error {
		other := copied(b)
		for i := range other.Hits {
			change(&other.Hits[i])
		}
		err := next.Take(ctx, &other)
		copy(b.Verdicts, other.Verdicts)
		return err
	}
}

// readThenWrite looks, and charges later: what comes in between is lost. So that
// there is something, it waits a moment for another call.
func readThenWrite() mutation {
	meet := make(chan struct{})
	return func(ctx context.Context, next backend.Backend, b *backend.Batch) error {
		if len(b.Hits) > 1 || b.Hits[0].Atomic {
			return next.Take(ctx, b)
		}
		seen := copied(b)
		for i := range seen.Hits {
			seen.Hits[i] = seen.Hits[i].AsLook()
		}
		if err := next.Take(ctx, &seen); err != nil {
			return err
		}
		select {
		case meet <- struct{}{}:
		case <-meet:
		case <-time.After(5 * time.Millisecond):
		}
		passes := slices.Clone(seen.Verdicts)
		return changing(func(h *backend.Hit) {
			if h.Op == algorithm.Charge && !passes[0].Over && passes[0].Err == nil {
				h.Op = algorithm.Force
			}
			passes = passes[1:]
		})(ctx, next, b)
	}
}

// chargesUnheard charges a store that is down, and drops its reply.
func chargesUnheard() mutation {
	return func(ctx context.Context, next backend.Backend, b *backend.Batch) error {
		err := next.Take(ctx, b)
		if f := next.(*flaky); b.FirstErr() != nil && f.is(Down) {
			late := copied(b)
			err = f.store.Take(ctx, &late)
		}
		return err
	}
}

// chargesLater charges what a store that was down did not answer once it is up.
func chargesLater() mutation {
	var (
		mu   sync.Mutex
		late []backend.Batch
	)
	return func(ctx context.Context, next backend.Backend, b *backend.Batch) error {
		mu.Lock()
		defer mu.Unlock()
		if next.(*flaky).is(Down) {
			late = append(late, copied(b))
			return next.Take(ctx, b)
		}
		for i := range late {
			if err := next.Take(ctx, &late[i]); err != nil {
				return err
			}
		}
		late = nil
		return next.Take(ctx, b)
	}
}

// TestMutants checks that the checker finds a violation of each store with a known mistake, and
// that Shrink reduces it to a script of a few lines.
func TestMutants(t *testing.T) {
	t.Parallel()
	for _, tt := range slices.Concat(mutantCases, holdMutants, calendarMutants) {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			open := func(*Script) (lab, error) {
				spoil := func(next backend.Backend) backend.Backend { return &mutant{next, tt.mutate()} }
				if tt.back {
					return newFallback(spoil)
				}
				return newFlaky(false, spoil)
			}
			can := Can{
				Store: "memory", Faults: []Fault{Down, Lost, Stall, Wipe}, Short: true,
				Holds: slices.ContainsFunc(holdMutants, func(m mutantCase) bool { return m.name == tt.name }),
			}
			if tt.back {
				can = Can{Store: "fallback", Faults: []Fault{Down}, Fallback: true}
			}
			notice(t, tt.first, tt.most, can, open, (&labs{t: t}).open)
		})
	}
}

// otherRules is a lab whose service has other rules than the script says.
type otherRules struct {
	lab
	change *strings.Replacer
}

func (o otherRules) rules(yaml string) string { return o.change.Replace(yaml) }

// A service that enforces a limit for other counters than enforce_percent says is noticed.
func TestEnforcementMutants(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, is, becomes string
		first             uint64 // the first seed that finds it, which saves the others.
	}{
		{"enforces all", "enforce_percent: 1}", "enforce_percent: 99}", 2},
		{"enforces one counter more", "enforce_percent: 50", "enforce_percent: 53", 60},
		{"enforces one counter less", "enforce_percent: 44", "enforce_percent: 42", 13},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			open := func(*Script) (lab, error) {
				right, err := newFlaky(false, nil)
				return otherRules{right, strings.NewReplacer(tt.is, tt.becomes)}, err
			}
			notice(t, tt.first, 5, Can{Store: "memory", Short: true, Percents: true}, open, (&labs{t: t}).open)
		})
	}
}

// notice checks that a script from the seed first on is violated by a mutant, and has at most so many steps when it
// is small, which the right store does as it should.
func notice(t *testing.T, first uint64, most int, can Can, mutant, right func(*Script) (lab, error)) {
	t.Helper()
	for seed := first; seed < first+200; seed++ {
		out, err := play(Random(seed, can), mutant)
		if err != nil {
			t.Fatal(err)
		}
		if out.Violation == nil {
			continue
		}
		smallest := Shrink(out.Violation.Script, 500, func(s *Script) bool {
			out, err := play(s, mutant)
			return err == nil && out.Violation != nil
		})
		if len(smallest.Steps) > most {
			t.Errorf("seed %d: %d steps are left, want %d:\n%s", seed, len(smallest.Steps), most, smallest)
		}
		if out, err := play(smallest, right); err != nil || out.Violation != nil {
			t.Errorf("the right store fails it, too: %v, %v", err, out.Violation)
		}
		t.Logf("seed %d\n%s", seed, smallest)
		return
	}
	t.Error("nobody noticed")
}

type mutantCase struct {
	name   string
	mutate func() mutation
	// most is how many steps the script may have, rules included.
	most int
	back bool // behind a fallback
	// first is the first seed that finds it, which saves the others.
	first uint64
}

var mutantCases = []mutantCase{
	{"lets one more pass", func() mutation {
		return changing(func(h *backend.Hit) { h.Limit.Max++ })
	}, 2, false, 1},
	{"forgets refunds", func() mutation {
		return changing(func(h *backend.Hit) {
			if h.Op == algorithm.Refund {
				h.Amount = 0
			}
		})
	}, 3, false, 2},
	// It takes luck to lose one, so a smaller script may be tried in vain. This seed is seldom out of luck.
	{"loses updates", readThenWrite, 5, false, 199},
	{"begins windows late", func() mutation {
		return func(ctx context.Context, next backend.Backend, b *backend.Batch) error {
			if b.Now.Truncate(time.Minute).Equal(b.Now) && !b.Now.Equal(Start) {
				b.Now = b.Now.Add(-time.Microsecond)
			}
			return next.Take(ctx, b)
		}
	}, 4, false, 7},
	{"asks again when there is no reply", func() mutation {
		return func(ctx context.Context, next backend.Backend, b *backend.Batch) error {
			if err := next.Take(ctx, b); err != nil || b.FirstErr() == nil {
				return err
			}
			return next.Take(ctx, b)
		}
	}, 5, false, 1},
	{"charges groups in part", func() mutation {
		return changing(func(h *backend.Hit) { h.Atomic = false })
	}, 3, false, 8},
	{"begins anew with each reload", func() mutation {
		return changing(func(h *backend.Hit) { h.Key = append(h.Key, byte(h.Limit.Max)) })
	}, 4, false, 60},
	{"does not count what it refuses", func() mutation {
		return changing(func(h *backend.Hit) { h.Limit.CountBlocked = false })
	}, 4, false, 4},
	{"passes what it does not know", func() mutation {
		return func(ctx context.Context, next backend.Backend, b *backend.Batch) error {
			err := next.Take(ctx, b)
			for i := range b.Verdicts {
				if b.Verdicts[i].Err != nil {
					b.Verdicts[i] = backend.Verdict{}
				}
			}
			return err
		}
	}, 3, false, 1},
	{"charges without a reply", chargesUnheard, 5, false, 25},
	{"charges without a reply, behind a fallback", chargesUnheard, 5, true, 6},
	{"charges after an outage", chargesLater, 5, true, 1},
}
