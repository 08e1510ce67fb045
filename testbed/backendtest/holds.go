package backendtest

import (
	_ "embed"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// holdTable is a limit with holds and hits on one key, with the verdicts that each store must return.
type holdTable struct {
	name  string
	limit algorithm.Limit
	steps []holdStep
}

// holdStep is one hit of a holdTable and its verdict.
type holdStep struct {
	step
	hold    string // empty: the hit names no hold
	excess  uint64
	expired uint32
}

//go:embed holds.txt
var holdsText string

// readHoldTables parses holds.txt.
func readHoldTables(t *testing.T) (tables []holdTable) {
	t.Helper()
	parseTables(t, "holds.txt", holdsText, func(name string) {
		tables = append(tables, holdTable{name: name})
	}, func(line string) (err error) {
		tables[len(tables)-1].limit, err = readHoldLimit(line)
		return err
	}, func(number int, line string) error {
		st, err := readHoldStep(line)
		st.line = number
		last := &tables[len(tables)-1]
		last.steps = append(last.steps, st)
		return err
	})
	return tables
}

// readHoldLimit parses the line of a table that describes its limit.
func readHoldLimit(line string) (l algorithm.Limit, err error) {
	var kind, period, hold, expired string
	if _, err = fmt.Sscanf(line, "concurrency max %d hold %s", &l.Max, &hold); err == nil {
		l.Kind = algorithm.Concurrency
		return l, readDurations([]string{hold, hold}, &l.Hold, &l.Period)
	}
	if _, err = fmt.Sscanf(line, "%s max %d period %s burst %d hold %s expired %s", &kind, &l.Max, &period, &l.Burst,
		&hold, &expired); err != nil {
		return l, err
	}
	l.Kind, _ = algorithm.ParseKind(kind)
	l.ReleaseUnsettled = expired == "released"
	return l, readDurations([]string{period, hold}, &l.Period, &l.Hold)
}

// readHoldStep parses a line such as "10s force 3 a -> passes after 1, remaining 1, retry 0s, reset 50s excess 2
// expired 1".
func readHoldStep(line string) (st holdStep, err error) {
	left, right, _ := strings.Cut(line, " -> ")
	words := strings.Fields(left)
	if len(words) != 4 {
		return st, fmt.Errorf("a step needs a time, an operation, an amount and a hold: %q", left)
	}
	st.step, err = readStep(strings.Join(words[:3], " ") + " -> " + right)
	if words[3] != "-" {
		st.hold = words[3]
	}
	rest := strings.Fields(right)[9:]
	for i := 0; i+1 < len(rest) && err == nil; i += 2 {
		switch rest[i] {
		case "excess":
			_, err = fmt.Sscan(rest[i+1], &st.excess)
		case "expired":
			_, err = fmt.Sscan(rest[i+1], &st.expired)
		default:
			err = fmt.Errorf("unknown word %q", rest[i])
		}
	}
	return st, err
}

// testHolds tests limits with holds.
func (suite *Suite) testHolds(t *testing.T, open func(*testing.T) backend.Backend) {
	t.Run("steps", func(t *testing.T) { suite.testHoldSteps(t, open) })
	t.Run("waits", func(t *testing.T) { suite.testHoldWaits(t, open) })
	t.Run("plain limits have counters of their own", func(t *testing.T) { testPlainBesideHeld(t, open(t)) })
	if backend.EditorOf(open(t)).SetCounts(t.Context(), new(backend.Batch)) == nil {
		t.Run("set counts", func(t *testing.T) { testSetHeldCount(t, open(t)) })
	}
	t.Run("referee", func(t *testing.T) {
		limits := heldLimits()
		for _, kind := range append(suite.Kinds, algorithm.Concurrency) {
			t.Run(kind.String(), func(t *testing.T) {
				var list []*algorithm.Limit
				for _, l := range limits {
					if l.Kind == kind {
						list = append(list, l)
					}
				}
				suite.testRandomly(t, open(t), list)
			})
		}
		t.Run("mixed", func(t *testing.T) { suite.testRandomly(t, open(t), append(limits, suite.randomLimits()...)) })
		t.Run("large", func(t *testing.T) { suite.testRandomly(t, open(t), largeHeldLimits()) })
	})
	t.Run("concurrent", func(t *testing.T) { testConcurrentHolds(t, open(t)) })
}

func (suite *Suite) testHoldSteps(t *testing.T, open func(*testing.T) backend.Backend) {
	for _, tt := range readHoldTables(t) {
		t.Run(tt.limit.Kind.String()+"/"+tt.name, func(t *testing.T) {
			store := open(t)
			for _, want := range tt.steps {
				v := send(t, store, epoch.Add(want.at), backend.Hit{
					Key: []byte("k"), Limit: &tt.limit, Op: want.op, Amount: want.amount,
					HoldID: backend.NewHoldID([]byte(want.hold)),
				})[0]
				got := holdStep{
					step{
						want.line, want.at, want.op, want.amount, v.Over, v.WithinMinInterval, v.After, v.Remaining,
						v.RetryAfter, v.ResetAfter,
					},
					want.hold, v.HoldExcess, v.HoldsExpired,
				}
				if got != want {
					t.Fatalf("holds.txt:%d:\n got %+v\nwant %+v", want.line, got, want)
				}
			}
		})
	}
}

// testPlainBesideHeld charges a limit with holds and the same limit without, which do not share a counter.
func testPlainBesideHeld(t *testing.T, store backend.Backend) {
	for kind := range algorithm.Concurrency {
		plain := *ignoringBlocked(kind, 3, time.Minute)
		held := plain
		held.Hold = time.Minute
		key := []byte(kind.String())
		v := send(
			t, store, epoch, backend.Hit{Key: key, Limit: &plain, Amount: 3},
			backend.Hit{Key: key, Limit: &held, Amount: 2, GroupID: 1, HoldID: backend.NewHoldID([]byte("a"))},
			backend.Hit{Key: key, Limit: &plain, Amount: 1, GroupID: 2},
		)
		if v[1].Over || v[1].After != 2 || !v[1].HoldOpened || !v[2].Over || v[2].After != 3 {
			t.Errorf("%v: %+v", kind, v)
		}
	}
}

// testSetHeldCount sets the counts of counters with open holds, which forgets the holds.
func testSetHeldCount(t *testing.T, store backend.Backend) {
	for _, l := range heldLimits() {
		if l.Max < 6 {
			continue
		}
		h := backend.Hit{Key: fmt.Appendf(nil, "%v %v %t", l.Kind, l.Hold, l.ReleaseUnsettled), Limit: l, Amount: 2}
		named := h
		named.HoldID = backend.NewHoldID([]byte("a"))
		send(t, store, epoch, named)
		setCount(t, store, epoch, h, 5)
		named.Amount = 1
		if v := send(t, store, epoch, named)[0]; v.Over || v.Before != 5 || v.After != 6 || !v.HoldOpened {
			t.Errorf("%+v: after 5 were set: %+v", *l, v)
		}
		setCount(t, store, epoch, h, 0)
		if v := send(t, store, epoch, named)[0]; v.Over || v.Before != 0 || v.After != 1 || !v.HoldOpened {
			t.Errorf("%+v: after the reset: %+v", *l, v)
		}
	}
}

// heldLimits returns limits with holds, which are short enough to expire in random tests.
func heldLimits() (limits []*algorithm.Limit) {
	for kind := range algorithm.Concurrency {
		for _, released := range []bool{false, true} {
			for _, most := range []uint64{3, 10} {
				l := *ignoringBlocked(kind, most, time.Minute)
				l.Hold, l.ReleaseUnsettled = 30*time.Second, released
				limits = append(limits, &l)
			}
		}
	}
	long := *ignoringBlocked(algorithm.GCRA, 1003, time.Hour)
	long.Burst, long.Hold = 10, 90*time.Second
	return append(
		limits, &long,
		&algorithm.Limit{Kind: algorithm.Concurrency, Max: 3, Period: 30 * time.Second, Hold: 30 * time.Second},
		&algorithm.Limit{Kind: algorithm.Concurrency, Max: 10, Period: 30 * time.Second, Hold: 30 * time.Second},
		&algorithm.Limit{Kind: algorithm.Concurrency, Max: 6, Period: time.Minute, Hold: time.Minute},
	)
}

// largeHeldLimits returns limits above 2^32 with holds.
func largeHeldLimits() (limits []*algorithm.Limit) {
	for _, kind := range []algorithm.Kind{
		algorithm.FixedWindow, algorithm.FirstHitWindow, algorithm.SlidingWindowCounter, algorithm.GCRA,
	} {
		for _, released := range []bool{false, true} {
			l := *ignoringBlocked(kind, 1e11, time.Hour)
			l.Hold, l.ReleaseUnsettled = 30*time.Second, released
			limits = append(limits, &l)
		}
	}
	return limits
}

// testConcurrentHolds takes and releases holds from many goroutines at once. There are never more than the limit, and
// none is left.
func testConcurrentHolds(t *testing.T, store backend.Backend) {
	const most = 10
	limit := &algorithm.Limit{Kind: algorithm.Concurrency, Max: most, Period: time.Hour, Hold: time.Hour}
	var open, passed atomic.Int64
	concurrently(func(caller, i int) {
		h := backend.Hit{
			Key: []byte("k"), Limit: limit, Amount: 1,
			HoldID: backend.NewHoldID(fmt.Appendf(nil, "%d-%d", caller, i)),
		}
		if send(t, store, time.Time{}, h)[0].Over {
			return
		}
		passed.Add(1)
		if n := open.Add(1); n > most {
			t.Errorf("%d at a time, of at most %d", n, most)
		}
		open.Add(-1)
		h.Op = []algorithm.Op{refund, force}[i%2]
		send(t, store, time.Time{}, h, h)
	})
	if v := send(t, store, time.Time{}, backend.Hit{Key: []byte("k"), Limit: limit, Op: look})[0]; v.Before != 0 {
		t.Errorf("%d holds are left", v.Before)
	}
	if passed.Load() < most {
		t.Errorf("only %d of %d hits passed", passed.Load(), callers*callsOfEach)
	}
}
