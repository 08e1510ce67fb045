package subjects

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// show returns subjects as "rule text hits", in whole hits.
func show(list []Subject) string {
	var texts []string
	for _, s := range list {
		texts = append(texts, fmt.Sprintf("%s %s %d", s.Rule, s.Subject, s.Hits))
	}
	return strings.Join(texts, "; ")
}

// ask records hits of a subject on a rule of the set.
func ask(t *Tracker, set *rules.Set, rule int, subject string, amount uint64, denied bool) {
	q := newQuestion(set, rule)
	q.set([]byte(subject), amount, denied)
	t.Record(&q.req, &q.a)
}

// Windows slide: a part of the period before counts, too.
func TestWindows(t *testing.T) {
	t.Parallel()
	tracker, set := seededTracker(t, 4, 1, twoRules)
	for _, step := range []struct {
		at     time.Duration // from noon on
		a, b   uint64        // hits
		window Window
		want   string
	}{
		{at: 0, a: 100, want: "d.user user=a 100"},
		{at: 30 * time.Second, b: 8, want: "d.user user=a 100; d.user user=b 8"},
		{at: 60 * time.Second, want: "d.user user=a 100; d.user user=b 8"},
		{at: 75 * time.Second, want: "d.user user=a 75; d.user user=b 6"},
		{at: 90 * time.Second, b: 100, want: "d.user user=b 104; d.user user=a 50"},
		{at: 119 * time.Second, want: "d.user user=b 100; d.user user=a 2"},
		{at: 120 * time.Second, want: "d.user user=b 100"},
		{at: 150 * time.Second, want: "d.user user=b 50"},
		{at: 180 * time.Second, want: ""},
		{at: 180 * time.Second, window: Hour, want: "d.user user=b 108; d.user user=a 100"},
		{at: 75 * time.Minute, a: 5, window: Hour, want: "d.user user=b 81; d.user user=a 80"},
		{at: 70 * time.Minute, window: Hour, want: "d.user user=b 90; d.user user=a 88"}, // The clock goes back.
		{at: 120 * time.Minute, window: Hour, want: "d.user user=a 5"},
		{at: 125 * time.Minute, a: 1, want: "d.user user=a 1"},
		{at: 126 * time.Minute, window: Day, want: "d.user user=b 108; d.user user=a 106"},
		{at: 99 * time.Hour, want: ""}, // The clock jumps.
		{at: 99 * time.Hour, window: Hour, want: ""},
		{at: 99 * time.Hour, b: 2, window: Hour, want: "d.user user=b 2"},
	} {
		now := noon.Add(step.at)
		tracker.advance(now)
		if step.a > 0 {
			ask(tracker, set, 0, "a", step.a, false)
		}
		if step.b > 0 {
			ask(tracker, set, 0, "b", step.b, false)
		}
		if got := show(tracker.Top(now, Query{Window: step.window, Limit: 10})); got != step.want {
			t.Errorf("after %v: got %q, want %q", step.at, got, step.want)
		}
	}
}

// Rates are over the time that was counted, and not over a minute that has not passed yet.
func TestPerSecond(t *testing.T) {
	t.Parallel()
	tracker, set := seededTracker(t, 4, 1, twoRules)
	tracker.advance(noon)
	for second := range 30 {
		ask(tracker, set, 0, "a", 7, false)
		tracker.advance(noon.Add(time.Duration(second) * time.Second))
	}
	top := tracker.Top(noon.Add(30*time.Second), Query{Limit: 1})
	if len(top) != 1 || top[0].PerSecond != 7 {
		t.Errorf("got %+v, want 7 per second", top)
	}
}

// The first hits of a rule are a rate over the time since the start, in which it had no others, and over at least ten
// seconds. A rule whose earlier decisions were not counted has a rate since it is.
func TestPerSecondAfterStart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		startedAgo time.Duration
		missedHits bool
		want       float64
	}{
		{time.Second, false, 3},
		{20 * time.Second, false, 1.5},
		{time.Hour, false, 0.5},
		{time.Hour, true, 3},
	} {
		tracker, set := seededTracker(t, 1, 1, twoRules)
		now := noon.Add(tt.startedAgo)
		tracker.advance(noon)
		tracker.advance(now.Add(-time.Millisecond))
		ask(tracker, set, 0, "a", 30, false)
		for _, r := range tracker.rules {
			r.missedHits = tt.missedHits
		}
		tracker.advance(now)
		if top := tracker.Top(now, Query{Limit: 1}); len(top) != 1 || top[0].PerSecond != tt.want {
			t.Errorf("%v after the start: got %+v, want %g per second", tt.startedAgo, top, tt.want)
		}
	}
}

const manyRules = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: minute, requests_per_unit: 1}
    descriptors:
      - key: path
        value: /api/*
        share_threshold: true
        rate_limit: {unit: minute, requests_per_unit: 1}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: upload
    charge: path
    rate_limit: {unit: minute, requests_per_unit: 1}
    descriptors:
      - key: size
        rate_limit: {unit: minute, requests_per_unit: 100}
  - key: held
    rate_limit: {unit: day, requests_per_unit: 10, hold: 30s, hold_id: id}
  - key: parallel
    rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 30s, hold_id: id}
`

const listRules = `
domain: list
rules:
  - {match: {path: /pay*}, per: [ip], rate_limit: {unit: minute, requests_per_unit: 1}}
  - {match: {m: GET}, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {match: {}, rate_limit: {unit: minute, requests_per_unit: 1}}
`

const wordRules = "schema: {user: {children: {'*': {limits: [15, 30, 60], children: {trade: {limits: [5, 10, " +
	"15]}}}}}}\n"

// Real decisions: what counts as a hit and as denied, and how subjects are shown.
func TestDecisions(t *testing.T) {
	t.Parallel()
	limit := limiter.Descriptor{HasLimit: true, Limit: rules.Rate{Requests: 1, Unit: rules.UnitDay, UnitMultiplier: 1}}
	refund, look, nine := limiter.Descriptor{IsRefund: true}, limiter.Descriptor{HasAmount: true},
		limiter.Descriptor{HasAmount: true, Amount: 9}
	for _, tt := range []struct {
		name, domain, asked string
		like                limiter.Descriptor // the fields of each descriptor besides its entries.
		cfg                 limiter.Config
		hits, denied        string
	}{
		{
			name: "hits and denials", domain: "d", asked: "ip=a ip=a ip=a ip=b", hits: "d.ip ip=a 3; d.ip ip=b 1",
			denied: "d.ip ip=a 2",
		},
		{
			name: "shared counter", domain: "d", asked: "ip=a,path=/api/1 ip=a,path=/api/2",
			hits: `d.ip.path_/api/* ip=a,path="/api/*" 2`, denied: `d.ip.path_/api/* ip=a,path="/api/*" 1`,
		},
		{name: "shadow mode of a rule", domain: "d", asked: "shadow=a shadow=a", hits: "d.shadow shadow=a 2"},
		{
			name: "shadow mode of all", domain: "d", cfg: limiter.Config{ShadowMode: true}, asked: "ip=a ip=a",
			hits: "d.ip ip=a 2",
		},
		{name: "refunds", domain: "d", like: refund, asked: "ip=a"},
		{name: "looks", domain: "d", like: look, asked: "ip=a"},
		{
			name: "limits on a path", domain: "d", asked: "upload=a,size=1 upload=a,size=2",
			hits:   "d.upload upload=a 2; d.upload.size upload=a,size=1 1; d.upload.size upload=a,size=2 1",
			denied: "d.upload upload=a 1",
		},
		{
			name: "limit of the request", domain: "d", like: limit, asked: "x=a x=a", hits: "(request) x=a 2",
			denied: "(request) x=a 1",
		},
		{name: "no rule", domain: "d", asked: "none=1"},
		{name: "no domain", domain: "nowhere", asked: "ip=1"},
		{
			name: "ordered list", domain: "list", asked: "path=/pay/1,ip=a,x=1 path=/pay/2,ip=a m=GET,x=2 y=1",
			hits: "list.path_/pay* ip=a 2; list.default (all) 1; list.m_GET m=GET 1", denied: "list.path_/pay* ip=a 1",
		},
		{
			name: "tree of limits", domain: "test", asked: "user=alex,trade=",
			hits: "test.user.* user=alex 1; test.user.*.trade user=alex,trade 1",
		},
		{
			name: "reservations", domain: "d", like: nine, asked: "held=a,id=1 held=a,id=1 held=b,id=2 held=b,id=3 held=c",
			hits: "d.held held=b 9; d.held held=c 9", denied: "d.held held=b 9",
		},
		{
			name: "settlements", domain: "d", like: nine,
			asked: "held=a,id=1 held=a,id=1,hold=settle held=a,id=1,hold=settle held=b,id=2,hold=settle",
			hits:  "d.held held=a 9; d.held held=b 9",
		},
		{name: "releases", domain: "d", like: nine, asked: "held=a,id=1 held=a,id=1,hold=release"},
		{
			name: "concurrency", domain: "d", asked: "parallel=a,id=1 parallel=a,id=2 parallel=a,id=1,hold=release",
			hits: "d.parallel parallel=a 2", denied: "d.parallel parallel=a 1",
		},
		{name: "odd texts", domain: "d", asked: "ip=\x1b[31m", hits: `d.ip ip="\x1b[31m" 1`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			set := limitertest.Load(t, []filerules.File{
				{Name: "d.yaml", Data: []byte(manyRules)},
				{Name: "list.yaml", Data: []byte(listRules)},
				{Name: "test.yaml", Data: []byte(wordRules)},
			})
			tracker := New(100)
			tracker.UseRules(set)
			tracker.advance(noon)
			store := limitertest.Store(t, memory.Config{})
			cfg := tt.cfg
			cfg.Backend, cfg.Recorders = store, []limiter.Recorder{tracker}
			l := limiter.New(cfg)
			l.UseRules(set)
			req := &limiter.Request{Domain: []byte(tt.domain), Now: noon}
			for word := range strings.FieldsSeq(tt.asked) {
				d := tt.like
				for pair := range strings.SplitSeq(word, ",") {
					key, value, _ := strings.Cut(pair, "=")
					d.Entries = append(d.Entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
				}
				req.Descriptors = append(req.Descriptors, d)
			}
			if err := l.Check(t.Context(), req, new(limiter.Answer)); err != nil {
				t.Fatal(err)
			}
			for kind, want := range []string{tt.hits, tt.denied} {
				if got := show(tracker.Top(noon, Query{Kind: Kind(kind), Limit: 10})); got != want {
					t.Errorf("kind %d:\n got %s\nwant %s", kind, got, want)
				}
			}
		})
	}
}

// A query chooses rules, and limits the subjects.
func TestQuery(t *testing.T) {
	t.Parallel()
	tracker, set := seededTracker(t, 4, 1, twoRules)
	tracker.advance(noon)
	ask(tracker, set, 0, "a", 3, true)
	ask(tracker, set, 0, "b", 2, false)
	ask(tracker, set, 1, "c", 1, false)
	for _, tt := range []struct {
		q    Query
		want string
	}{
		{Query{Limit: 10}, "d.user user=a 3; d.user user=b 2; d.ip ip=c 1"},
		{Query{Limit: 2}, "d.user user=a 3; d.user user=b 2"},
		{Query{Limit: 0}, ""},
		{Query{Limit: -1}, ""},
		{Query{Limit: 10, Kind: DeniedHits}, "d.user user=a 3"},
		{Query{Limit: 10, Window: Hour}, "d.user user=a 3; d.user user=b 2; d.ip ip=c 1"},
		{Query{Limit: 10, Domain: "d"}, "d.user user=a 3; d.user user=b 2; d.ip ip=c 1"},
		{Query{Limit: 10, Domain: "d", Rule: "d.ip"}, "d.ip ip=c 1"},
		{Query{Limit: 10, Domain: "e"}, ""},
		{Query{Limit: 10, Domain: "d", Rule: "d"}, ""},
	} {
		if got := show(tracker.Top(noon, tt.q)); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.q, got, tt.want)
		}
	}
}

// Rules that keep their name keep their subjects over a reload. Others lose them and make room.
func TestReload(t *testing.T) {
	t.Parallel()
	tracker, old := seededTracker(t, 2, 1, twoRules)
	tracker.advance(noon)
	ask(tracker, old, 0, "a", 1, false)
	ask(tracker, old, 1, "b", 1, false)
	fresh := limitertest.Rules(t, `
domain: d
descriptors:
  - key: new
    rate_limit: {unit: minute, requests_per_unit: 10}
  - key: ip
    rate_limit: {unit: hour, requests_per_unit: 10}
`)
	tracker.UseRules(fresh)
	ask(tracker, fresh, 0, "c", 3, false)
	ask(tracker, fresh, 1, "b", 1, false)
	ask(tracker, old, 0, "a", 1, false) // A request that began before the reload.
	if got, want := show(tracker.Top(noon, Query{Limit: 10})), "d.new new=c 3; d.ip ip=b 2"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A rule with little traffic is counted exactly beside a rule that is sampled.
func TestQuietRuleBesideBusyRule(t *testing.T) {
	t.Parallel()
	tracker, set := seededTracker(t, 4, 1, twoRules)
	random := rand.New(rand.NewPCG(1, 3))
	now := noon
	for range 20 * 4 {
		tracker.advance(now)
		now = now.Add(samplingInterval)
		for i := range 10_000 {
			ask(tracker, set, 0, fmt.Sprint(random.IntN(1000)), 1, false)
			if i%1000 == 0 {
				ask(tracker, set, 1, fmt.Sprint("quiet-", i/1000%2), 1, false)
			}
		}
	}
	want := "d.ip ip=quiet-0 400; d.ip ip=quiet-1 400"
	if got := show(tracker.Top(now, Query{Domain: "d", Rule: "d.ip", Limit: 10})); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if w := tracker.rules[metrics.RuleName{Domain: "d", Rule: "d.user"}].samplers[Hits].weight; w < 5 || w > 10 {
		t.Errorf("a sample of the busy rule stands for %d decisions", w)
	}
}

// With more rules than rankings the busiest rules have them in the end, and no memory is added.
func TestMoreRulesThanRankings(t *testing.T) {
	t.Parallel()
	text := "domain: d\ndescriptors:\n"
	for i := range 100 {
		text += fmt.Sprintf("  - {key: k%d, rate_limit: {unit: minute, requests_per_unit: 10}}\n", i)
	}
	tracker, set := seededTracker(t, 3, 1, text)
	now := noon
	for range 400 {
		tracker.advance(now)
		now = now.Add(samplingInterval)
		for rule := range 100 {
			n := 1
			if rule >= 97 {
				n = 20
			}
			for range n {
				ask(tracker, set, rule, "x", 1, false)
			}
		}
	}
	top := tracker.Top(now, Query{Limit: 100})
	if len(top) != 3 || !strings.HasPrefix(top[0].Rule, "d.k9") || !strings.HasPrefix(top[2].Rule, "d.k9") ||
		top[2].Hits < 1000 {
		t.Errorf("got %s", show(top))
	}
	if n := tracker.ranked.Load(); n != 3 {
		t.Errorf("%d rules have rankings", n)
	}
}

// A sudden burst is sampled less while it lasts, and what is counted stays about true.
func TestBurst(t *testing.T) {
	t.Parallel()
	tracker, set := seededTracker(t, 4, 1, twoRules)
	tracker.advance(noon)
	const decisions = 1_000_000
	q := newQuestion(set, 0)
	for i := range decisions {
		q.set(fmt.Append(nil, i%10), 1, false)
		tracker.Record(&q.req, &q.a)
	}
	if n := tracker.samples[Hits].Load(); n > 4*maxSamples {
		t.Errorf("%d samples in an interval", n)
	}
	var sum uint64
	for _, s := range tracker.Top(noon, Query{Limit: 10}) {
		sum += s.Hits
	}
	if float64(sum) < 0.8*decisions || float64(sum) > 1.2*decisions {
		t.Errorf("%d hits are estimated, there were %d", sum, decisions)
	}
	for range 40 {
		tracker.advance(noon)
	}
	if w := tracker.rules[metrics.RuleName{Domain: "d", Rule: "d.user"}].samplers[Hits].weight; w != 1 {
		t.Errorf("a sample stands for %d decisions after 10 s without any", w)
	}
}

// Subjects that callers invent, each with one hit, do not push out the subjects with a share of the hits.
func TestFloodOfSubjects(t *testing.T) {
	t.Parallel()
	tracker, set := seededTracker(t, 4, 1, twoRules)
	now := noon
	q := newQuestion(set, 0)
	for i := range 1_000_000 {
		if i%5000 == 0 {
			tracker.advance(now)
			now = now.Add(samplingInterval)
		}
		value := fmt.Appendf(nil, "invented-%d", i)
		if i%100 < 5 {
			value = fmt.Appendf(nil, "real-%d", i%100)
		}
		q.set(value, 1, true)
		tracker.Record(&q.req, &q.a)
	}
	for _, kind := range []Kind{Hits, DeniedHits} {
		for _, s := range tracker.Top(now, Query{Kind: kind, Window: Hour, Limit: 5}) {
			if !strings.HasPrefix(s.Subject, "user=real-") || s.Hits < 8_000 || s.Hits > 12_000 {
				t.Errorf("kind %d: got %s", kind, show([]Subject{s}))
			}
		}
	}
}

// Samples are shared out evenly among the rules that need them.
func TestShareOut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		decisions []float64
		want      float64
	}{
		{nil, float64(maxSamples)},
		{[]float64{10, float64(maxSamples) - 10}, float64(maxSamples)},
		{[]float64{1e9}, float64(maxSamples)},
		{[]float64{1e9, 1e6}, float64(maxSamples) / 2},
		{[]float64{1e9, 100, 1e6}, (float64(maxSamples) - 100) / 2},
	} {
		var list []activity
		for _, n := range tt.decisions {
			list = append(list, activity{nil, n})
		}
		if got := shareOut(list); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.decisions, got, tt.want)
		}
	}
}

func TestConcurrent(t *testing.T) {
	t.Parallel()
	tracker, set := seededTracker(t, 1, 1, twoRules)
	tracker.random = rand.Uint64
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := range 5000 {
				ask(tracker, set, (worker+i)%2, fmt.Sprint(i%100), 1, i%3 == 0)
				switch {
				case i%500 == 0:
					tracker.UseRules(set)
				case i%100 == 0:
					tracker.Top(noon, Query{Limit: 5})
				case i%50 == 0 && worker == 0: // Run is one goroutine.
					tracker.advance(noon.Add(time.Duration(i) * time.Second))
				}
			}
		})
	}
	wg.Wait()
	if n := tracker.ranked.Load(); n > 1 {
		t.Errorf("%d rules have rankings", n)
	}
}

// Run moves the windows until its context ends.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracker, set := seededTracker(t, 4, 1, twoRules)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- tracker.Run(ctx) }()
		synctest.Wait()
		ask(tracker, set, 0, "a", 60, false)
		time.Sleep(90 * time.Second)
		synctest.Wait()
		if got := show(tracker.Top(time.Now(), Query{Limit: 10})); got != "d.user user=a 30" {
			t.Errorf("got %q", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
