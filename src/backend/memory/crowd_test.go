package memory

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Many callers, kinds and groups at a cap that is far too small: the books
// balance in the end (see audit).
func TestCrowd(t *testing.T) {
	t.Parallel()
	s := open(t, 2*MinBytes)
	limits := []*algorithm.Limit{
		{Kind: algorithm.FixedWindow, Max: 100, Period: time.Second},
		{Kind: algorithm.FirstHitWindow, Max: 100, Period: time.Second},
		{Kind: algorithm.SlidingWindow, Max: 1000, Period: time.Second},
		{Kind: algorithm.SlidingWindow, Max: 10, Period: time.Minute, CountBlocked: true},
		{Kind: algorithm.SlidingWindowCounter, Max: 1 << 40, Period: time.Second},
		{Kind: algorithm.GCRA, Max: 100, Period: time.Second, MinInterval: time.Second},
		{Kind: algorithm.GCRA, Max: 100, Period: time.Minute},
		{Kind: algorithm.SlidingWindow, Max: 1000, Period: time.Second, Hold: time.Minute},
		{Kind: algorithm.Concurrency, Max: 100, Period: time.Minute, Hold: time.Minute},
	}
	var wg sync.WaitGroup
	for c := range uint64(8) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(c, 1))
			for i := range 600 {
				at := epoch.Add(time.Duration(i) * 60 * time.Millisecond)
				b := backend.Batch{Now: at, Verdicts: make([]backend.Verdict, 1+rnd.IntN(4))}
				for range b.Verdicts {
					b.Hits = append(b.Hits, backend.Hit{
						Key: binary.BigEndian.AppendUint64(nil, rnd.Uint64N(20_000)>>rnd.IntN(15)), Limit: limits[rnd.IntN(len(limits))],
						Op: algorithm.Op(rnd.IntN(4)), Amount: rnd.Uint64() >> (30 + rnd.IntN(34)), GroupID: uint16(rnd.IntN(2)),
						Atomic: rnd.IntN(2) == 0,
					})
					if h := &b.Hits[len(b.Hits)-1]; h.Limit.Hold > 0 {
						h.HoldID[0] = byte(rnd.IntN(200))
					}
				}
				if err := s.Take(t.Context(), &b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if st := s.Stats(); st.EvictedKeys == 0 || st.Bytes > 3*MinBytes {
		t.Errorf("%+v", st)
	}
}

// Many callers, kinds, groups, resets and snapshots at a cap that is far too small: the books balance in the end (see
// audit).
func TestCrowdWithNames(t *testing.T) {
	t.Parallel()
	s := openWith(t, Config{MaxBytes: 4 * MinBytes, KeepNames: true})
	var wg sync.WaitGroup
	for c := range uint64(6) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(c, 1))
			for i := range 1000 {
				b := randomBatch(rnd, epoch.Add(time.Duration(i)*30*time.Millisecond))
				for k := range b.Hits {
					b.Hits[k].Key = fmt.Append(nil, "user_", rnd.Uint64N(20_000)>>rnd.IntN(15))
				}
				if err := s.Take(t.Context(), b); err != nil {
					t.Error(err)
				}
				if i%500 == 0 {
					found(t, s, i%1000 == 0, fmt.Sprint("user_", rnd.IntN(10)))
					snapshotOf(t, s, b.Now)
				}
			}
		})
	}
	wg.Wait()
}
