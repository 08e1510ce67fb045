package memory

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

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
