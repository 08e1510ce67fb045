package prometheus

import (
	"runtime"
	"strconv"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

var load = limitertest.Rules

// record counts one hit of the first rule.
func record(r *metrics.Registry, set *rules.Set, key, value string, before uint64) {
	rule := set.Rules()[0]
	m := rules.Match{Descriptor: rule.Descriptor, Limits: []*rules.Rule{rule}}
	st := limiter.Status{Match: &m, Amount: 1, Charges: []limiter.Charge{{Rule: rule, Limit: rule.Rate}}}
	st.Charges[0].Verdict = &backend.Verdict{Outcome: algorithm.Outcome{
		Charged: true, Before: before, After: before + 1,
		Over: before+1 > uint64(rule.Requests),
	}}
	r.Record(
		&limiter.Request{
			Domain:      []byte("d"),
			Descriptors: []limiter.Descriptor{{Entries: []rules.Entry{{Key: []byte(key), Value: []byte(value)}}}},
		},
		&limiter.Answer{RuleSet: set, Domain: set.Domains()[0], Statuses: []limiter.Status{st}},
	)
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Clients choose a hundred times as many names as are kept: memory stays flat, a scrape stays bounded.
func TestNamesThatClientsChoose(t *testing.T) {
	const most = 500
	at := time.Unix(1_800_000_000, 0)
	r := metrics.New(metrics.Config{NearRatio: 0.8, MaxSeries: most, Now: func() time.Time { return at }})
	set := load(
		t, `{domain: d, descriptors: [{key: ip, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 1000}}]}`)
	r.UseRules(set)
	e := exporter(t, Config{Registry: r})
	sets := func(from, to int) {
		for i := from; i < to; i++ {
			record(r, set, "ip", strconv.Itoa(i), 0)
			if i%(20*most) == 20*most-1 {
				scraped(t, e, "none")
			}
		}
	}
	sets(0, 20*most)
	before := heap()
	sets(20*most, 100*most)
	after := heap()
	t.Logf("heap after %d names %d kB, after %d %d kB", 20*most, before>>10, 100*most, after>>10)
	if after > before+before/4+1<<20 {
		t.Errorf("heap grew from %d to %d bytes", before, after)
	}
	at = at.Add(time.Hour) // those that made room are shown for a while
	start := time.Now()
	lines := scraped(t, e, `^ratelimit_service_rate_limit_total_hits\{`)
	t.Logf("scrape took %v", time.Since(start))
	if len(lines) > most || len(lines) < most*9/10 {
		t.Errorf("%d series, want just under %d", len(lines), most)
	}
	if n := len(e.mappedNumbers.seriesByKey); n > 3*most {
		t.Errorf("%d series kept", n)
	}
}
