package history

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const testRules = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 1000}
  - key: banned
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: near
    rate_limit: {unit: year, requests_per_unit: 4}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: staff
    rate_limit: {unlimited: true}
`

// fixture is a History of a limiter over memory, on virtual time.
type fixture struct {
	*History
	registry *metrics.Registry
	limiter  *limiter.Limiter
	now      time.Time
}

func start(t *testing.T, cfg Config, text string) *fixture {
	t.Helper()
	f := &fixture{now: noon}
	f.registry = metrics.New(metrics.Config{NearRatio: 0.5, Now: func() time.Time { return f.now }})
	store := limitertest.Store(t, memory.Config{})
	f.limiter = limiter.New(limiter.Config{
		Backend: store, Recorders: []limiter.Recorder{f.registry},
		ShadowMode: cfg.ShadowMode,
	})
	f.use(t, text)
	cfg.Registry = f.registry
	f.History = New(cfg)
	f.read(f.now)
	return f
}

func (f *fixture) use(t *testing.T, text string) {
	t.Helper()
	set := limitertest.Rules(t, text)
	f.registry.UseRules(set)
	f.limiter.UseRules(set)
}

// ask sends n requests on each of keys.
func (f *fixture) ask(t *testing.T, n int, keys ...string) {
	t.Helper()
	for _, key := range keys {
		req := &limiter.Request{Domain: []byte("d"), Now: f.now}
		req.Descriptors = []limiter.Descriptor{{Entries: []rules.Entry{{Key: []byte(key), Value: []byte("x")}}}}
		for range n {
			if err := f.limiter.Check(t.Context(), req, new(limiter.Answer)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// wait lets time pass, with readings.
func (f *fixture) wait(d time.Duration) {
	for end := f.now.Add(d); f.now.Before(end); {
		f.now = f.now.Add(tick)
		f.read(f.now)
	}
}

// admitted returns the admitted rates of a history, as text.
func (f *fixture) admitted(domain, rule string) string {
	hour, ok := f.Hour(domain, rule)
	if !ok {
		return "none"
	}
	return fmt.Sprint(hour.Admitted)
}

// What the rates of each kind of rule are.
func TestCurrent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		key        string
		shadowMode bool
		want       PerSecond
	}{
		{"ip", false, PerSecond{Admitted: 1}},
		{"banned", false, PerSecond{Denied: 1}},
		{"banned", true, PerSecond{Admitted: 1, Shadow: 1}},
		{"near", false, PerSecond{Admitted: 0.4, Denied: 0.6, Near: 0.2}},
		{"trial", false, PerSecond{Admitted: 1, Shadow: 1}},
		{"staff", false, PerSecond{Admitted: 1}},
		{"unmatched", false, PerSecond{Unmatched: 1}},
	} {
		f := start(t, Config{ShadowMode: tt.shadowMode}, testRules)
		f.ask(t, 10, tt.key)
		f.wait(10 * time.Second)
		c := f.Current()
		domains, rules := []Rates{{"d", "", tt.want}}, []Rates{{"d", "d." + tt.key, tt.want}}
		if tt.want.Unmatched > 0 {
			rules = nil
		}
		if c.Total != tt.want || !slices.Equal(c.Domains, domains) || !slices.Equal(c.Rules, rules) {
			t.Errorf("%s: got %+v, %+v and %+v, want %+v", tt.key, c.Total, c.Domains, c.Rules, tt.want)
		}
		if f.Current() != c {
			t.Errorf("%s: the rates are made twice between two readings", tt.key)
		}
		f.wait(10 * time.Second)
		if c := f.Current(); c.Total != (PerSecond{}) {
			t.Errorf("%s: got %+v after 10 s without requests", tt.key, c.Total)
		}
	}
}

// Rates are over the last ten seconds, or since the start. The busiest rules come first, then names.
func TestCurrentSlides(t *testing.T) {
	t.Parallel()
	f := start(t, Config{}, testRules)
	for _, step := range []struct {
		ip, staff int
		want      string
	}{
		{ip: 10, want: "ip 5"},
		{staff: 40, want: "staff 10, ip 2.5"},
		{want: "staff 6.7, ip 1.7"},
		{want: "staff 5, ip 1.2"},
		{want: "staff 4, ip 1"},
		{want: "staff 4, ip 0"},
		{want: "ip 0, staff 0"},
	} {
		f.ask(t, step.ip, "ip")
		f.ask(t, step.staff, "staff")
		f.wait(tick)
		var got []string
		for _, r := range f.Current().Rules {
			got = append(got, fmt.Sprintf("%s %.2g", strings.TrimPrefix(r.Rule, "d."), r.Admitted))
		}
		if got := strings.Join(got, ", "); got != step.want {
			t.Errorf("after %v: got %s, want %s", f.now.Sub(noon), got, step.want)
		}
	}
}

// A history has a rate for each ten seconds, up to an hour.
func TestHour(t *testing.T) {
	t.Parallel()
	f := start(t, Config{}, testRules)
	if got := f.admitted("", ""); got != "[]" {
		t.Errorf("at the start: got %s", got)
	}
	f.ask(t, 20, "ip")
	f.wait(10 * time.Second)
	f.ask(t, 10, "ip", "staff")
	f.wait(18 * time.Second) // The last step has not ended.
	for _, tt := range []struct{ domain, rule, want string }{
		{"", "", "[2 2]"},
		{"d", "", "[2 2]"},
		{"d", "d.ip", "[2 1]"},
		{"d", "d.staff", "[1]"}, // since its first decision
		{"d", "d.banned", "[0 0]"},
		{"d", "d.none", "none"},
		{"e", "", "none"},
	} {
		if got := f.admitted(tt.domain, tt.rule); got != tt.want {
			t.Errorf("%q %q: got %s, want %s", tt.domain, tt.rule, got, tt.want)
		}
	}
	if hour, _ := f.Hour("d", "d.ip"); !hour.Start.Equal(noon) {
		t.Errorf("starts at %v", hour.Start)
	}
	if hour, _ := f.Hour("d", "d.staff"); !hour.Start.Equal(noon.Add(10 * time.Second)) {
		t.Errorf("starts at %v", hour.Start)
	}
	f.wait(2*time.Second + time.Hour - 10*time.Second)
	f.ask(t, 10, "ip")
	f.wait(10 * time.Second)
	hour, _ := f.Hour("d", "d.ip")
	if len(hour.Admitted) != Steps || hour.Admitted[0] != 0 || hour.Admitted[Steps-1] != 1 ||
		!hour.Start.Equal(f.now.Add(-time.Hour)) {
		t.Errorf("after more than an hour: %v from %v on", hour.Admitted, hour.Start)
	}
}

// A history goes on over a reload, and ends when the counters of a removed rule are forgotten.
func TestReload(t *testing.T) {
	t.Parallel()
	f := start(t, Config{}, testRules)
	f.ask(t, 10, "ip", "staff")
	f.wait(10 * time.Second)
	f.use(t, "domain: d\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 7}}]")
	f.ask(t, 20, "ip")
	f.wait(10 * time.Second)
	if got := f.admitted("d", "d.ip"); got != "[1 0]" { // 10 of 7 are used.
		t.Errorf("got %s", got)
	}
	if got := f.admitted("d", "d.staff"); got != "[1 0]" {
		t.Errorf("removed rule: got %s", got)
	}
	f.wait(time.Hour)
	f.registry.Stats() // This deletes expired counters.
	f.wait(tick)
	if got := f.admitted("d", "d.staff"); got != "none" {
		t.Errorf("forgotten rule: got %s", got)
	}
}

// A time without readings, such as that of a suspended process, has the average rate.
func TestGap(t *testing.T) {
	t.Parallel()
	f := start(t, Config{}, testRules)
	f.ask(t, 10, "ip")
	f.wait(10 * time.Second)
	f.ask(t, 60, "ip")
	f.now = f.now.Add(30 * time.Second)
	f.read(f.now)
	f.read(f.now.Add(-time.Minute)) // The clock goes back.
	f.wait(10 * time.Second)
	if got := f.admitted("d", "d.ip"); got != "[1 2 2 2 0]" {
		t.Errorf("got %s", got)
	}
	f.now = f.now.Add(24 * time.Hour)
	f.read(f.now)
	if hour, _ := f.Hour("", ""); len(hour.Admitted) != Steps {
		t.Errorf("%d values after a day", len(hour.Admitted))
	}
}

// With 10,000 rules the busiest have a history, in memory that does not grow with the number of rules. Others that have
// decided something have rates.
func TestManyRules(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "  - {key: k%d, rate_limit: {unit: year, requests_per_unit: 1000000}}\n", i)
	}
	f := start(t, Config{MaxRules: 20}, text.String())
	for i := range 100 {
		f.ask(t, 1, fmt.Sprint("k", i))
	}
	f.wait(10 * time.Second)
	for range 12 {
		for i := range 10 {
			f.ask(t, 20, fmt.Sprint("k", 9_000+i))
		}
		f.wait(10 * time.Second)
	}
	rings := 0
	for _, s := range f.rules {
		if s.ring != nil {
			rings++
		}
	}
	if rings != 20 {
		t.Errorf("%d rules have a history, want 20", rings)
	}
	for i := range 10 {
		if hour, ok := f.Hour("d", fmt.Sprint("d.k", 9_000+i)); !ok || hour.Admitted[len(hour.Admitted)-1] != 2 {
			t.Errorf("a busy rule has no history: %t, %+v", ok, hour)
		}
	}
	c := f.Current()
	if len(c.Rules) != 110 || c.Rules[0].Rule != "d.k9000" || c.Rules[10].Rule != "d.k0" || c.Domains[0].Admitted != 20 {
		t.Errorf("got %d rules, the first %+v, %+v", len(c.Rules), c.Rules[0], c.Domains)
	}
}

// Run reads the counters while others look at the rates.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, Config{}, testRules)
		f.History = New(Config{Registry: f.registry})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := f.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		for range 4 {
			wg.Go(func() {
				for range 20 {
					f.Current()
					f.Hour("d", "d.ip")
					time.Sleep(time.Second)
				}
			})
		}
		synctest.Wait()
		f.ask(t, 10, "ip")
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if got := f.admitted("d", "d.ip"); got != "[1]" {
			t.Errorf("got %s", got)
		}
		cancel()
		wg.Wait()
	})
}

// BenchmarkRead is a reading of the counters of 10,000 rules that have decided something, and a look at the rates.
// What counting a request costs, on all processors at a time.
func BenchmarkRecord(b *testing.B) {
	h := New(Config{Registry: metrics.New(metrics.Config{})})
	a := &limiter.Answer{Statuses: make([]limiter.Status, 3)}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			h.Record(nil, a)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	var text strings.Builder
	text.WriteString("domain: d\ndescriptors:\n")
	for i := range 10_000 {
		fmt.Fprintf(&text, "  - {key: k%d, rate_limit: {unit: year, requests_per_unit: 1}}\n", i)
	}
	set := limitertest.Rules(b, text.String())
	registry := metrics.New(metrics.Config{})
	registry.UseRules(set)
	for _, r := range set.Rules() {
		m := rules.Match{Descriptor: r.Descriptor, Limits: []*rules.Rule{r}}
		charges := []limiter.Charge{{Rule: r, Limit: r.Rate, Verdict: new(backend.Verdict)}}
		status := limiter.Status{Match: &m, Amount: 1, Charges: charges}
		registry.Record(&limiter.Request{Domain: []byte("d"), Descriptors: make([]limiter.Descriptor, 1)},
			&limiter.Answer{RuleSet: set, Domain: set.Domains()[0], Statuses: []limiter.Status{status}})
	}
	h, now := New(Config{Registry: registry}), noon
	for _, look := range []bool{false, true} {
		b.Run(fmt.Sprintf("look=%t", look), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(tick)
				h.read(now)
				if look {
					h.Current()
				}
			}
		})
	}
}

// Requests are counted by what became of them. Those that failed count as failed only.
func TestRequests(t *testing.T) {
	t.Parallel()
	f := start(t, Config{}, testRules)
	record := func(n int, a *limiter.Answer) {
		for range n {
			f.Record(nil, a)
		}
	}
	record(30, &limiter.Answer{})
	record(20, &limiter.Answer{Over: true})
	record(10, &limiter.Answer{Fallback: backend.FallbackLocal})
	record(5, &limiter.Answer{Over: true, Fallback: backend.FallbackDeny})
	record(40, &limiter.Answer{Over: true, Statuses: []limiter.Status{{}, {StoreFailed: true}}})
	record(7, &limiter.Answer{Statuses: []limiter.Status{{}, {CallerLeft: true}}}) // Nobody got an answer.
	f.wait(Step)
	want := RequestsPerSecond{Admitted: 4, Denied: 2.5, Fallback: 1.5, Failed: 4}
	if got := f.Current().Requests; got != want || got.Total() != 10.5 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	f.wait(Step)
	if got := f.Current().Requests; got != (RequestsPerSecond{}) {
		t.Errorf("ten seconds later: got %+v", got)
	}
}
