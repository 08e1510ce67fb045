package redis

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mediocregopher/radix/v4"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/remotetest"
)

// BenchmarkAgainstPlainPool compares the store, in one interleaved run, with a
// radix pool that sends INCRBY and EXPIRE for each hit, as envoyproxy/ratelimit
// does. The figures are CPU µs per hit of this process and Redis together, the
// ratio to the plain pool, that of Redis alone, and of the 50th and 99th
// percentile of the calls' durations. Only the ratios mean anything on a shared
// machine. See `make bench-redis`.
func BenchmarkAgainstPlainPool(b *testing.B) {
	for _, w := range []struct {
		name          string
		keys, charges int
	}{{"hot", 1, 1}, {"100k", 100_000, 1}, {"4charges", 100_000, 4}} {
		for _, inFlight := range []int{1, 16, 64, 256} {
			b.Run(fmt.Sprintf("%s/inflight=%d", w.name, inFlight), func(b *testing.B) {
				for b.Loop() {
					against(b, w.keys, w.charges, inFlight)
				}
			})
		}
	}
}

// BenchmarkAlgorithms compares the algorithms with each other, in one interleaved
// run with 64 calls in flight: CPU µs per hit of this process and Redis together,
// of Redis alone, and both as a ratio to fixed_window. Keys are many, one, and one
// that is over its limit. See `make bench-redis`.
func BenchmarkAlgorithms(b *testing.B) {
	for _, w := range []struct {
		name string
		keys int
		most uint64
	}{{"100k", 100_000, 100_000}, {"hot", 1, 100_000}, {"over", 1, 10}} {
		b.Run(w.name, func(b *testing.B) {
			for b.Loop() {
				compareKinds(b, w.keys, w.most)
			}
		})
	}
}

func compareKinds(b *testing.B, keys int, most uint64) {
	server := redistest.Start(b, redistest.Options{})
	store := open(b, Config{Addr: server.Addr})
	names := remotetest.Keys(keys)
	kinds := []algorithm.Kind{
		algorithm.FixedWindow, algorithm.FirstHitWindow, algorithm.SlidingWindow, algorithm.SlidingWindowCounter,
		algorithm.GCRA,
	}
	limits, runs := make([]*algorithm.Limit, len(kinds)), make([]remotetest.Cost, len(kinds))
	for i, kind := range kinds {
		limits[i] = &algorithm.Limit{
			Kind: kind, Max: most, Period: time.Hour,
			CountBlocked: kind == algorithm.FixedWindow,
		}
		if kind == algorithm.GCRA {
			limits[i].Burst = most - 1
		}
	}
	const calls, rounds = 10_000, 5
	for round := range rounds + 1 { // the first warms up
		for i, limit := range limits {
			r := remotetest.Measure(b, server.CPU, remotetest.CallsOf(b, store, limit, names, 1), calls, 64)
			if round > 0 {
				runs[i].Add(r)
			}
		}
	}
	perHit := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / calls / rounds }
	base := runs[0]
	for i, r := range runs {
		name := kinds[i].String()
		b.ReportMetric(perHit(r.Total()), name+"-cpu-µs/hit")
		b.ReportMetric(perHit(r.Server), name+"-redis-µs/hit")
		b.ReportMetric(float64(r.Total())/float64(base.Total()), name+"-cpu-ratio")
		b.ReportMetric(float64(r.Server)/float64(base.Server), name+"-redis-ratio")
	}
}

// BenchmarkHolds compares hits on limits with holds to charges of a gcra, in one interleaved run with 64 calls in
// flight. The figures are the µs that Redis needs for one script, from INFO commandstats, and the CPU µs per hit of
// Redis alone; both also as a ratio to the charge. Keys are many and one. Each hold is opened and then settled or
// released.
func BenchmarkHolds(b *testing.B) {
	for _, keys := range []int{100_000, 1} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			for b.Loop() {
				compareHolds(b, keys)
			}
		})
	}
}

func compareHolds(b *testing.B, keys int) {
	server := redistest.Start(b, redistest.Options{})
	store := open(b, Config{Addr: server.Addr})
	names := remotetest.Keys(keys)
	gcra := algorithm.Limit{Kind: algorithm.GCRA, Max: 1_000_000, Period: time.Hour, Burst: 999_999}
	reserved := gcra
	reserved.Hold = 10 * time.Minute
	concurrency := algorithm.Limit{
		Kind: algorithm.Concurrency, Max: 100_000, Period: 30 * time.Second,
		Hold: 30 * time.Second,
	}
	kinds := []struct {
		name  string
		limit *algorithm.Limit
		op    algorithm.Op
		cost  remotetest.Cost
		us    float64
	}{
		{name: "gcra", limit: &gcra},
		{name: "acquire", limit: &concurrency},
		{name: "release", limit: &concurrency, op: algorithm.Refund},
		{name: "reserve", limit: &reserved},
		{name: "settle", limit: &reserved, op: algorithm.Force},
	}
	batches := sync.Pool{New: func() any {
		return &backend.Batch{Hits: make([]backend.Hit, 1), Verdicts: make([]backend.Verdict, 1)}
	}}
	const calls, rounds = 10_000, 5
	for round := range rounds + 1 { // the first warms up
		for i := range kinds {
			k := &kinds[i]
			server.Do(b, "CONFIG", "RESETSTAT")
			r := remotetest.Measure(b, server.CPU, func(n int) {
				batch := batches.Get().(*backend.Batch)
				defer batches.Put(batch)
				batch.Hits[0] = backend.Hit{Key: names[n*7919%keys], Limit: k.limit, Op: k.op, Amount: 1}
				if k.limit.Hold > 0 {
					batch.Hits[0].HoldID = backend.NewHoldID(fmt.Appendf(nil, "%d-%d", round, n))
				}
				if err := store.Take(context.Background(), batch); err != nil || batch.Verdicts[0].Err != nil ||
					batch.Verdicts[0].Over {
					b.Error(err, batch.Verdicts[0])
				}
			}, calls, 64)
			if round > 0 {
				k.cost.Add(r)
				k.us += microsPerScript(b, server) / rounds
			}
		}
	}
	for _, k := range kinds {
		b.ReportMetric(k.us, k.name+"-script-µs")
		b.ReportMetric(k.us/kinds[0].us, k.name+"-script-ratio")
		b.ReportMetric(float64(k.cost.Server.Nanoseconds())/1000/calls/rounds, k.name+"-redis-µs/hit")
		b.ReportMetric(float64(k.cost.Server)/float64(kinds[0].cost.Server), k.name+"-redis-ratio")
	}
}

var scriptMicros = regexp.MustCompile(`cmdstat_evalsha:.*usec_per_call=([0-9.]+)`)

// microsPerScript returns the mean time that Redis needed for EVALSHA since CONFIG RESETSTAT.
func microsPerScript(b *testing.B, server *redistest.Server) float64 {
	m := scriptMicros.FindStringSubmatch(fmt.Sprint(server.Do(b, "INFO", "commandstats")))
	if m == nil {
		b.Fatal("no EVALSHA in INFO commandstats")
	}
	us, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		b.Fatal(err)
	}
	return us
}

func against(b *testing.B, keys, charges, inFlight int) {
	server := redistest.Start(b, redistest.Options{})
	ctx := context.Background()
	store := open(b, Config{Addr: server.Addr})
	pool, err := radix.PoolConfig{Size: 10}.New(ctx, "tcp", server.Addr)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = pool.Close() }()
	names := remotetest.Keys(keys)
	plain := func(n int) {
		p := radix.NewPipeline()
		counts := make([]int64, charges)
		for i := range charges {
			k := string(names[(n*charges+i)*7919%keys]) + "1767225600"
			p.Append(radix.Cmd(&counts[i], "INCRBY", k, "1"))
			p.Append(radix.Cmd(nil, "EXPIRE", k, "3600"))
		}
		if err := pool.Do(ctx, p); err != nil {
			b.Error(err)
		}
	}
	ours := remotetest.CallsOf(b, store, window(1<<40, time.Hour), names, charges)
	remotetest.Compare(b, inFlight, charges, remotetest.Caller{Call: ours, Server: server.CPU},
		remotetest.Caller{Call: plain, Server: server.CPU}, "plain")
}

// BenchmarkHostileCallers has 0, 2, 3 and 16 callers make calls of 1,000 scripts without
// a pause, beside a caller that makes 200 small calls a second. The figures are of the
// small calls: the 50th and 99th percentile of their durations, the ratio to those
// without hostile callers, how many failed of 1,000, and how often the breaker opened;
// and how many large calls were answered in a second.
func BenchmarkHostileCallers(b *testing.B) {
	for _, hostile := range []int{2, 3, 16} {
		b.Run(fmt.Sprint(hostile), func(b *testing.B) {
			for b.Loop() {
				besideHostile(b, hostile)
			}
		})
	}
}

func besideHostile(b *testing.B, callers int) {
	server := redistest.Start(b, redistest.Options{})
	store := open(b, Config{Addr: server.Addr, Config: remote.Config{Timeout: 50 * time.Millisecond}})
	small := func() (took []time.Duration, failed int) {
		const calls = 1000
		begun := time.Now()
		var mu sync.Mutex
		var all sync.WaitGroup
		for n := range calls {
			time.Sleep(time.Until(begun.Add(time.Duration(n) * 5 * time.Millisecond))) // the pace of the measured calls
			all.Go(func() {
				batch := many(1, algorithm.FixedWindow, fmt.Sprintf("user_%d_", n%100), false)
				called := time.Now()
				err := errors.Join(store.Take(context.Background(), batch), batch.FirstErr())
				mu.Lock()
				defer mu.Unlock()
				took = append(took, time.Since(called))
				if err != nil {
					failed++
				}
			})
		}
		all.Wait()
		slices.Sort(took)
		return took, failed
	}
	_, _ = small() // warm up
	alone, _ := small()
	stop := make(chan struct{})
	var answered atomic.Int64
	var all sync.WaitGroup
	for n := range callers {
		all.Go(func() {
			kind := []algorithm.Kind{algorithm.SlidingWindow, algorithm.GCRA}[n%2]
			batch := many(1000, kind, fmt.Sprintf("hostile_%d_", n), false)
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := store.Take(context.Background(), batch); err != nil {
					b.Error(err)
				} else if batch.FirstErr() == nil {
					answered.Add(1)
				}
			}
		})
	}
	begun := time.Now()
	beside, failed := small()
	b.ReportMetric(float64(answered.Load())/time.Since(begun).Seconds(), "large-calls/s")
	close(stop)
	all.Wait()
	ms := func(sorted []time.Duration, p float64) float64 {
		return float64(sorted[int(p*float64(len(sorted)-1))]) / float64(time.Millisecond)
	}
	b.ReportMetric(ms(beside, 0.5), "p50-ms")
	b.ReportMetric(ms(beside, 0.99), "p99-ms")
	b.ReportMetric(ms(beside, 0.99)/ms(alone, 0.99), "p99-ratio")
	b.ReportMetric(float64(failed), "failed")
	b.ReportMetric(float64(store.Stats().BreakerOpenings), "breaker")
}
