package memory

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Many callers reserve and settle at once, a part of them in groups. What is settled and what is open never exceed the
// limit by more than what settlements exceed their reservations. Settlements that use less make room for others.
func TestConcurrentSettlements(t *testing.T) {
	t.Parallel()
	const most, callers, callsOfEach = 1000, 8, 500
	limit := &algorithm.Limit{Kind: algorithm.FirstHitWindow, Max: most, Period: 24 * time.Hour, Hold: time.Hour}
	s := open(t, 0)
	var settled, excess atomic.Uint64
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range callsOfEach {
				h := backend.Hit{
					Key: []byte("k"), Limit: limit, Amount: uint64(1 + i%7),
					HoldID: backend.NewHoldID(fmt.Append(nil, c, "-", i)), Atomic: i%3 == 0,
				}
				v := send(t, s, epoch, h)
				if v.After > most+excess.Load()+callers*7 || !v.Over && v.After > max(most, v.Before) {
					t.Errorf("%+v, with an excess of %d", v, excess.Load())
				}
				if v.Over {
					continue
				}
				h.Op, h.Amount = algorithm.Force, uint64(i%10)
				v = send(t, s, epoch, h)
				settled.Add(h.Amount)
				excess.Add(v.HoldExcess)
			}
		})
	}
	wg.Wait()
	v := send(t, s, epoch, backend.Hit{Key: []byte("k"), Limit: limit, Op: algorithm.Look, Amount: 1})
	if v.Before != settled.Load() || v.Before > most+excess.Load() || v.Before < most-7 {
		t.Errorf("the count is %d, with %d settled and an excess of %d", v.Before, settled.Load(), excess.Load())
	}
}

// A set of holds that takes more than half of the memory is dropped, and leaves other counters alone.
func TestManyHoldsAreDropped(t *testing.T) {
	t.Parallel()
	s := open(t, 1<<20)
	limit := &algorithm.Limit{Kind: algorithm.Concurrency, Max: algorithm.MaxOpenHolds, Period: time.Hour, Hold: time.Hour}
	hit(s, 1, limit, epoch)
	most := uint64(0)
	for i := range 50_000 {
		v := send(t, s, epoch, backend.Hit{
			Key: []byte("k"), Limit: limit, Amount: 1,
			HoldID: backend.NewHoldID(fmt.Append(nil, i)),
		})
		if v.After < most {
			break
		}
		most = v.After
	}
	if st := s.Stats(); most < 4000 || most > 12_000 || st.EvictedKeys != 1 {
		t.Errorf("%d holds in half a MiB, %+v", most, st)
	}
	if v := hit(s, 1, limit, epoch); v.Before != 1 {
		t.Errorf("another counter was forgotten: %+v", v)
	}
}
