package top

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/operator"
	"ratelimit/src/operator/output"
	"ratelimit/src/quota"
)

// fakeService is a service with fixed content.
type fakeService struct {
	state operator.State
	rates operator.Rates
	top   map[string][]operator.Subject // the subjects of each kind.

	mu      sync.Mutex
	queries []operator.TopQuery
}

func (s *fakeService) State() operator.State { return s.state }

// Rates returns the rules whose name contains search, the busiest first.
func (s *fakeService) Rates(q operator.RatesQuery) operator.Rates {
	r := s.rates
	r.Rules = slices.DeleteFunc(slices.Clone(r.Rules),
		func(r operator.RuleRates) bool { return !strings.Contains(r.Rule, q.Search) })
	r.MatchingRules = len(r.Rules)
	r.Rules = r.Rules[:min(q.Limit, len(r.Rules))]
	return r
}

func (s *fakeService) Top(q operator.TopQuery) []operator.Subject {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries = append(s.queries, q)
	return s.top[q.Kind]
}

// figures returns the figures of s, which has no others.
func (s *fakeService) figures() *operator.Figures {
	return &operator.Figures{State: s.State, Rates: s.Rates, Top: s.Top}
}

// start serves s and returns its address.
func (s *fakeService) start(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(admin.DebugPages{Figures: s.figures()}.Handler())
	t.Cleanup(server.Close)
	return server.URL
}

func ruleRates(domain, rule, limit string, admitted, denied float64) operator.RuleRates {
	return operator.RuleRates{
		Domain: domain, Rule: rule, Limit: limit,
		PerSecond: operator.PerSecond{Admitted: admitted, Denied: denied},
	}
}

// example is a service with two domains and three rules.
func example() *fakeService {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	state := operator.State{
		Version: "v1.2.3", Now: now, StartedAt: now.Add(-27 * time.Hour), Ready: true, Store: "redis",
		StoreSince: now.Add(-90 * time.Second), Replicas: 2,
	}
	state.Rules = operator.LoadedRules{Domains: 2, Rules: 3, Files: 1, LoadedAt: now.Add(-5 * time.Minute)}
	rates := operator.Rates{Total: operator.PerSecond{
		Admitted: 1234.5, Denied: 12, Near: 3.25, Shadow: 0.01,
		Fallback: 2e6,
	}, Requests: operator.RequestsPerSecond{Admitted: 806, Denied: 6}}
	rates.Domains = []operator.DomainRates{
		{Domain: "accounts", PerSecond: operator.PerSecond{Admitted: 1200, Denied: 2}},
		{Domain: "shop", PerSecond: operator.PerSecond{Admitted: 34.5, Denied: 10}},
	}
	rates.Rules = []operator.RuleRates{
		ruleRates("accounts", "accounts.login", "3 per 5 minutes", 1200, 2),
		ruleRates("shop", "shop.path_/pay", "10 per second", 34.5, 10),
		ruleRates("shop", "shop.ip", "100 per minute", 0, 0),
	}
	return &fakeService{state: state, rates: rates, top: map[string][]operator.Subject{
		operator.TopDenied: {{
			Domain: "shop", Rule: "shop.path_/pay", Subject: "path=/pay,user=eve", PerSecond: 9.5,
			Hits: 570,
		}},
		operator.TopHot: {
			{Domain: "accounts", Rule: "accounts.login", Subject: "login=alex", PerSecond: 800, Hits: 48000},
			{Domain: "shop", Rule: "shop.path_/pay", Subject: "path=/pay,user=eve", PerSecond: 10, Hits: 600},
		},
	}}
}

// call runs `ratelimit top` with the address and args.
func call(t *testing.T, address string, args ...string) (out string, err error) {
	t.Helper()
	var b bytes.Buffer
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	cmd.SetArgs(append(args, "--address", address))
	err = cmd.ExecuteContext(t.Context())
	return strings.ReplaceAll(b.String(), strings.TrimPrefix(address, "http://"), "ADDRESS"), err
}

func TestOnce(t *testing.T) {
	t.Parallel()
	got, err := call(t, example().start(t))
	want := `ADDRESS: ready; redis (answering for 1m); 3 rules in 2 domains, loaded 5m ago; 2 replicas; up 27h; version v1.2.3
812 requests/s: 806 admitted, 6.0 denied, 0 failed; the tables count decisions, one for each limit of a request

DOMAIN    ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s  UNMATCHED/s
(all)           1234        12     3.2      <0.1        2.0M         0            0
accounts        1200       2.0       0         0           0         0            0
shop              34        10       0         0           0         0            0

RULE            ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s  LIMIT
accounts.login        1200       2.0       0         0           0         0  3 per 5 minutes
shop.path_/pay          34        10       0         0           0         0  10 per second
shop.ip                  0         0       0         0           0         0  100 per minute

MOST DENIED, LAST MINUTE  PER SECOND  HITS  RULE
path=/pay,user=eve               9.5   570  shop.path_/pay

HOTTEST, LAST MINUTE  PER SECOND   HITS  RULE
login=alex                   800  48000  accounts.login
path=/pay,user=eve            10    600  shop.path_/pay
`
	if got != want || err != nil {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

// Traffic without a rule has a table of its own while there is some.
func TestUnmatched(t *testing.T) {
	t.Parallel()
	s := example()
	s.rates.Domains[1].Unmatched = 3
	s.rates.Unmatched = []operator.Unmatched{
		{
			Domain: "shopp", IsUnknownDomain: true, Why: "no rules have the domain", DidYouMean: "shop",
			Descriptor: "user=x", Descriptors: 10,
		},
		{Domain: "shop", Keys: "usr", Why: "no rule has the key", Descriptor: "usr=x", Descriptors: 1200},
	}
	address := s.start(t)
	for args, want := range map[string]string{
		"": `
shop              34        10       0         0           0         0          3.0

UNMATCHED, LAST HOUR  DESCRIPTORS  DOMAIN  WHY
user=x                         10  shopp   no rules have the domain; did you mean shop?
usr=x                        1200  shop    no rule has the key

RULE `,
		"--domain shop": `
UNMATCHED, LAST HOUR  DESCRIPTORS  DOMAIN  WHY
usr=x                        1200  shop    no rule has the key
`,
	} {
		if got, err := call(t, address, strings.Fields(args)...); !strings.Contains(got, want) || err != nil {
			t.Errorf("%s: %v\n%s\nwant%s", args, err, got, want)
		}
	}
	shown := &snapshot{State: s.state, Rates: s.rates}
	if lines := shown.screen(200, 30, 0, nil); len(lines) > 30 || !slices.Contains(lines, "usr=x                        1200  shop    no rule has the key") {
		t.Errorf("on a screen of 30 lines: %q", lines)
	}
}

// Quotas have a line while proxies have some.
func TestQuotas(t *testing.T) {
	t.Parallel()
	s := example()
	s.state.Quotas = &quota.Totals{Proxies: 3, Buckets: 2, ShortBuckets: 1, DemandPerSecond: 320.5, Units: 110}
	want := "\nquotas: 3 proxies, 2 buckets, 1 of them short, 320 units a second asked for, 110 assigned\n812 requests/s: "
	if got, err := call(t, s.start(t)); !strings.Contains(got, want) || err != nil {
		t.Errorf("%v\n%s\nwant%s", err, got, want)
	}
	shown := &snapshot{State: s.state, Rates: s.rates}
	if lines := shown.screen(200, 30, 0, nil); len(lines) > 30 || !strings.HasPrefix(lines[1], "quotas: ") {
		t.Errorf("on a screen of 30 lines: %q", lines)
	}
}

// An operator sees that Redis is down, though the process stays ready.
func TestStoreThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		store     string
		component operator.Component
		want      string // is the first words of the state and the line below it.
	}{
		{
			"redis",
			operator.Component{Name: "redis_pool", Note: "1 server without an answer, only probed"},
			"redis (in this state for 5s); \nredis_pool: 1 server without an answer, only probed\n",
		},
		{
			"redis",
			operator.Component{Name: "redis_pool", NotReadyReason: "no answer"},
			"redis (not answering for 5s); \nredis_pool: no answer\n",
		},
		{
			"memcached",
			operator.Component{Name: "memcache", Note: "slow"},
			"memcached (in this state for 5s); \nmemcache: slow\n",
		},
		{"redis", operator.Component{Name: "counting", Note: "degraded"}, "redis (answering for 5s); \ncounting: degraded\n"},
		{"redis", operator.Component{Name: "rules", Note: "2 domains"}, "redis (answering for 5s); \n0 requests/s: "},
	} {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		s := &fakeService{state: operator.State{
			Store: tt.store, Now: now, StoreSince: now.Add(-5 * time.Second),
			Components: []operator.Component{{Name: "process"}, tt.component},
		}}
		got, err := call(t, s.start(t))
		state, lines, _ := strings.Cut(got, "0 rules")
		_, state, _ = strings.Cut(state, "READY; ")
		_, lines, _ = strings.Cut(lines, "\n")
		if err != nil || !strings.HasPrefix(state+"\n"+lines, tt.want) {
			t.Errorf("%+v: %v\n%s", tt.component, err, got)
		}
	}
}

// An outage has one line, instead of the notes of components.
func TestOutage(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := &fakeService{state: operator.State{
		Store: "redis", Now: now, StoreSince: now.Add(-5 * time.Second), Ready: true,
		Outages:        []operator.Outage{{Store: "Redis", SilentServers: 1, Servers: 1, Since: now.Add(-5 * time.Second)}},
		OnStoreFailure: []string{"error"},
		Components: []operator.Component{
			{Name: "redis_pool", Note: "1 server without an answer, only probed"},
			{Name: "counting", Note: "degraded"},
		},
	}}
	s.rates.Requests.Failed = 70
	got, err := call(t, s.start(t))
	_, lines, _ := strings.Cut(got, "\n")
	want := "OUTAGE: Redis has not answered since " + now.Add(-5*time.Second).Format(time.TimeOnly) +
		"; 100 % of requests get an error (on_store_failure: error)\n70 requests/s: 0 admitted, 0 denied, 70 failed; "
	if err != nil || !strings.Contains(got, "redis (not answering for 5s)") || !strings.HasPrefix(lines, want) {
		t.Errorf("%v\n%s\nwant %s", err, got, want)
	}
}

func TestOnceWithNothing(t *testing.T) {
	t.Parallel()
	s := &fakeService{state: operator.State{
		Store:      "memory",
		Components: []operator.Component{{Name: "rules", NotReadyReason: "none is loaded"}, {Name: "store"}},
	}}
	s.state.Rules.Problems = []string{"a.yaml:1:1: x", "b", "c", "d", "e"}
	got, err := call(t, s.start(t), "--window", "hour")
	want := `ADDRESS: NOT READY; memory; 0 rules in 0 domains; up 0s; version 
rules: none is loaded
last load of rules refused: a.yaml:1:1: x
last load of rules refused: b
last load of rules refused: c
and 2 more problems
0 requests/s: 0 admitted, 0 denied, 0 failed; the tables count decisions, one for each limit of a request

DOMAIN  ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s  UNMATCHED/s
(all)            0         0       0         0           0         0            0

RULE  ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s  LIMIT
(none)

MOST DENIED, LAST HOUR  PER SECOND  HITS  RULE
(none)

HOTTEST, LAST HOUR  PER SECOND  HITS  RULE
(none)
`
	if got != want || err != nil {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
}

// A service that has just started knows no rates yet.
func TestFilterAtTheStart(t *testing.T) {
	t.Parallel()
	s := example()
	s.rates = operator.Rates{}
	address := s.start(t)
	for _, args := range [][]string{
		{"--domain", "shop"},
		{"--rule", "shop.ip"},
		{"--domain", "shop", "--rule", "shop.ip"},
	} {
		out, err := call(t, address, args...)
		if err != nil || strings.Count(out, "\n(none)\n") < 1 {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		args  string
		rules string // the rules of the snapshot, or a part of the error
		query operator.TopQuery
	}{
		{"", "accounts.login shop.path_/pay shop.ip", operator.TopQuery{Kind: "denied", Window: "minute", Limit: 20}},
		{
			"--sort denied --limit 2", "shop.path_/pay accounts.login",
			operator.TopQuery{Kind: "denied", Window: "minute", Limit: 2},
		},
		{
			"--sort name --window hour", "accounts.login shop.ip shop.path_/pay",
			operator.TopQuery{Kind: "denied", Window: "hour", Limit: 20},
		},
		{
			"--domain shop", "shop.path_/pay shop.ip",
			operator.TopQuery{Kind: "denied", Window: "minute", Domain: "shop", Limit: 20},
		},
		{"--rule shop.ip", "shop.ip", operator.TopQuery{
			Kind: "denied", Window: "minute", Domain: "shop", Rule: "shop.ip",
			Limit: 20,
		}},
		{
			"--rule shop.ip --domain shop", "shop.ip",
			operator.TopQuery{Kind: "denied", Window: "minute", Domain: "shop", Rule: "shop.ip", Limit: 20},
		},
		{"--rule shop.ip --domain accounts", "--rule shop.ip: there is no such rule", operator.TopQuery{}},
		{"--rule shop", "--rule shop: there is no such rule", operator.TopQuery{}},
		{"--domain sho", "--domain sho: there is no such domain; the service has accounts, shop", operator.TopQuery{}},
	} {
		s := example()
		out, err := call(t, s.start(t), append(strings.Fields(tt.args), "--json")...)
		if err != nil {
			if tt.query.Kind != "" || !strings.Contains(err.Error(), tt.rules) {
				t.Errorf("%s: %v, want %s", tt.args, err, tt.rules)
			}
			continue
		}
		var got snapshot
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatalf("%v in\n%s", err, out)
		}
		var names []string
		for _, r := range got.Rates.Rules {
			names = append(names, r.Rule)
		}
		if strings.Join(names, " ") != tt.rules || s.queries[0] != tt.query || got.Window != tt.query.Window ||
			len(got.Hot) != 2 || got.State.Store != "redis" {
			t.Errorf("%s: rules %s, query %+v\nwant  %s, %+v", tt.args, names, s.queries[0], tt.rules, tt.query)
		}
	}
}

// hostile is a text that would control a terminal.
const hostile = "\x1b]0;title\a\x1b[2J\u009b31m\r\n\u202e\x7fend"

// Nothing that the service answers controls the terminal.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	s := example()
	s.state.Version, s.state.Store = hostile, hostile
	s.state.Components = []operator.Component{{Name: hostile, NotReadyReason: hostile}}
	s.state.Rules.Problems = []string{hostile}
	s.rates.Domains[0].Domain = hostile
	s.rates.Rules[0] = ruleRates(hostile, hostile, hostile, 1, 1)
	s.rates.Unmatched = []operator.Unmatched{{Domain: hostile, Descriptor: hostile, Why: hostile, DidYouMean: hostile}}
	s.top[operator.TopHot][0] = operator.Subject{Domain: hostile, Rule: hostile, Subject: hostile}
	s.top[operator.TopDenied][0] = s.top[operator.TopHot][0]
	address := s.start(t)
	for _, args := range [][]string{
		nil,
		{"--json"},
		{"--domain", hostile},
		{"--domain", hostile + "x"},
		{"--rule", hostile + "x"},
		{"--sort", hostile},
	} {
		out, err := call(t, address, args...)
		if err != nil {
			out += err.Error()
		}
		expectPrintable(t, out)
	}
	var shown snapshot
	text, err := call(t, address, "--json")
	if err != nil || json.Unmarshal([]byte(text), &shown) != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	for width := 1; width < 250; width += 7 {
		expectPrintable(t, withoutSequences(frame(shown.screen(width, 60, 0, errors.New(hostile)), width)))
	}
}

func expectPrintable(t *testing.T, text string) {
	t.Helper()
	for line := range strings.SplitSeq(text, "\n") {
		if output.Printable(line) != line {
			t.Errorf("the terminal gets %q", line)
		}
	}
}

// withoutSequences removes the control sequences that watch writes.
func withoutSequences(text string) string {
	for _, s := range []string{enterScreen, leaveScreen, startOfPage, clearLine, restOfPage, "\r"} {
		text = strings.ReplaceAll(text, s, "")
	}
	return text
}

// exampleSnapshot returns a snapshot with a number of rules, of which each has fewer admitted and more denied than the
// one before.
func exampleSnapshot(rules int) *snapshot {
	e := example()
	s := &snapshot{
		Address: "a:6070", Window: operator.WindowMinute, State: e.state, Rates: e.rates,
		Denied: e.top[operator.TopDenied], Hot: e.top[operator.TopHot],
	}
	s.Rates.Rules = nil
	for i := range rules {
		s.Rates.Rules = append(s.Rates.Rules,
			ruleRates("shop", fmt.Sprintf("shop.r%02d", (i*7)%rules), "1 per day", float64(rules-i), float64(i)))
	}
	s.Rates.MatchingRules = rules
	return s
}

func TestScreen(t *testing.T) {
	t.Parallel()
	s := exampleSnapshot(12)
	s.sort(sortDenied)
	want := `as of 12s ago: a:6070: ready; redis (answering for 1m); 3 rules in 2 domains, l…
a:6070: connection refused
812 requests/s: 806 admitted, 6.0 denied, 0 failed; the tables count decisions,…

DOMAIN    ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s
(all)           1234        12     3.2      <0.1        2.0M         0
shop              34        10       0         0           0         0
accounts        1200       2.0       0         0           0         0

RULE      ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s
shop.r05         1.0        11       0         0           0         0
shop.r10         2.0        10       0         0           0         0
shop.r03         3.0       9.0       0         0           0         0
shop.r08         4.0       8.0       0         0           0         0

MOST DENIED, LAST MINUTE  PER SECOND  HITS  RULE
path=/pay,user=eve               9.5   570  shop.path_/pay

HOTTEST, LAST MINUTE  PER SECOND   HITS  RULE
login=alex                   800  48000  accounts.login
path=/pay,user=eve            10    600  shop.path_/pay

8 more rules; a taller terminal shows more, --domain those of one domain`
	lines := s.screen(80, 23, 12*time.Second, errors.New("a:6070: connection refused"))
	if got := withoutSequences(frame(lines, 80)); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// With traffic without a rule, and in an outage, a small terminal has rules as well. Problems are wrapped, so their
// ends are seen.
func TestSmallScreen(t *testing.T) {
	t.Parallel()
	for _, size := range [][2]int{{80, 24}, {100, 30}} {
		s := exampleSnapshot(12)
		for i := range 9 {
			s.Rates.Unmatched = append(s.Rates.Unmatched, operator.Unmatched{Domain: "shop", Descriptor: fmt.Sprint("usr=", i)})
			s.Denied, s.Hot = append(s.Denied, s.Denied[0]), append(s.Hot, s.Hot[0])
			s.Rates.Domains = append(s.Rates.Domains, operator.DomainRates{Domain: fmt.Sprint("domain", i)})
		}
		s.State.Rules.Problems = []string{
			"/srv/" + strings.Repeat("directory/", 5) + "rules.yaml:12:5: `unit: fortnight` is no unit",
		}
		s.State.Outages = []operator.Outage{{Store: "Redis", SilentServers: 1, Servers: 1}}
		s.State.OnStoreFailure = []string{"local"}
		lines := s.screen(size[0], size[1], 0, nil)
		text := strings.Join(lines, "\n")
		if len(lines) > size[1] || strings.Count(text, "\nshop.r") < 3 {
			t.Errorf("%v: %d lines, want three rules in\n%s", size, len(lines), text)
		}
		for _, want := range []string{
			"`unit: fortnight` is no unit", "DEGRADED: Redis has not answered", "usr=0",
			" more rules; a taller terminal shows more, --domain those of one domain",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("%v: no %q in\n%s", size, want, text)
			}
		}
	}
}

// Where whole addresses have no room, what all replicas share is left out.
func TestNarrowReplicas(t *testing.T) {
	t.Parallel()
	s := exampleSnapshot(3)
	state := s.State
	for _, address := range []string{"127.0.0.1:16070", "127.0.0.1:26070"} {
		s.Replicas = append(s.Replicas, operator.Replica{Address: address, State: &state})
	}
	for width, want := range map[int][2]string{
		100: {"…16070 ", "…26070 "}, 200: {"127.0.0.1:16070 ", "127.0.0.1:26070 "},
	} {
		lines := s.replicaLines(width)
		for i, start := range want {
			if !strings.HasPrefix(lines[i+1], start) {
				t.Errorf("%d: %s, want %s", width, lines[i+1], start)
			}
		}
	}
}

// Whatever the size of the terminal, the screen fits.
func TestSizes(t *testing.T) {
	t.Parallel()
	s := exampleSnapshot(40)
	for height := 1; height < 80; height++ {
		for _, width := range []int{1, 10, 40, 79, 80, 81, 200} {
			lines := strings.Split(withoutSequences(frame(s.screen(width, height, 0, errors.New("gone")), width)), "\n")
			for _, l := range lines {
				if output.Cells(l) > width {
					t.Fatalf("%d x %d: a line of %d: %s", width, height, output.Cells(l), l)
				}
			}
			if len(lines) > height || height > 16 && height < 50 && len(lines) != height {
				t.Errorf("%d x %d: %d lines", width, height, len(lines))
			}
		}
	}
}

// fakeTerminal is a terminal in tests.
type fakeTerminal struct {
	mu            sync.Mutex
	out           strings.Builder
	width, height int
}

func (f *fakeTerminal) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.Write(p)
}

// all returns what was written, and last the frame that was written last.
func (f *fakeTerminal) all() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.String()
}

func (f *fakeTerminal) last() string {
	frames := strings.Split(f.all(), startOfPage)
	return withoutSequences(frames[len(frames)-1])
}

func (f *fakeTerminal) resize(width, height int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.width, f.height = width, height
}

func (f *fakeTerminal) size() (width, height int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.width, f.height
}

// The live view follows the service and the size of the terminal, survives failures, and leaves the terminal as it was.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		terminal := &fakeTerminal{width: 100, height: 30}
		var failing, hanging atomic.Bool
		rules := 3
		next := func(ctx context.Context) (*snapshot, error) {
			if failing.Load() {
				return nil, errors.New("gone")
			}
			if hanging.Load() {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			rules++
			return exampleSnapshot(rules), nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- watch(ctx, terminal, terminal.size, exampleSnapshot(3), next) }()
		for _, step := range []struct {
			act  func()
			want string // is on the screen after 1.1 s
		}{
			{func() {}, "\nshop.r03 "},
			{func() { terminal.resize(12, 10) }, "a:6070: rea…"},
			{func() { terminal.resize(100, 30); failing.Store(true) }, "as of 1s ago: a:6070: ready"},
			{func() {}, "\ngone\n"},
			{func() { failing.Store(false) }, "\nshop.r05 "},
			{func() { hanging.Store(true) }, "\nshop.r05 "},
		} {
			step.act()
			time.Sleep(1100 * time.Millisecond)
			synctest.Wait()
			if got := terminal.last(); !strings.Contains(got, step.want) {
				t.Errorf("no %s in\n%s", step.want, got)
			}
		}
		cancel()
		if err := <-done; err != nil || !strings.HasPrefix(terminal.all(), enterScreen) ||
			!strings.HasSuffix(terminal.all(), leaveScreen) {
			t.Errorf("%v after %q", err, terminal.all())
		}
	})
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for r, want := range map[float64]string{
		0: "0", -1: "0", 0.049: "<0.1", 0.05: "0.1", 9.94: "9.9", 9.95: "10",
		1234.4: "1234", 2.04e6: "2.0M",
	} {
		if got := rate(r); got != want {
			t.Errorf("%v: %s, want %s", r, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		-1: "0s", 59 * time.Second: "59s", time.Hour - 1: "59m",
		47 * time.Hour: "47h", 49 * time.Hour: "2d",
	} {
		if got := ageText(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

// Several replicas have sums, shares, and a line for the one that does not answer.
func TestSeveral(t *testing.T) {
	t.Parallel()
	first, second := example(), example()
	second.state.StartedAt = second.state.StartedAt.Add(time.Hour)
	second.state.Components = []operator.Component{{Name: "redis_pool", NotReadyReason: "no answer"}}
	second.rates.Rules = second.rates.Rules[:1]
	second.rates.Total = operator.PerSecond{Admitted: 1200, Denied: 2}
	second.rates.Requests, second.state.OnStoreFailure = operator.RequestsPerSecond{Failed: 24}, []string{"error"}
	second.top = map[string][]operator.Subject{operator.TopHot: first.top[operator.TopHot][:1]}
	addresses := []string{first.start(t), second.start(t), "127.0.0.1:1"}
	out, err := call(t, strings.Join(addresses, ","))
	for i, address := range addresses {
		out = strings.ReplaceAll(out, strings.TrimPrefix(address, "http://"), fmt.Sprint("ADDRESS-", i))
	}
	_, out, _ = strings.Cut(out, "\n") // The widths of the first table depend on the ports.
	got := strings.Split(out, "\n")
	for i, fields := range []string{
		"ADDRESS-0 1234 12 3.2 <0.1 2.0M 0 51 ready; redis (answering for 1m); 3 rules",
		"ADDRESS-1 1200 2.0 0 0 0 0 49 ready; redis (not answering for 1m); 3 rules",
		"ADDRESS-2 - - - - - - - not in the sums: see below",
		"ADDRESS-1: OUTAGE: Some calls of the store get no answer; 100 % of requests get an error (on_store_failure: error)",
		"ADDRESS-1: redis_pool: no answer",
		"ADDRESS-2: connection refused",
		"836 requests/s: 806 admitted, 6.0 denied, 24 failed;",
	} {
		if line := strings.Join(strings.Fields(got[min(i, len(got)-1)]), " "); !strings.HasPrefix(line, fields) {
			t.Errorf("line %d is %s, want %s", i, line, fields)
		}
	}
	want := `
DOMAIN    ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s  UNMATCHED/s
(all)           2434        14     3.2      <0.1        2.0M         0            0
accounts        2400       4.0       0         0           0         0            0
shop              69        20       0         0           0         0            0

RULE            ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s  SHARES %  LIMIT
accounts.login        2400       4.0       0         0           0         0   50/50/0  3 per 5 minutes
shop.path_/pay          34        10       0         0           0         0   100/0/0  10 per second
shop.ip                  0         0       0         0           0         0     0/0/0  100 per minute

MOST DENIED, LAST MINUTE  PER SECOND  HITS  SHARES %  RULE
path=/pay,user=eve               9.5   570   100/0/0  shop.path_/pay

HOTTEST, LAST MINUTE  PER SECOND   HITS  SHARES %  RULE
login=alex                  1600  96000   50/50/0  accounts.login
path=/pay,user=eve            10    600   100/0/0  shop.path_/pay
`
	if _, tables, _ := strings.Cut(out, "\n\n"); "\n"+tables != want || err != nil {
		t.Errorf("%v\n%s\nwant\n%s", err, tables, want)
	}
	if out, err := call(t, addresses[0]+",127.0.0.1:1", "--rule", "none"); err == nil ||
		!strings.Contains(err.Error(), "there is no such rule") || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("%v\n%s", err, out)
	}
}
