package memory

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Many callers reserve and settle at once, a part of them in groups. What is settled and what is open never exceed the limit by more than
// what settlements exceed their reservations. Settlements that use less make room for others.
func TestConcurrentSettlements(t *testing.T) {
	const most, callers, callsOfEach = 1000, 8, 500
	limit := &algorithm.Limit{Kind: algorithm.FirstHitWindow, Max: most, Period: 24 * time.Hour, Hold: time.Hour}
	s := open(t, 0)
	var settled, excess atomic.Uint64
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range callsOfEach {
				h := backend.Hit{Key: []byte("k"), Limit: limit, Amount: uint64(1 + i%7), HoldID: backend.NewHoldID(fmt.Append(nil, c, "-", i)), Atomic: i%3 == 0}
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
	s := open(t, 1<<20)
	limit := &algorithm.Limit{Kind: algorithm.Concurrency, Max: algorithm.MaxOpenHolds, Period: time.Hour, Hold: time.Hour}
	hit(s, 1, limit, epoch)
	most := uint64(0)
	for i := range 50_000 {
		v := send(t, s, epoch, backend.Hit{Key: []byte("k"), Limit: limit, Amount: 1, HoldID: backend.NewHoldID(fmt.Append(nil, i))})
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

// BenchmarkHolds compares the calls that take a hold, and settle or release it, with plain charges. Each counter has 8 open holds. It gets
// 100 calls within the time of a hold, so it remembers 50 holds that are done. A call is an operation.
func BenchmarkHolds(b *testing.B) {
	bucket := algorithm.Limit{Kind: algorithm.GCRA, Max: 1 << 29, Burst: 1 << 29, Period: time.Second}
	heldBucket := bucket
	heldBucket.Hold = time.Second
	slots := algorithm.Limit{Kind: algorithm.Concurrency, Max: 100, Period: time.Second, Hold: time.Second}
	for _, keys := range []uint64{1, 1000} {
		b.Run(fmt.Sprintf("charge,gcra/keys=%d", keys), func(b *testing.B) { benchmarkHolds(b, &bucket, algorithm.Charge, keys) })
		b.Run(fmt.Sprintf("settle,gcra/keys=%d", keys), func(b *testing.B) { benchmarkHolds(b, &heldBucket, algorithm.Force, keys) })
		b.Run(fmt.Sprintf("release,concurrency/keys=%d", keys), func(b *testing.B) { benchmarkHolds(b, &slots, algorithm.Refund, keys) })
	}
}

// benchmarkHolds sends charges, every second of which closing ends.
func benchmarkHolds(b *testing.B, limit *algorithm.Limit, closing algorithm.Op, keys uint64) {
	const open = 8
	s, now := openWith(b, Config{MaxBytes: 1 << 30}), epoch
	var key [8]byte
	batch := backend.Batch{Hits: []backend.Hit{{Key: key[:], Limit: limit, Amount: 1}}, Verdicts: make([]backend.Verdict, 1)}
	h, calls := &batch.Hits[0], uint64(0)
	call := func() {
		round, k := calls/keys, calls%keys
		calls++
		if k == 0 {
			now = now.Add(10 * time.Millisecond)
			batch.Now = now
		}
		binary.BigEndian.PutUint64(key[:], k)
		h.Op = algorithm.Charge
		if round%2 == 1 && round > 2*open {
			h.Op, round = closing, round-2*open-1
		}
		if limit.Hold > 0 {
			binary.LittleEndian.PutUint64(h.HoldID[:], round*0x9E3779B97F4A7C15|1)
		}
		if err := s.Take(b.Context(), &batch); err != nil || batch.Verdicts[0].Over {
			b.Fatal(err, batch.Verdicts[0])
		}
	}
	for range 300 * keys {
		call()
	}
	b.ReportAllocs()
	for b.Loop() {
		call()
	}
}
