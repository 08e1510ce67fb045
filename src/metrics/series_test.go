package metrics

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

const seriesRules = `
domain: d
descriptors:
  - {key: user, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: shown, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: user, value: static, rate_limit: {unit: day, requests_per_unit: 10}}
`

// hit records one hit of rule i by a request with the given value.
func hit(r *Registry, set *rules.Set, i int, value string) {
	r.Record(request(set.Rules()[i].Path[0].Key(), value), answer(set, i, 0, 1))
}

// hitRequestLimit records one hit of a limit that comes with a request.
func hitRequestLimit(r *Registry, set *rules.Set, key, value string) {
	r.Record(request(key, value), &limiter.Answer{
		RuleSet: set, Domain: set.Domains()[0],
		Statuses: []limiter.Status{{Amount: 1, Charges: []limiter.Charge{{Verdict: new(backend.Verdict)}}}},
	})
}

func request(key, value string) *limiter.Request {
	entries := []rules.Entry{{Key: []byte(key), Value: []byte(value)}}
	return &limiter.Request{Domain: []byte("d"), Descriptors: []limiter.Descriptor{{Entries: entries}}}
}

// total keeps the counters of total_hits, as "name=value".
func total(r *Registry) (list []string) {
	for _, s := range moved(r) {
		if name, n, _ := strings.Cut(s, ".total_hits="); n != "" {
			list = append(list, strings.TrimPrefix(name, "rate_limit.")+"="+n)
		}
	}
	return list
}

func TestSeries(t *testing.T) {
	set := load(t, seriesRules)
	r := New(Config{NearRatio: 0.8})
	r.UseRules(set)
	for _, value := range []string{"a", "b", "a", "", "10.0.0.7:80", "x\ny", "static"} {
		hit(r, set, 0, value)
	}
	hit(r, set, 1, "a")
	hit(r, set, 1, "")
	hit(r, set, 2, "static") // the same name as a value that a client chose: added up
	want := []string{
		"d.shown=1", "d.shown_a=1", "d.user_=1", "d.user_10_0_0_7_80=1", "d.user_a=2", "d.user_b=1", "d.user_static=2",
		"d.user_x_y=1",
	}
	if got := total(r); !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
	// A reload keeps them.
	fresh := load(t, seriesRules)
	r.UseRules(fresh)
	hit(r, fresh, 0, "a")
	if got := total(r); !slices.Contains(got, "d.user_a=3") {
		t.Errorf("after a reload: %q", got)
	}
}

func TestLeastRecentlyUsedSeriesGo(t *testing.T) {
	set := load(t, seriesRules)
	r := New(Config{MaxSeries: 16}) // one for each shard
	r.UseRules(set)
	for i := range 10_000 {
		hit(r, set, 0, "kept")
		hit(r, set, 0, fmt.Sprint(i%100))
	}
	n := value(r, "ratelimit.stats.series")
	evicted := value(r, "ratelimit.stats.series_evicted")
	if n > 16 || n < 10 || evicted < 9000 {
		t.Errorf("%d series, %d evicted", n, evicted)
	}
}

// A name that made room for another is shown for a while, and until a flush had it.
// If it comes back meanwhile it goes on where it was.
func TestEvictedSeriesAreShownForAWhile(t *testing.T) {
	set := load(t, seriesRules)
	at := time.Unix(1_800_000_000, 0)
	r := New(Config{MaxSeries: 1, Now: func() time.Time { return at }})
	r.UseRules(set)
	for _, step := range []struct {
		name  string
		hit   string
		after time.Duration
		flush bool
		want  []string
	}{
		{name: "one", hit: "a", want: []string{"d.user_a=1"}},
		{name: "another", hit: "b", want: []string{"d.user_a=1", "d.user_b=1"}},
		{name: "no flush had it", after: time.Hour, want: []string{"d.user_a=1", "d.user_b=1"}},
		{name: "reading changes nothing", want: []string{"d.user_a=1", "d.user_b=1"}},
		{name: "it comes back", hit: "a", want: []string{"d.user_a=2", "d.user_b=1"}},
		{name: "a flush has it", flush: true, want: []string{"d.user_a=2", "d.user_b=1"}},
		{name: "not yet", after: keepUnusedFor - 1, want: []string{"d.user_a=2", "d.user_b=1"}},
		{name: "its time is up", after: 1, want: []string{"d.user_a=2"}},
		{name: "it begins anew", hit: "b", want: []string{"d.user_a=2", "d.user_b=1"}},
	} {
		at = at.Add(step.after)
		if step.hit != "" {
			hit(r, set, 0, step.hit)
		}
		if step.flush {
			r.FlushStats()
		}
		if got := total(r); !slices.Equal(got, step.want) {
			t.Errorf("%s:\n got %q\nwant %q", step.name, got, step.want)
		}
	}
}

// Rules and domains that a reload removed are shown for an hour, however often they
// are read, and go on where they were if they come back.
func TestRemovedRulesAreShownForAnHour(t *testing.T) {
	with := func(domain string) *rules.Set {
		return load(t, "domain: "+domain+"\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 10}}]")
	}
	at := time.Unix(1_800_000_000, 0)
	r := New(Config{Now: func() time.Time { return at }})
	miss := func(set *rules.Set) {
		r.Record(ask, &limiter.Answer{RuleSet: set, Domain: set.Domains()[0], Statuses: make([]limiter.Status, 1)})
	}
	unmatched := func(domain string) (n int64) {
		for _, line := range native(r, "ratelimit_decisions_total") {
			if count, found := strings.CutPrefix(line, domain+"/ unmatched="); found {
				n, _ = strconv.ParseInt(count, 10, 64)
			}
		}
		return n
	}
	first := with("first")
	r.UseRules(first)
	hit(r, first, 0, "")
	miss(first)
	r.UseRules(with("second"))
	hit(r, first, 0, "") // it began before the reload
	for range 5 {
		r.FlushStats()
	}
	at = at.Add(keepRemovedFor - time.Second)
	r.UseRules(with("third"))
	if got, want := total(r), []string{"first.user=2"}; !slices.Equal(got, want) || unmatched("first") != 1 {
		t.Errorf("just before an hour: %q, %d unmatched", got, unmatched("first"))
	}
	first = with("first")
	r.UseRules(first)
	hit(r, first, 0, "")
	miss(first)
	if got, want := total(r), []string{"first.user=3"}; !slices.Equal(got, want) || unmatched("first") != 2 {
		t.Errorf("back: %q, %d unmatched", got, unmatched("first"))
	}
	r.UseRules(with("second"))
	at = at.Add(keepRemovedFor)
	r.FlushStats() // its name is unused from now on
	at = at.Add(keepUnusedFor)
	if got := total(r); len(got) > 0 {
		t.Errorf("long after: %q", got)
	}
	r.UseRules(with("third"))
	if n := unmatched("first"); n > 0 {
		t.Errorf("%d unmatched long after", n)
	}
}

// A hundred times as many names as are kept, of every kind and some of them long, take no more memory than the first of
// them.
func TestSeriesAreBounded(t *testing.T) {
	const most = 2_000
	set := load(t, seriesRules)
	at := time.Unix(1_800_000_000, 0)
	r := New(Config{MaxSeries: most, Now: func() time.Time { return at }})
	r.UseRules(set)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	long := strings.Repeat("x", 10_000)
	flood := func(from, to int) {
		for i := from; i < to; i++ {
			switch i % 4 {
			case 0:
				hit(r, set, 0, fmt.Sprint(i))
			case 1:
				hit(r, set, 1, fmt.Sprint(i))
			case 2:
				r.Record(&limiter.Request{Domain: fmt.Appendf(nil, "unknown-%d", i)},
					&limiter.Answer{RuleSet: set, Statuses: make([]limiter.Status, 1)})
			case 3:
				value := fmt.Sprint(i)
				if i%10_000 == 3 {
					value = long + value
				}
				hitRequestLimit(r, set, "k", value)
			}
		}
	}
	flood(0, 10*most)
	before := heap()
	flood(10*most, 100*most)
	if after := heap(); after > before+before/4+1<<20 {
		t.Errorf("%d bytes after %d names, %d after %d", after, 100*most, before, 10*most)
	}
	r.FlushStats()
	at = at.Add(keepUnusedFor)
	stats := r.FlushStats()
	if n := len(stats); n > most*hitCounterCount+100 {
		t.Errorf("%d figures", n)
	}
	for _, s := range stats {
		if len(s.Name) > maxNameBytes+100 {
			t.Fatalf("a name of %d bytes", len(s.Name))
		}
	}
}

// sent adds up what a sink that sends differences would have sent.
type sent struct {
	last, sum map[string]int64
}

func (s *sent) flush(r *Registry) {
	now := make(map[string]int64)
	for _, st := range r.FlushStats() {
		now[st.Name] = st.Value
		s.sum[st.Name] += st.Value - s.last[st.Name]
		if st.Value < s.last[st.Name] {
			panic(fmt.Sprintf("%s fell from %d to %d", st.Name, s.last[st.Name], st.Value))
		}
	}
	s.last = now
}

// What is sent in differences adds up to what was counted, whatever is evicted,
// shares a name or goes with a reload meanwhile.
func TestDifferencesAddUp(t *testing.T) {
	set := load(t, seriesRules)
	r := New(Config{MaxSeries: 8})
	r.UseRules(set)
	s := sent{sum: make(map[string]int64)}
	want := make(map[string]int64)
	for i := range 2000 {
		value := fmt.Sprint("v", i%100)
		hit(r, set, 0, value) // by request value
		want["d.user_"+value]++
		hit(r, set, 2, "static")
		hitRequestLimit(r, set, "user", "static") // under the name of rule 2
		want["d.user_static"] += 2
		switch {
		case i%37 == 0:
			s.flush(r)
		case i%501 == 0:
			set = load(t, seriesRules)
			r.UseRules(set)
		case i%701 == 0: // the rule goes, and comes back
			r.UseRules(load(t, "domain: d"))
			r.UseRules(load(t, "domain: d"))
			s.flush(r)
			r.UseRules(set)
		}
	}
	s.flush(r)
	for name, n := range want {
		if got := s.sum[rulePrefix+name+".total_hits"]; got != n {
			t.Errorf("%s: %d sent, %d counted", name, got, n)
		}
	}
	if lost := value(r, "ratelimit.stats.hits_lost"); lost != 0 {
		t.Errorf("%d lost", lost)
	}
}

// Values that do not show in a name take no series of their own.
func TestHiddenValuesShareASeries(t *testing.T) {
	set := load(t, `
domain: d
descriptors:
- key: tenant
  value_to_metric: true
  descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 10}}
`)
	r := New(Config{MaxSeries: 16})
	r.UseRules(set)
	for i := range 10_000 {
		req := request("tenant", "acme")
		entries := &req.Descriptors[0].Entries
		*entries = append(*entries, rules.Entry{Key: []byte("user"), Value: fmt.Append(nil, i)})
		r.Record(req, answer(set, 0, 0, 1))
	}
	if got := total(r); !slices.Equal(got, []string{"d.tenant_acme.user=10000"}) || r.clientNames.Len() != 1 {
		t.Errorf("%d series: %q", r.clientNames.Len(), got)
	}
}

// What the store did not answer is counted by rule, and by what was done instead.
func TestUnanswered(t *testing.T) {
	set := load(t, testRules)
	r := New(Config{NearRatio: 0.8})
	r.UseRules(set)
	degraded := func(f backend.Fallback) *limiter.Answer {
		a := answer(set, 0, 0, 1)
		a.Statuses[0].Charges[0].Verdict.Fallback = f
		return a
	}
	failed := degraded(backend.FallbackError)
	failed.Statuses[0].Charges[0].Verdict.Err = errors.New("down")
	requestLimits := degraded(backend.FallbackDeny)
	requestLimits.Statuses[0].Charges[0].Rule = nil
	refunded := degraded(backend.FallbackLocal) // It is no decision, so it is no part of the decided ones.
	refunded.Statuses[0].Charges[0].Op = algorithm.Refund
	for _, a := range []*limiter.Answer{
		answer(set, 0, 0, 1), degraded(backend.FallbackLocal),
		degraded(backend.FallbackLocal), failed, requestLimits, refunded,
	} {
		r.Record(ask, a)
	}
	got := native(r, "ratelimit_unanswered_total")
	if want := []string{"/(request) deny=1", "d/ip error=1", "d/ip local=2"}; !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
	r.ForEachDecisions(func(domain, name string, d Decisions) {
		if want := (Decisions{Admitted: 3, Fallback: 2, Failed: 1}); name == "d.ip" && d != want {
			t.Errorf("got %+v, want %+v", d, want)
		}
	})
}

func TestDecisions(t *testing.T) {
	set := load(t, testRules)
	r := New(Config{NearRatio: 0.8})
	r.UseRules(set)
	r.Record(ask, answer(set, 0, 0, 1))
	r.Record(ask, answer(set, 0, 8, 9))
	r.Record(ask, answer(set, 0, 10, 11))
	r.Record(ask, answer(set, 2, 10, 11))
	refund := answer(set, 0, 0, 1)
	refund.Statuses[0].Charges[0].Op = algorithm.Refund
	r.Record(ask, refund)
	settlement := answer(set, 0, 0, 1)
	settlement.Statuses[0].Charges[0].Op = algorithm.Force
	r.Record(ask, settlement)
	r.Record(ask, &limiter.Answer{
		RuleSet: set, Domain: set.Domains()[0],
		Statuses: []limiter.Status{{Match: matchOf(set.Rules()[3])}, {}},
	})
	r.Record(ask, &limiter.Answer{RuleSet: set, Statuses: make([]limiter.Status, 3)})
	requestLimits := answer(set, 0, 0, 1)
	requestLimits.Statuses[0].Charges[0].Rule = nil
	r.Record(ask, requestLimits)
	got := native(r, "ratelimit_decisions_total")
	want := []string{
		"/ unmatched=3", "/(request) within=1", "d/ unmatched=1", "d/ip near=1", "d/ip over=1", "d/ip refunded=1",
		"d/ip settled=1", "d/ip within=1",
		"d/staff unlimited=1", "d/trial shadow=1",
	}
	if !slices.Equal(got, want) {
		t.Errorf("\n got %q\nwant %q", got, want)
	}
}

// BenchmarkRecord is what counting costs a request, also for a rule whose
// counters are named after a value of the request.
func BenchmarkRecord(b *testing.B) {
	set := limitertest.Rules(b, seriesRules)
	for _, tt := range []struct {
		name string
		rule int
	}{{"plain", 2}, {"detailed", 0}} {
		b.Run(tt.name, func(b *testing.B) {
			r := New(Config{NearRatio: 0.8})
			r.UseRules(set)
			req, a := request("user", "static"), answer(set, tt.rule, 0, 1)
			b.ReportAllocs()
			for b.Loop() {
				r.Record(req, a)
			}
		})
	}
}
