package limiter_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/overlimit"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/limitertest"
)

// cost is a dimension in which requests or rules grow.
type cost struct {
	name  string
	size  int // of the smallest; up to eight times as much is possible
	cfg   limiter.Config
	cache bool // the over-limit cache is in front of the counters
	many  bool // each descriptor is a request of its own, decided by CheckMany
	// make returns the rules of the domain d and a request of that size.
	make func(size int) (rules string, req *limiter.Request)
}

// perMinute is a limit that nothing exceeds.
const perMinute = "rate_limit: {unit: minute, requests_per_unit: 4000000000}"

func costs() []cost {
	all := limiter.Config{ChargeAllOrNothing: true}
	return []cost{
		{name: "descriptors", size: 100, make: descriptors(func(i int) string { return fmt.Sprint(i) })},
		{name: "descriptors on one counter", size: 100, make: descriptors(func(int) string { return "x" })},
		{
			name: "all-or-nothing descriptors", size: 100, cfg: all,
			make: descriptors(func(i int) string { return fmt.Sprint(i) }),
		},
		{
			name: "all-or-nothing descriptors on one counter", size: 100, cfg: all,
			make: descriptors(func(int) string { return "x" }),
		},
		{name: "descriptors behind the over-limit cache", size: 100, cache: true, make: refused},
		{name: "all-or-nothing descriptors behind the over-limit cache", size: 100, cfg: all, cache: true, make: refused},
		{name: "requests of a batch", size: 100, many: true, make: descriptors(func(i int) string { return fmt.Sprint(i) })},
		{
			name: "all-or-nothing requests of a batch on one counter", size: 100, cfg: all, many: true,
			make: descriptors(func(int) string { return "x" }),
		},
		{
			name: "requests of a batch behind the over-limit cache", size: 100, cfg: all, cache: true, many: true,
			make: refused,
		},
		{name: "limits", size: 12, make: func(n int) (string, *limiter.Request) { return limits(n), parse("k=x") }},
		{name: "all-or-nothing limits", size: 12, make: func(n int) (string, *limiter.Request) {
			text := strings.ReplaceAll(limits(n), "- key", "- on_reject: none\n    key")
			return text, parse(strings.Repeat("k=x k=y ", 4))
		}},
		{name: "entries", size: 100, make: func(n int) (string, *limiter.Request) {
			req := parse("k=x")
			d := &req.Descriptors[0]
			for i := range n {
				d.Entries = append(d.Entries, rules.Entry{Key: fmt.Append(nil, i), Value: []byte("x")})
			}
			return "rules:\n  - match: {k: x}\n    per: [k]\n    " + perMinute, req
		}},
		{name: "wildcards", size: 100, make: func(n int) (string, *limiter.Request) {
			var b strings.Builder
			for i := range n {
				fmt.Fprintf(&b, "  - {key: k, value: \"*b%db*\", %s}\n", i, perMinute)
			}
			return "descriptors:\n" + b.String(), value(100)
		}},
		{name: "value", size: 10_000, make: func(n int) (string, *limiter.Request) {
			return "descriptors:\n  - {key: k, value: \"*ab*\", " + perMinute + "}", value(n)
		}},
		{name: "value, several stars and long literals", size: 10_000, make: func(n int) (string, *limiter.Request) {
			long := strings.Repeat("a", 100) + "b"
			return "descriptors:\n  - {key: k, value: \"*aa*aaa*" + long + "*a*\", " + perMinute + "}", value(n)
		}},
	}
}

// descriptors makes as many, of one entry each.
func descriptors(value func(i int) string) func(n int) (string, *limiter.Request) {
	return func(n int) (string, *limiter.Request) {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "k=%s ", value(i))
		}
		return "descriptors:\n  - {key: k, " + perMinute + "}", parse(b.String())
	}
}

// refused are descriptors that are over their limits, and refunds among them.
func refused(n int) (string, *limiter.Request) {
	var b strings.Builder
	for i := range n / 2 {
		fmt.Fprintf(&b, "k=%d k=%d- ", i, i/2)
	}
	return "descriptors:\n  - {key: k, rate_limit: {unit: day, requests_per_unit: 1, algorithm: fixed_window}}",
		parse(b.String())
}

// limits are those of one descriptor.
func limits(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "      - {period: %ds, requests_per_unit: 4000000000}\n", i+1)
	}
	return "descriptors:\n  - key: k\n    rate_limits:\n" + b.String()
}

// value is a request with a value of that length, which nearly matches everywhere.
func value(n int) *limiter.Request {
	req := parse("k=x")
	req.Descriptors[0].Entries[0].Value = bytes.Repeat([]byte("a"), n)
	return req
}

// open returns a limiter, and a request of that size.
func (c *cost) open(tb testing.TB, size int) (*limiter.Limiter, *limiter.Request) {
	tb.Helper()
	text, req := c.make(size)
	store := limitertest.Store(tb, memory.Config{})
	cfg := c.cfg
	cfg.Backend = store
	if c.cache {
		cfg.Backend = overlimit.New(store, 0)
	}
	l := limiter.New(cfg)
	l.UseRules(load(tb, "domain: d\n"+text))
	return l, req
}

// check returns what makes one decision at that size.
func (c *cost) check(tb testing.TB, size int) func() {
	tb.Helper()
	l, req := c.open(tb, size)
	if c.many {
		m := new(limiter.Many)
		for _, d := range req.Descriptors {
			addRequest(m, &limiter.Request{Domain: req.Domain, Descriptors: []limiter.Descriptor{d}})
		}
		return func() { l.CheckMany(tb.Context(), m) }
	}
	a := new(limiter.Answer)
	return func() {
		if err := l.Check(tb.Context(), req, a); err != nil {
			tb.Fatal(err)
		}
	}
}

// Eight times as much costs about eight times as much CPU time. What is quadratic costs 64
// times as much, so a busy machine does not make the test fail: each size has its
// best time of many, taken in turns.
func TestCostIsLinear(t *testing.T) {
	const times, most = 8, 20
	for _, c := range costs() {
		t.Run(c.name, func(t *testing.T) {
			small, large := c.check(t, c.size), c.check(t, times*c.size)
			least := func(best time.Duration, do func(), n int) time.Duration {
				runtime.GC()
				begun, err := harness.CPUTime()
				for range n {
					do()
				}
				ended, err2 := harness.CPUTime()
				if err = errors.Join(err, err2); err != nil {
					t.Fatal(err)
				}
				return min(best, (ended-begun)/time.Duration(n))
			}
			one, eight := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
			for range 10 {
				one, eight = least(one, small, 20), least(eight, large, 5)
				if eight <= most*one {
					return
				}
			}
			t.Errorf("%d: %v, %d: %v", c.size, one, times*c.size, eight)
		})
	}
}

// BenchmarkCost doubles each dimension.
func BenchmarkCost(b *testing.B) {
	for _, c := range costs() {
		for _, times := range []int{1, 2, 4, 8} {
			b.Run(fmt.Sprintf("%s/%d", strings.ReplaceAll(c.name, ",", ""), times*c.size), func(b *testing.B) {
				do := c.check(b, times*c.size)
				b.ReportAllocs()
				for b.Loop() {
					do()
				}
			})
		}
	}
}

// BenchmarkGroup is one group of 20,000 hits that stand or fall together: 1,000
// descriptors with 20 limits each.
func BenchmarkGroup(b *testing.B) {
	for _, tt := range []struct {
		name  string
		value func(i int) string
	}{
		{"one counter for all descriptors", func(int) string { return "x" }},
		{"a counter for each", func(i int) string { return fmt.Sprint(i) }},
	} {
		b.Run(tt.name, func(b *testing.B) {
			c := cost{cfg: limiter.Config{ChargeAllOrNothing: true}, make: func(int) (string, *limiter.Request) {
				_, req := descriptors(tt.value)(1000)
				return limits(20), req
			}}
			do := c.check(b, 1)
			for b.Loop() {
				do()
			}
		})
	}
}

// BenchmarkNeighbour is a call of one descriptor, every 5 ms, beside two callers
// that send 1,000 descriptors all the time, each on limits that make work, and its
// slowest calls.
func BenchmarkNeighbour(b *testing.B) {
	for _, tt := range []struct {
		name   string
		cfg    limiter.Config
		limits string
	}{
		{"sliding windows", limiter.Config{}, "      - {unit: minute, requests_per_unit: 1000, algorithm: sliding_window}\n"},
		{
			"groups of 20000",
			limiter.Config{ChargeAllOrNothing: true},
			strings.SplitAfterN(limits(20), "rate_limits:\n", 2)[1],
		},
	} {
		b.Run(tt.name, func(b *testing.B) {
			c := cost{cfg: tt.cfg, make: func(int) (string, *limiter.Request) {
				return "descriptors:\n  - {key: alone, " + perMinute + "}\n  - key: k\n    rate_limits:\n" + tt.limits,
					parse("alone=x")
			}}
			l, alone := c.open(b, 1)
			done, stopped := make(chan struct{}), make(chan struct{})
			const hostile = 2
			for range hostile {
				go func() {
					defer func() { stopped <- struct{}{} }()
					_, req := descriptors(func(i int) string { return fmt.Sprint(i) })(1000)
					a := new(limiter.Answer)
					req.Now = time.Time{}
					for {
						select {
						case <-done:
							return
						default:
							_ = l.Check(b.Context(), req, a)
						}
					}
				}()
			}
			var took []time.Duration
			a := new(limiter.Answer)
			alone.Now = time.Time{}
			for b.Loop() {
				time.Sleep(5 * time.Millisecond) // the pace of the measured calls
				begun := time.Now()
				if err := l.Check(b.Context(), alone, a); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(begun))
			}
			close(done)
			for range hostile {
				<-stopped
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
		})
	}
}
