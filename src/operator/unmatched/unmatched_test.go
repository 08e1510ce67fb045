package unmatched

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

const text = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 9, name: user}
    descriptors:
      - {key: path, value: /pay, rate_limit: {unit: minute, requests_per_unit: 9}}
  - key: above
    descriptors: [{key: below, rate_limit: {unit: minute, requests_per_unit: 9}}]
  - key: none
  - key: free
    rate_limit: {unlimited: true}
  - key: staff
    rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: user}]}
`

// The search for a reason has the budget of an explanation.
func TestReasonHasABudget(t *testing.T) {
	t.Parallel()
	list := []byte("domain: d\nrules:\n")
	for i := range 200 {
		list = fmt.Appendf(list, "- {match: {path: \"*%03db\"}, rate_limit: {unit: hour, requests_per_unit: 1}}\n", i)
	}
	set := limitertest.Rules(t, string(list))
	value := bytes.Repeat([]byte("a"), 5<<20)
	const want = "the values take too long to compare with all rules"
	if got, _ := reason(set.Domain([]byte("d")), []rules.Entry{{Key: []byte("path"), Value: value}}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// fixture is a Tracker of a limiter over memory.
type fixture struct {
	*Tracker
	*limiter.Limiter
	samples []Sample
}

func start(t *testing.T, cfg Config, texts ...string) *fixture {
	t.Helper()
	f := &fixture{}
	cfg.OnSample = func(s Sample) { f.samples = append(f.samples, s) }
	f.Tracker = New(cfg)
	store := limitertest.Store(t, memory.Config{})
	f.Limiter = limiter.New(limiter.Config{Backend: store, Recorders: []limiter.Recorder{f.Tracker}})
	f.use(t, texts...)
	return f
}

func (f *fixture) use(t *testing.T, texts ...string) {
	t.Helper()
	set := load(t, texts...)
	f.Tracker.UseRules(set)
	f.Limiter.UseRules(set)
}

func load(t *testing.T, texts ...string) *rules.Set {
	t.Helper()
	var files []filerules.File
	for i, text := range texts {
		files = append(files, filerules.File{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(text)})
	}
	return limitertest.Load(t, files)
}

// parse returns a request whose descriptors are the words of asked: key=value,key=value.
func parse(domain, asked string) *limiter.Request {
	req := &limiter.Request{Domain: []byte(domain)}
	for word := range strings.FieldsSeq(asked) {
		var d limiter.Descriptor
		for pair := range strings.SplitSeq(word, ",") {
			key, value, _ := strings.Cut(pair, "=")
			d.Entries = append(d.Entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

func (f *fixture) ask(t *testing.T, domain, asked string) {
	t.Helper()
	if err := f.Check(t.Context(), parse(domain, asked), new(limiter.Answer)); err != nil {
		t.Fatal(err)
	}
}

// list returns List as text.
func (f *fixture) list() string {
	var texts []string
	for _, x := range f.List() {
		texts = append(texts, fmt.Sprintf("%s [%s] %d %s", x.Domain, x.Keys, x.Descriptors, x.Descriptor))
	}
	return strings.Join(texts, "; ")
}

func TestUnmatched(t *testing.T) {
	for _, tt := range []struct{ domain, asked, want string }{
		{"edge", "user=secret", "no rules have the domain"},
		{"dd", "user=secret", "no rules have the domain"}, // too short for a guess
		{"shopp", "user=secret", "no rules have the domain (shop)"},
		{"d", "user=secret", ""},
		{"d", "free=secret", ""},
		{"d", "ip=secret", "ip: no rule has the key of entry 1 of 1 in this place"},
		{"d", "usr=secret", "usr: no rule has the key of entry 1 of 1 in this place (user)"},
		{"d", "path=/pay,user=secret", "path,user: no rule has the key of entry 1 of 2 in this place"},
		{"d", "user=a,path=secret", "user,path: no rule has the value of entry 2 of 2"},
		{"d", "user=a,path=/pya", "user,path: no rule has the value of entry 2 of 2"}, // values of rules may be secret
		{"d", "user=a,path=/pay,x=secret", "user,path,x: the rules end at entry 2 of 3"},
		{"d", "above=secret", "above: the rules below entry 1 need more entries"},
		{"d", "none=secret", "none: the rule for entry 1 has no rate_limit"},
		{"d", "user=secret staff=a", "user: another rule of the request replaces the rule"},
		{
			"d", "ip=secret user=a x=secret",
			"ip: no rule has the key of entry 1 of 1 in this place; x: no rule has the key of entry 1 of 1 in this place",
		},
	} {
		f := start(t, Config{}, text, "domain: shop\n")
		f.ask(t, tt.domain, tt.asked)
		var got []string
		for i, s := range f.samples {
			line := s.Why
			if s.IsUnknownDomain != (s.Keys == "") {
				t.Errorf("%s: %s: %+v", tt.domain, tt.asked, s)
			}
			if !s.IsUnknownDomain {
				line = s.Keys + ": " + line
			}
			if s.DidYouMean != "" {
				line += " (" + s.DidYouMean + ")"
			}
			got = append(got, line)
			if isFirst := i == 0 && s.Why != replacedReason; s.IsFirst != isFirst {
				t.Errorf("%s: %s: first %t", tt.domain, tt.asked, s.IsFirst)
			}
		}
		if got := strings.Join(got, "; "); got != tt.want {
			t.Errorf("%s: %s:\n got %s\nwant %s", tt.domain, tt.asked, got, tt.want)
		}
	}
}

// Each traffic is sampled once a second, all its descriptors are counted, and a domain has one first sample a day.
func TestSamples(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, Config{}, text)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- f.Run(ctx) }()
		synctest.Wait()
		ask := func(n int) {
			f.samples = nil
			for i := range n {
				f.ask(t, "shopp", fmt.Sprintf("user=%d", i))
				f.ask(t, "d", fmt.Sprintf("ip=%d", i))
				f.ask(t, "d", fmt.Sprintf("usr=%d", i))
			}
			slices.SortFunc(f.samples, func(a, b Sample) int { return strings.Compare(a.Domain+a.Keys, b.Domain+b.Keys) })
		}
		said := func() (texts []string) {
			for _, s := range f.samples {
				texts = append(texts, fmt.Sprintf("%s %s %t %d", s.Domain, s.Keys, s.IsFirst, s.Skipped))
			}
			return texts
		}
		ask(10)
		if got, want := said(), []string{"d ip true 0", "d usr false 0", "shopp  true 0"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		time.Sleep(interval)
		synctest.Wait()
		ask(5)
		if got, want := said(), []string{"d ip false 9", "d usr false 9", "shopp  false 9"}; !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
		if got, want := f.list(), "shopp [] 15 user=0; d [ip] 15 ip=0; d [usr] 15 usr=0"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		time.Sleep(keepFor + interval)
		if got := f.list(); got != "" {
			t.Errorf("after an hour: %s", got)
		}
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		ask(1)
		if got, want := said(), []string{"d ip true 0", "d usr false 0", "shopp  true 0"}; !slices.Equal(got, want) {
			t.Errorf("a day later: got %q, want %q", got, want)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Rules that change make the tracker forget what they may apply to.
func TestUseRules(t *testing.T) {
	t.Parallel()
	f := start(t, Config{}, text)
	for _, domain := range []string{"shopp", "edge", "d"} {
		f.ask(t, domain, "usr=x")
	}
	f.use(t, text, "domain: shopp\n")
	if got, want := f.list(), "edge [] 1 usr=x"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// A decision by rules that are not in force any more says nothing about those that are.
	f.Tracker.UseRules(load(t, text))
	f.ask(t, "other", "usr=x")
	if got, want := f.list(), "edge [] 1 usr=x"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What callers invent is bounded: what is listed, its texts, and the first samples. What is frequent stays.
func TestBounds(t *testing.T) {
	t.Parallel()
	f := start(t, Config{}, text)
	for range 100 {
		f.ask(t, "shopp", "user=x")
	}
	long := strings.Repeat("x", 10_000)
	for i := range 1000 {
		f.beginInterval()
		f.ask(t, fmt.Sprintf("%d-%s", i, long), "user="+long)
		f.ask(t, "d", fmt.Sprintf("%d=%s,%s=x", i, long, long))
	}
	list := f.List()
	if got, want := len(list), maxTraffic+maxTrafficPerDomain; got != want {
		t.Errorf("%d are listed, want %d", got, want)
	}
	if !slices.ContainsFunc(list, func(x Traffic) bool { return x.Domain == "shopp" && x.Descriptors >= 100 }) {
		t.Error("what is frequent is gone")
	}
	for _, x := range list {
		if n := len(x.Domain) + len(x.Keys) + len(x.Descriptor) + len(x.Why) + len(x.DidYouMean); n > 2048 {
			t.Errorf("%d bytes of texts: %+v", n, x)
		}
	}
	firsts := 0
	for _, s := range f.samples {
		if s.IsFirst {
			firsts++
		}
	}
	if want := maxFirstsPerDay + 1; firsts != want { // one for d
		t.Errorf("%d first samples, want %d", firsts, want)
	}
	f.beginInterval()
	f.samples = nil
	for i := range 100 {
		f.ask(t, fmt.Sprint("invented-", i), "user=x")
	}
	if n := len(f.samples); n > samplesPerInterval {
		t.Errorf("%d samples in an interval", n)
	}
}

func TestHidesValues(t *testing.T) {
	t.Parallel()
	f := start(t, Config{HidesValues: true}, text)
	f.ask(t, "d", "usr=secret,path=secret")
	f.ask(t, "edge", "usr=secret")
	if got, want := f.list(), "edge [] 1 usr; d [usr,path] 1 usr,path"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// Only samples allocate.
func TestAllocations(t *testing.T) {
	f := start(t, Config{}, text)
	for _, tt := range []struct{ domain, asked string }{{"d", "user=a"}, {"d", "usr=a,b=c usr=b"}, {"edge", "usr=a"}} {
		req, a := parse(tt.domain, tt.asked), new(limiter.Answer)
		if err := f.Check(t.Context(), req, a); err != nil {
			t.Fatal(err)
		}
		if n := testing.AllocsPerRun(100, func() { f.Record(req, a) }); n != 0 {
			t.Errorf("%s: %s: %.0f allocations", tt.domain, tt.asked, n)
		}
	}
}

// BenchmarkRecord is what a decision costs beside the path of its request.
func BenchmarkRecord(b *testing.B) {
	for _, tt := range []struct{ name, domain, asked string }{
		{"limited", "d", "user=a"},
		{"unmatched", "d", "usr=a"},
		{"unmatched,entries=4", "d", "usr=a,path=b,ip=c,method=d"},
		{"unknown domain", "edge", "usr=a"},
	} {
		b.Run(tt.name, func(b *testing.B) {
			set := limitertest.Rules(b, text)
			store := limitertest.Store(b, memory.Config{})
			l, tracker := limiter.New(limiter.Config{Backend: store}), New(Config{OnSample: func(Sample) {}})
			l.UseRules(set)
			tracker.UseRules(set)
			req, a := parse(tt.domain, tt.asked), new(limiter.Answer)
			if err := l.Check(b.Context(), req, a); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				tracker.Record(req, a)
			}
		})
	}
}
