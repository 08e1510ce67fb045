package rlqs

import (
	"context"
	"flag"
	"fmt"
	"runtime"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/quota"
	"ratelimit/src/rules"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/limitertest"
)

var benchBuckets = flag.Int("quota.buckets", 10_000, "how many buckets BenchmarkQuotas has")

// crowd is many proxies that report many buckets each second, in virtual time.
type crowd struct {
	divider *quota.Divider
	limiter *limiter.Limiter
	proxies []*quota.Proxy
	// messages are the reports of all buckets, with 10 requests each: allowed by all proxies but the last, which refuses.
	messages [][]byte
	now      time.Duration
	pending  []quota.Assignment
	out      []byte
	answers  int
}

func newCrowd(b *testing.B, unit string, buckets, proxies int) *crowd {
	b.Helper()
	store := limitertest.Store(b, memory.Config{MaxBytes: 1 << 30})
	perUnit := map[string]int{"second": 10, "minute": 600}[unit] * proxies
	text := fmt.Sprintf("domain: d\nquota_buckets: true\ndescriptors: [{key: name, rate_limit: {unit: %s, "+
		"requests_per_unit: %d}}]", unit, perUnit)
	set := limitertest.Rules(b, text)
	c := &crowd{limiter: limiter.New(limiter.Config{Backend: store}), now: time.Second}
	c.limiter.UseRules(set)
	c.divider = quota.New(quota.Config{
		Limiter: c.limiter, Backend: store,
		VirtualTime: true,
	})
	usages := make([]*pb.RateLimitQuotaUsageReports_BucketQuotaUsage, buckets)
	for i := range usages {
		usages[i] = bucketUsage(map[string]string{"name": fmt.Sprintf("service-%06d", i)}, 9, 1)
	}
	for part := range 10 { // 1,000 buckets in a message
		message, err := proto.Marshal(&pb.RateLimitQuotaUsageReports{
			Domain:            "d",
			BucketQuotaUsages: usages[len(usages)*part/10 : len(usages)*(part+1)/10],
		})
		if err != nil {
			b.Fatal(err)
		}
		c.messages = append(c.messages, message)
	}
	for range proxies {
		c.proxies = append(c.proxies, c.divider.Connect([]byte("d")))
	}
	return c
}

func (c *crowd) instant() quota.Instant {
	return quota.NewInstant(c.now, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(c.now))
}

// second lets all proxies report once, spread over a second, and sends them what the rounds assign.
func (c *crowd) second(b *testing.B) {
	b.Helper()
	const ticks = 50
	for tick := range ticks {
		for _, p := range c.proxies[len(c.proxies)*tick/ticks : len(c.proxies)*(tick+1)/ticks] {
			for _, message := range c.messages {
				r := reportReader{fields: rls.Fields{Message: message}}
				for r.next() {
					if err := p.Report(r.bucketID, r.allowed, r.denied, c.instant(), r.entries); err != nil {
						b.Fatal(err)
					}
				}
			}
		}
		c.now += time.Second / ticks
		c.divider.Step(context.Background(), c.instant())
		for _, p := range c.proxies {
			c.pending, c.out = p.TakePending(c.pending[:0]), c.out[:0]
			for i := range c.pending {
				c.out = appendActions(c.out, &c.pending[i])
			}
			c.answers += len(c.pending)
		}
	}
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	used, err := harness.CPUTime()
	if err != nil {
		b.Fatal(err)
	}
	return used
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkQuotas lets 100 proxies report 10,000 buckets each second, with 10 requests in each, and then decides one in
// ten of these requests as calls of RateLimitService do. An operation is a second: cores is the CPU time of one.
func BenchmarkQuotas(b *testing.B) {
	const proxies, warmup = 100, 12
	buckets := *benchBuckets
	for _, unit := range []string{"minute", "second"} {
		b.Run("a limit per "+unit, func(b *testing.B) {
			before := heap()
			c := newCrowd(b, unit, buckets, proxies)
			for range warmup {
				c.second(b)
			}
			c.answers = 0
			bytes := float64(heap()-before) / float64(buckets*proxies)
			b.ReportAllocs()
			began, seconds := cpuTime(b), 0
			for b.Loop() {
				c.second(b)
				seconds++
			}
			cores := (cpuTime(b) - began).Seconds() / float64(seconds)
			b.ReportMetric(bytes, "B/bucketxproxy")
			b.ReportMetric(cores, "cores")
			b.ReportMetric(cores*1e9/float64(buckets*proxies), "cpu-ns/report")
			b.ReportMetric(float64(c.answers)/float64(seconds), "answers/s")
			b.StopTimer()
			b.ReportMetric(c.decide(b, buckets*proxies), "cpu-ns/decision")
			runtime.KeepAlive(c)
		})
	}
}

// decide decides n requests of random buckets one by one, and returns the CPU time of one in nanoseconds.
func (c *crowd) decide(b *testing.B, n int) float64 {
	b.Helper()
	entry := rules.Entry{Key: []byte("name")}
	req := limiter.Request{
		Domain: []byte("d"), Now: time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC),
		Descriptors: []limiter.Descriptor{{Entries: []rules.Entry{entry}}},
	}
	var a limiter.Answer
	value := []byte("service-000000")
	began := cpuTime(b)
	for i := range n {
		value = fmt.Appendf(value[:len("service-")], "%06d", i*7919%*benchBuckets)
		req.Descriptors[0].Entries[0].Value = value
		if err := c.limiter.Check(context.Background(), &req, &a); err != nil {
			b.Fatal(err)
		}
	}
	return float64(cpuTime(b)-began) / float64(n)
}
