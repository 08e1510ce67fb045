package chaos

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

// mutants are stores with a mistake, and what the oracle says of it. Each changes the hits of a store in
// memory, and sees its verdicts.
var mutants = []struct {
	name  string
	kind  kind
	hit   func(h *backend.Hit)
	lost  int // how often the fault may lose counts
	begin time.Time
	want  string
}{
	{name: "slots", kind: slots},
	{name: "reservations", kind: reservations},
	{name: "a calendar", kind: calendar},
	{name: "a calendar at midnight UTC", kind: calendar, begin: midnight},
	{
		name: "a slot too many", kind: slots, hit: func(h *backend.Hit) { h.Limit.Max += reserve },
		want: "25 were admitted where 20 may be",
	},
	{
		name: "a slot too few", kind: slots, hit: func(h *backend.Hit) { h.Limit.Max -= reserve },
		want: "although at most 15 of 20 were taken",
	},
	{
		name: "slots of dead callers return late", kind: slots,
		hit: func(h *backend.Hit) { h.Limit.Hold += 200 * time.Millisecond }, want: "was refused although at most",
	},
	{
		name: "slots return early", kind: slots, hit: func(h *backend.Hit) { h.Limit.Hold -= 200 * time.Millisecond },
		want: "were admitted where 20 may be",
	},
	{name: "a release does nothing", kind: slots, hit: func(h *backend.Hit) {
		if h.Op == algorithm.Refund {
			h.HoldID[0]++
		}
	}, want: "was refused although at most"},
	{name: "a repeat takes another slot", kind: slots, hit: renamed(algorithm.Charge), want: "was refused although"},
	{name: "a repeat is refused", kind: slots, hit: func(h *backend.Hit) {
		if h.Op == algorithm.Charge {
			h.HoldID = algorithm.HoldID{}
		}
	}, want: "was refused although"},
	{name: "a settlement is refused", kind: reservations, hit: func(h *backend.Hit) {
		if h.Op == algorithm.Force {
			h.Op, h.HoldID = algorithm.Charge, algorithm.HoldID{}
		}
	}, want: "the end of hold"},
	{name: "a settlement keeps the reservation", kind: reservations, hit: func(h *backend.Hit) {
		if h.Op == algorithm.Force {
			h.HoldID = algorithm.HoldID{}
		}
	}, want: "was refused although at most"},
	{name: "a settlement charges nothing", kind: reservations, hit: func(h *backend.Hit) {
		if h.Op == algorithm.Force {
			h.Op = algorithm.Refund
		}
	}, want: "were admitted where 20 may be"},
	{name: "a settlement charges twice", kind: reservations, hit: func(h *backend.Hit) {
		if h.Op == algorithm.Force {
			h.Amount *= 2
		}
	}, want: "was refused although at most"},
	{
		name: "what expires is released", kind: reservations, hit: func(h *backend.Hit) { h.Limit.ReleaseUnsettled = true },
		want: "were admitted where 20 may be",
	},
	{name: "all is lost once", kind: slots, hit: lostAt(2500 * time.Millisecond), want: "were admitted where 20 may be"},
	{name: "all may be lost once", kind: slots, hit: lostAt(2500 * time.Millisecond), lost: 1},
	{
		name: "all reservations are lost once", kind: reservations, hit: lostAt(2500 * time.Millisecond),
		want: "were admitted where 20 may be",
	},
	{name: "all reservations may be lost once", kind: reservations, hit: lostAt(2500 * time.Millisecond), lost: 1},
	{name: "a day of UTC", kind: calendar, begin: midnight, hit: func(h *backend.Hit) {
		h.Limit.Calendar, _ = algorithm.NewCalendar(algorithm.CalendarSpec{Units: 1, Location: time.UTC})
	}, want: "were admitted where 20 may be"},
	{
		name: "a day of two seconds", kind: calendar,
		hit: func(h *backend.Hit) { h.Limit.Calendar, h.Limit.Period = nil, period }, want: "were admitted where 20 may be",
	},
}

// renamed gives every other hit of an operation with the same hold another hold.
func renamed(op algorithm.Op) func(h *backend.Hit) {
	var mu sync.Mutex
	seen := make(map[algorithm.HoldID]bool)
	return func(h *backend.Hit) {
		mu.Lock()
		defer mu.Unlock()
		if id := h.HoldID; h.Op == op {
			if seen[id] {
				h.HoldID[0]++
			}
			seen[id] = true
		}
	}
}

// lostAt loses all counts so long after the first hit.
func lostAt(after time.Duration) func(h *backend.Hit) {
	var first atomic.Int64
	return func(h *backend.Hit) {
		now := time.Now().UnixNano()
		first.CompareAndSwap(0, now)
		if now-first.Load() > int64(after) {
			h.Key = append([]byte("new"), h.Key...)
		}
	}
}

// TestMutants holds stores in memory, on a virtual clock, to the oracle: it says nothing of one that is right, and
// finds each mistake.
func TestMutants(t *testing.T) {
	t.Parallel()
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				begin := m.begin
				if begin.IsZero() {
					begin, _ = calendar.windowAt(midnight)
				}
				time.Sleep(time.Until(begin.Add(-3 * time.Second))) // The limit of a day is used up by then.
				var r rule
				for _, each := range rulesFor(single, period) {
					if each.kind == m.kind && !each.local {
						r = each
					}
				}
				keys := keysOf([]rule{r})
				l := drive(t, newStub(t, []rule{r}, m.hit), keys, time.Second)
				time.Sleep(8 * time.Second)
				l.end()
				c := &cell{fault: &fault{lost: m.lost}}
				c.at.recovery = time.Now().Add(-5 * time.Second)
				c.judge(l, l.between(time.Time{}, time.Now()))
				got := strings.Join(c.problems, "\n")
				if m.want == "" && got != "" || !strings.Contains(got, m.want) {
					t.Errorf("the oracle says %q, want %q", got, m.want)
				}
				if m.want == "" && (m.kind.isHeld() && c.refusals < 20 || c.fullest.admitted < limit) {
					t.Errorf("%d refusals, %d of %d units", c.refusals, c.fullest.admitted, limit)
				}
			})
		})
	}
}

// stub is a service in this process.
type stub struct{ limiter *limiter.Limiter }

func newStub(t *testing.T, list []rule, hit func(*backend.Hit)) *stub {
	t.Helper()
	store := limitertest.Store(t, memory.Config{})
	l := limitertest.New(t, limiter.Config{Backend: &mutant{store, hit}}, ruleFile(list))
	return &stub{l}
}

func (s *stub) ShouldRateLimit(ctx context.Context, message *rlsv3.RateLimitRequest,
	_ ...grpc.CallOption,
) (*rlsv3.RateLimitResponse, error) {
	time.Sleep(time.Millisecond)
	defer time.Sleep(time.Millisecond)
	req := limiter.Request{Domain: []byte(message.Domain), DefaultAmount: 1, Now: time.Now()}
	for _, d := range message.Descriptors {
		to := limiter.Descriptor{HasAmount: d.HitsAddend != nil, Amount: d.HitsAddend.GetValue()}
		for _, e := range d.Entries {
			to.Entries = append(to.Entries, rules.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
		}
		req.Descriptors = append(req.Descriptors, to)
	}
	var a limiter.Answer
	if err := s.limiter.Check(ctx, &req, &a); err != nil {
		return nil, err
	}
	code := rlsv3.RateLimitResponse_OK
	if a.Over {
		code = rlsv3.RateLimitResponse_OVER_LIMIT
	}
	return &rlsv3.RateLimitResponse{OverallCode: code}, nil
}

// mutant is a store that changes each hit.
type mutant struct {
	backend.Backend
	change func(*backend.Hit)
}

func (m *mutant) Take(ctx context.Context, b *backend.Batch) error {
	if m.change == nil {
		return m.Backend.Take(ctx, b)
	}
	other := backend.Batch{Hits: slices.Clone(b.Hits), Verdicts: b.Verdicts, Now: b.Now}
	for i := range other.Hits {
		h := &other.Hits[i]
		limit := *h.Limit
		h.Limit = &limit
		m.change(h)
	}
	return m.Backend.Take(ctx, &other)
}
