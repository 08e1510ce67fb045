package remotetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/testbed/harness"
)

// Cost is what the calls of a benchmark cost.
type Cost struct {
	CPU, Server time.Duration // of this process and of the server, for all calls
	took        []time.Duration
}

// Add adds the cost of further calls.
func (c *Cost) Add(other Cost) {
	c.CPU += other.CPU
	c.Server += other.Server
	c.took = append(c.took, other.took...)
}

// Total returns the CPU time of this process and of the server.
func (c *Cost) Total() time.Duration { return c.CPU + c.Server }

// Percentile returns the time below which the share p of the calls took.
func (c *Cost) Percentile(p float64) time.Duration {
	slices.Sort(c.took)
	return c.took[int(p*float64(len(c.took)-1))]
}

// Measure makes calls, so many at a time, to a server that has taken the CPU time that server returns.
func Measure(b *testing.B, server func() time.Duration, call func(n int), calls, inFlight int) Cost {
	took := make([][]time.Duration, inFlight)
	ours, theirs := cpu(b), server()
	var wg sync.WaitGroup
	for c := range inFlight {
		wg.Go(func() {
			for n := c; n < calls; n += inFlight {
				started := time.Now()
				call(n)
				took[c] = append(took[c], time.Since(started))
			}
		})
	}
	wg.Wait()
	return Cost{CPU: cpu(b) - ours, Server: server() - theirs, took: slices.Concat(took...)}
}

// Report reports the CPU time per hit of the store and of another one, named other, and ratios to that: of the CPU
// time, of the server alone, and of the 50th and the 99th percentile of the calls.
func (c *Cost) Report(b *testing.B, other *Cost, name string, hits int) {
	ratio := func(a, b time.Duration) float64 { return float64(a) / float64(b) }
	perHit := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(hits) }
	b.ReportMetric(perHit(c.Total()), "cpu-µs/hit")
	b.ReportMetric(perHit(other.Total()), name+"-cpu-µs/hit")
	b.ReportMetric(ratio(c.Total(), other.Total()), "cpu-ratio")
	b.ReportMetric(ratio(c.Server, other.Server), "server-ratio")
	b.ReportMetric(ratio(c.Percentile(0.5), other.Percentile(0.5)), "p50-ratio")
	b.ReportMetric(ratio(c.Percentile(0.99), other.Percentile(0.99)), "p99-ratio")
}

func cpu(b *testing.B) time.Duration {
	used, err := harness.CPUTime()
	if err != nil {
		b.Fatal(err)
	}
	return used
}

// Caller makes calls to a server that has taken the CPU time that Server returns.
type Caller struct {
	Call   func(n int)
	Server func() time.Duration
}

// Compare measures both callers in turns, after a warm up, and reports their costs; see Cost.Report. A call has so many
// charges.
func Compare(b *testing.B, inFlight, charges int, ours, theirs Caller, name string) {
	calls := 20_000
	if inFlight == 1 {
		calls = 4000
	}
	const rounds = 5
	var us, them Cost
	for round := range rounds + 1 {
		our := Measure(b, ours.Server, ours.Call, calls, inFlight)
		their := Measure(b, theirs.Server, theirs.Call, calls, inFlight)
		if round > 0 {
			us.Add(our)
			them.Add(their)
		}
	}
	us.Report(b, &them, name, rounds*calls*charges)
}

// CallsOf returns a function that makes a call to store: charges of a limit on some of the keys.
func CallsOf(b *testing.B, store backend.Backend, limit *algorithm.Limit, keys [][]byte, charges int) func(n int) {
	batches := sync.Pool{New: func() any {
		return &backend.Batch{Hits: make([]backend.Hit, charges), Verdicts: make([]backend.Verdict, charges)}
	}}
	return func(n int) {
		batch := batches.Get().(*backend.Batch)
		defer batches.Put(batch)
		for i := range batch.Hits {
			key := keys[(n*charges+i)*7919%len(keys)]
			batch.Hits[i] = backend.Hit{Key: key, Limit: limit, Amount: 1, GroupID: uint16(i)}
		}
		if err := store.Take(context.Background(), batch); err != nil || batch.Verdicts[0].Err != nil {
			b.Error(err, batch.Verdicts[0].Err)
		}
	}
}

// Keys returns so many different keys.
func Keys(n int) [][]byte {
	keys := make([][]byte, n)
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "domain_user_%d_", i)
	}
	return keys
}
