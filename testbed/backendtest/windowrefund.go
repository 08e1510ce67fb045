package backendtest

import (
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// windowLimits returns the limits with a WindowEnd that the store supports, by name, and the end of the window of a hit
// that is the first one, 10 s after epoch.
func (suite *Suite) windowLimits(t *testing.T) map[string]windowLimit {
	limits := map[string]windowLimit{
		"fixed_window":           {algorithm.Limit{Max: 9, Period: time.Minute}, time.Minute},
		"first_hit_window":       {algorithm.Limit{Max: 9, Period: time.Minute}, 70 * time.Second},
		"sliding_window_counter": {algorithm.Limit{Max: 9, Period: time.Minute}, time.Minute},
	}
	for name, l := range limits {
		l.Kind, _ = algorithm.ParseKind(name)
		l.CountBlocked = suite.OnlyCountBlocked
		limits[name] = l
	}
	day := calendarLimit(t, 9, algorithm.CalendarSpec{Units: 1, Location: time.FixedZone("west", -90)})
	limits["calendar"] = windowLimit{*day, 90 * time.Second}
	for name, l := range limits {
		if !suite.supports(&l.Limit) {
			delete(limits, name)
		}
	}
	return limits
}

type windowLimit struct {
	algorithm.Limit
	end time.Duration // when the window ends, after epoch
}

// testWindows checks that verdicts tell the end of the window, and that a refund of units that another window counted
// changes nothing.
func (suite *Suite) testWindows(t *testing.T, open func(*testing.T) backend.Backend) {
	for name, l := range suite.windowLimits(t) {
		t.Run(name, func(t *testing.T) {
			suite.testWindowRefunds(t, open(t), &l)
			testWindowsOfOwnClock(t, open(t), l.Limit)
		})
	}
	t.Run("misuse", func(t *testing.T) { testWindowMisuse(t, open(t)) })
}

// testWindowRefunds plays hits in the window of l, in the next one and after a reset.
func (suite *Suite) testWindowRefunds(t *testing.T, store backend.Backend, l *windowLimit) {
	end := epoch.Add(l.end).UnixNano()
	take := func(at time.Duration, op algorithm.Op, amount uint64, window int64) backend.Verdict {
		t.Helper()
		return send(t, store, epoch.Add(at), backend.Hit{
			Key: []byte("k"), Limit: &l.Limit, Op: op, Amount: amount, Window: window,
		})[0]
	}
	changesNothing := func(at time.Duration, window int64, count uint64) {
		t.Helper()
		if v := take(at, refund, 2, window); v.Charged || v.Over || v.Before != count || v.After != count {
			t.Errorf("at %v: a refund of another window did %+v to a count of %d", at, v, count)
		}
		if v := take(at, look, 0, 0); v.Before != count {
			t.Errorf("at %v: a refund of another window left a count of %d, want %d", at, v.Before, count)
		}
	}
	// Before the first hit.
	changesNothing(9*time.Second, end, 0)
	if v := take(10*time.Second, charge, 5, 0); v.WindowEnd != end || v.After != 5 {
		t.Fatalf("%+v, want a window that ends at %d", v, end)
	}
	for _, other := range []int64{end + 1, end - 1, end - int64(time.Microsecond), end + int64(l.Period), 1, -end} {
		changesNothing(11*time.Second, other, 5)
	}
	if v := take(20*time.Second, refund, 2, end); !v.Charged || v.Before != 5 || v.After != 3 || v.WindowEnd != end {
		t.Errorf("a refund in its window: %+v", v)
	}
	if v := take(l.end-time.Microsecond, refund, 1, end); !v.Charged || v.After != 2 {
		t.Errorf("a refund at the end of its window: %+v", v)
	}
	// The next window: what a sliding window counter has of the last one counts in full at the edge.
	count := uint64(0)
	if l.Kind == algorithm.SlidingWindowCounter {
		count = 2
	}
	changesNothing(l.end, end, count)
	second := take(l.end, charge, 4, 0)
	if second.WindowEnd <= end || second.After != count+4 {
		t.Fatalf("the second window: %+v", second)
	}
	changesNothing(l.end, end, count+4)
	suite.testWindowReset(t, store, l, second.WindowEnd)
}

// testWindowReset resets the counter in the second window. Where that starts another window, units of the second one
// are not given back to it.
func (*Suite) testWindowReset(t *testing.T, store backend.Backend, l *windowLimit, end int64) {
	if backend.EditorOf(store).SetCounts(t.Context(), new(backend.Batch)) != nil {
		return // The store cannot change counters.
	}
	at := epoch.Add(l.end + 5*time.Second)
	h := backend.Hit{Key: []byte("k"), Limit: &l.Limit, Amount: 3}
	setCount(t, store, at, h, 0)
	third := send(t, store, at, h)[0]
	starts := l.Kind == algorithm.FirstHitWindow
	if third.After != 3 || (third.WindowEnd != end) != starts {
		t.Fatalf("the window of %d after a reset: %+v", end, third)
	}
	h.Op, h.Window, h.Amount = refund, end, 1
	if v := send(t, store, at, h)[0]; v.Charged == starts {
		t.Errorf("a refund of the window before the reset: %+v", v)
	}
	h.Window = third.WindowEnd
	if v := send(t, store, at, h)[0]; !v.Charged {
		t.Errorf("a refund of the window after the reset: %+v", v)
	}
}

// testWindowsOfOwnClock checks that verdicts by the clock of the store tell the exact end: a refund finds its window.
func testWindowsOfOwnClock(t *testing.T, store backend.Backend, l algorithm.Limit) {
	if l.Calendar == nil {
		l.Period = 365 * 24 * time.Hour
	}
	before := time.Now()
	h := backend.Hit{Key: []byte("own clock"), Limit: &l, Amount: 3}
	first := send(t, store, time.Time{}, h)[0]
	end := time.Unix(0, first.WindowEnd)
	if l.Kind != algorithm.SlidingWindowCounter && end.Sub(before.Add(first.ResetAfter)).Abs() > time.Minute {
		t.Errorf("the window ends at %v, but is reset in %v after %v", end, first.ResetAfter, before)
	}
	h.Amount = 1
	second := send(t, store, time.Time{}, h)[0]
	h.Op, h.Window = refund, first.WindowEnd
	v := send(t, store, time.Time{}, h)[0]
	if l.Calendar != nil && first.WindowEnd != v.WindowEnd {
		return // Midnight was in between.
	}
	if second.WindowEnd != first.WindowEnd || v.WindowEnd != first.WindowEnd || v.After != 3 || !v.Charged {
		t.Errorf("first %+v\nsecond %+v\nrefund %+v", first, second, v)
	}
	h.Window += int64(l.Period)
	if v := send(t, store, time.Time{}, h)[0]; v.Charged || v.After != 3 {
		t.Errorf("a refund of another window: %+v", v)
	}
}

// testWindowMisuse names a window where none is compared.
func testWindowMisuse(t *testing.T, store backend.Backend) {
	window := epoch.Add(time.Minute).UnixNano()
	fixed := fixedWindow(3, time.Minute)
	for name, h := range map[string]backend.Hit{
		"a charge":       {Limit: fixed, Op: charge, Window: window},
		"a look":         {Limit: fixed, Op: look, Window: window},
		"force":          {Limit: fixed, Op: force, Window: window},
		"gcra":           {Limit: countingBlocked(algorithm.GCRA, 3, time.Minute), Op: refund, Window: window},
		"sliding_window": {Limit: countingBlocked(algorithm.SlidingWindow, 3, time.Minute), Op: refund, Window: window},
		"remaining": {
			Limit: countingBlocked(algorithm.FirstHitWindow, 3, time.Minute), Op: refund, Window: window,
			StoresRemaining: true,
		},
		"holds": {
			Limit: &algorithm.Limit{Max: 3, Period: time.Minute, Hold: time.Minute}, Op: refund, Window: window,
		},
	} {
		b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: make([]backend.Verdict, 1), Now: epoch}
		if err := store.Take(t.Context(), &b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// seenWindows has the ends of the windows of counters, as verdicts told them.
type seenWindows map[counter][]int64

// windowKey returns what the windows of h's counter are kept by.
func windowKey(h *backend.Hit) counter { return counter{key: string(h.Key), window: h.Limit.Window()} }

// add adds the window that v names, which is the verdict on h.
func (w seenWindows) add(h *backend.Hit, v *backend.Verdict) {
	k := windowKey(h)
	if ends := w[k]; v.WindowEnd != 0 && !slices.Contains(ends, v.WindowEnd) {
		w[k] = append(ends, v.WindowEnd)
	}
}

// nameWindow makes some refunds name a window: one of the last two that verdicts told, or one that nothing has.
func (p *randomTest) nameWindow(h *backend.Hit) {
	if h.Op != refund || !h.Limit.HasWindowEnd() {
		return
	}
	ends := p.windows[windowKey(h)]
	switch n := p.rnd.IntN(6); {
	case n < 3:
	case n == 3 || len(ends) == 0:
		h.Window = p.now.UnixNano() + p.rnd.Int64N(int64(h.Limit.Period))
	default:
		h.Window = ends[max(len(ends)-1-p.rnd.IntN(2), 0)]
	}
}
