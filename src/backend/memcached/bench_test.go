package memcached

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
)

// run is what one run of calls cost.
type run struct {
	cpu, server time.Duration // for all hits
	took        []time.Duration
}

func (r *run) add(other run) {
	r.cpu += other.cpu
	r.server += other.server
	r.took = append(r.took, other.took...)
}

func (r *run) percentile(p float64) time.Duration {
	slices.Sort(r.took)
	return r.took[int(p*float64(len(r.took)-1))]
}

func cpu(b *testing.B) time.Duration {
	used, err := harness.CPUTime()
	if err != nil {
		b.Fatal(err)
	}
	return used
}

// measure makes calls, so many at a time; theirs is the CPU that the server has
// taken.
func measure(b *testing.B, theirs func() time.Duration, call func(n int), calls, inFlight int) run {
	took := make([][]time.Duration, inFlight)
	us, them := cpu(b), theirs()
	var wg sync.WaitGroup
	for c := range inFlight {
		wg.Go(func() {
			for n := c; n < calls; n += inFlight {
				begun := time.Now()
				call(n)
				took[c] = append(took[c], time.Since(begun))
			}
		})
	}
	wg.Wait()
	return run{cpu: cpu(b) - us, server: theirs() - them, took: slices.Concat(took...)}
}

// BenchmarkAgainstRedis compares the store, in one interleaved run, with that of
// package redis. The figures are CPU µs per hit of this process and the server
// together, and ratios to Redis: of that, of the server alone, and of the 50th and
// 99th percentile of the calls' durations. Only the ratios mean anything on a
// shared machine. See `make bench-memcached`.
func BenchmarkAgainstRedis(b *testing.B) {
	for _, w := range []struct {
		name          string
		keys, charges int
		kind          algorithm.Kind
	}{
		{"hot", 1, 1, algorithm.FixedWindow},
		{"100k", 100_000, 1, algorithm.FixedWindow},
		{"4charges", 100_000, 4, algorithm.FixedWindow},
		{"sliding", 100_000, 1, algorithm.SlidingWindowCounter},
	} {
		for _, inFlight := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/inflight=%d", w.name, inFlight), func(b *testing.B) {
				limit := window(1<<40, time.Hour)
				limit.Kind = w.kind
				for b.Loop() {
					against(b, limit, w.keys, w.charges, inFlight)
				}
			})
		}
	}
}

func against(b *testing.B, limit *algorithm.Limit, keys, charges, inFlight int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	memcached, redisServer := memcachedtest.Start(b,
		memcachedtest.Options{Args: []string{"-m", "256"}}), redistest.Start(b, redistest.Options{})
	ours := open(b, Config{Servers: []string{memcached.Addr}})
	theirs, err := redis.New(redis.Config{Addr: redisServer.Addr, Config: remote.Config{Timeout: 5 * time.Second}})
	if err != nil {
		b.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = theirs.Run(ctx) })
	defer running.Wait()
	defer cancel()

	names := make([][]byte, keys)
	for i := range names {
		names[i] = fmt.Appendf(nil, "domain_user_%d_", i)
	}
	batches := sync.Pool{New: func() any {
		return &backend.Batch{Hits: make([]backend.Hit, charges), Verdicts: make([]backend.Verdict, charges)}
	}}
	callOf := func(store backend.Backend) func(n int) {
		return func(n int) {
			batch := batches.Get().(*backend.Batch)
			defer batches.Put(batch)
			for i := range batch.Hits {
				batch.Hits[i] = backend.Hit{
					Key: names[(n*charges+i)*7919%keys], Limit: limit, Amount: 1,
					GroupID: uint16(i),
				}
			}
			if err := store.Take(ctx, batch); err != nil || batch.Verdicts[0].Err != nil {
				b.Error(err, batch.Verdicts[0].Err)
			}
		}
	}
	calls := 20_000
	if inFlight == 1 {
		calls = 4000
	}
	measure(b, memcached.CPU, callOf(ours), calls, inFlight) // warm up
	measure(b, redisServer.CPU, callOf(theirs), calls, inFlight)
	var us, them run
	for range 5 {
		us.add(measure(b, memcached.CPU, callOf(ours), calls, inFlight))
		them.add(measure(b, redisServer.CPU, callOf(theirs), calls, inFlight))
	}
	hits := float64(5 * calls * charges)
	ratio := func(a, b time.Duration) float64 { return float64(a) / float64(b) }
	b.ReportMetric(float64((us.cpu+us.server).Nanoseconds())/1000/hits, "cpu-µs/hit")
	b.ReportMetric(float64((them.cpu+them.server).Nanoseconds())/1000/hits, "redis-cpu-µs/hit")
	b.ReportMetric(ratio(us.cpu+us.server, them.cpu+them.server), "cpu-ratio")
	b.ReportMetric(ratio(us.server, them.server), "server-ratio")
	b.ReportMetric(ratio(us.percentile(0.5), them.percentile(0.5)), "p50-ratio")
	b.ReportMetric(ratio(us.percentile(0.99), them.percentile(0.99)), "p99-ratio")
	if stats := memcached.Stats(b); stats["curr_items"] != "0" {
		bytes, _ := strconv.ParseFloat(stats["bytes"], 64)
		items, _ := strconv.ParseFloat(stats["curr_items"], 64)
		b.ReportMetric(bytes/items, "bytes/counter")
	}
}
