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

	"github.com/spf13/pflag"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/tools/debugport"
	"ratelimit/src/tools/output"
)

// fakeService is a source of figures with fixed content. Figures that a test does not set are those of admin.Figures, which is nil.
type fakeService struct {
	admin.Figures
	state admin.State
	rates admin.Rates
	top   map[string][]admin.Subject // top has the subjects of each kind.

	mu      sync.Mutex
	queries []admin.TopQuery
}

func (s *fakeService) State() admin.State { return s.state }

// Rates returns the rules whose name contains search, the busiest first.
func (s *fakeService) Rates(search string, _, limit int) admin.Rates {
	r := s.rates
	r.Rules = slices.DeleteFunc(slices.Clone(r.Rules), func(r admin.RuleRates) bool { return !strings.Contains(r.Rule, search) })
	r.MatchingRules = len(r.Rules)
	r.Rules = r.Rules[:min(limit, len(r.Rules))]
	return r
}

func (s *fakeService) Top(q admin.TopQuery) []admin.Subject {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries = append(s.queries, q)
	return s.top[q.Kind]
}

// start serves s and returns its address.
func (s *fakeService) start(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(admin.DebugPages{Figures: s}.Handler())
	t.Cleanup(server.Close)
	return server.URL
}

func ruleRates(domain, rule, limit string, admitted, denied float64) admin.RuleRates {
	return admin.RuleRates{Domain: domain, Rule: rule, Limit: limit, PerSecond: admin.PerSecond{Admitted: admitted, Denied: denied}}
}

// example is a service with two domains and three rules.
func example() *fakeService {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	state := admin.State{Version: "v1.2.3", Now: now, StartedAt: now.Add(-27 * time.Hour), Ready: true, Store: "redis", StoreSince: now.Add(-90 * time.Second), Replicas: 2}
	state.Rules = admin.LoadedRules{Domains: 2, Rules: 3, Files: 1, LoadedAt: now.Add(-5 * time.Minute)}
	rates := admin.Rates{Total: admin.PerSecond{Admitted: 1234.5, Denied: 12, Near: 3.25, Shadow: 0.01, Fallback: 2e6}}
	rates.Domains = []admin.DomainRates{
		{Domain: "accounts", PerSecond: admin.PerSecond{Admitted: 1200, Denied: 2}},
		{Domain: "shop", PerSecond: admin.PerSecond{Admitted: 34.5, Denied: 10}},
	}
	rates.Rules = []admin.RuleRates{
		ruleRates("accounts", "accounts.login", "3 per 5 minutes", 1200, 2),
		ruleRates("shop", "shop.path_/pay", "10 per second", 34.5, 10),
		ruleRates("shop", "shop.ip", "100 per minute", 0, 0),
	}
	return &fakeService{state: state, rates: rates, top: map[string][]admin.Subject{
		admin.TopDenied: {{Domain: "shop", Rule: "shop.path_/pay", Subject: "path=/pay,user=eve", PerSecond: 9.5, Hits: 570}},
		admin.TopHot: {
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
	cmd.SetArgs(append(args, address))
	err = cmd.ExecuteContext(t.Context())
	return strings.ReplaceAll(b.String(), strings.TrimPrefix(address, "http://"), "ADDRESS"), err
}

func TestOnce(t *testing.T) {
	t.Parallel()
	got, err := call(t, example().start(t))
	want := `ADDRESS: ready; redis (answering for 1m); 3 rules in 2 domains, loaded 5m ago; 2 replicas; up 27h; version v1.2.3

DOMAIN    ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s
(all)           1234        12     3.2      <0.1        2.0M         0
accounts        1200       2.0       0         0           0         0
shop              34        10       0         0           0         0

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

// Quotas have a line while proxies have some.
func TestQuotas(t *testing.T) {
	t.Parallel()
	s := example()
	s.state.Quotas = &admin.QuotaTotals{Proxies: 3, Buckets: 2, ShortBuckets: 1, DemandPerSecond: 320.5, Units: 110}
	want := "\nquotas: 3 proxies, 2 buckets, 1 of them short, 320 units a second asked for, 110 assigned\n\nDOMAIN"
	if got, err := call(t, s.start(t)); !strings.Contains(got, want) || err != nil {
		t.Errorf("%v\n%s\nwant%s", err, got, want)
	}
	m := &model{snapshot: &snapshot{State: s.state, Rates: s.rates}, width: 200, height: 30}
	if lines := m.view(time.Now()); len(lines) > m.height || !strings.HasPrefix(lines[1].text, "quotas: ") {
		t.Errorf("on a screen of %d lines: %+v", m.height, lines)
	}
}

// An operator sees that Redis is down, though the process stays ready.
func TestStoreThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		store     string
		component admin.Component
		want      string // is the first words of the state and the line below it.
	}{
		{"redis", admin.Component{Name: "redis_pool", Note: "1 server without an answer, only probed"}, "redis (in this state for 5s); \nredis_pool: 1 server without an answer, only probed\n"},
		{"redis", admin.Component{Name: "redis_pool", NotReadyReason: "no answer"}, "redis (not answering for 5s); \nredis_pool: no answer\n"},
		{"memcached", admin.Component{Name: "memcache", Note: "slow"}, "memcached (in this state for 5s); \nmemcache: slow\n"},
		{"redis", admin.Component{Name: "counting", Note: "degraded"}, "redis (answering for 5s); \ncounting: degraded\n"},
		{"redis", admin.Component{Name: "rules", Note: "2 domains"}, "redis (answering for 5s); \n\n"},
	} {
		now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		s := &fakeService{state: admin.State{Store: tt.store, Now: now, StoreSince: now.Add(-5 * time.Second), Components: []admin.Component{{Name: "process"}, tt.component}}}
		got, err := call(t, s.start(t))
		state, lines, _ := strings.Cut(got, "0 rules")
		_, state, _ = strings.Cut(state, "READY; ")
		_, lines, _ = strings.Cut(lines, "\n")
		if err != nil || !strings.HasPrefix(state+"\n"+lines, tt.want) {
			t.Errorf("%+v: %v\n%s", tt.component, err, got)
		}
	}
}

func TestOnceWithNothing(t *testing.T) {
	t.Parallel()
	s := &fakeService{state: admin.State{Store: "memory", Components: []admin.Component{{Name: "rules", NotReadyReason: "none is loaded"}, {Name: "store"}}}}
	s.state.Rules.Problems = []string{"a.yaml:1:1: x", "b", "c", "d", "e"}
	got, err := call(t, s.start(t), "--window", "hour")
	want := `ADDRESS: NOT READY; memory; 0 rules in 0 domains; up 0s; version 
rules: none is loaded
last load of rules refused: a.yaml:1:1: x
last load of rules refused: b
last load of rules refused: c
and 2 more problems

DOMAIN  ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s
(all)            0         0       0         0           0         0

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
	s.rates = admin.Rates{}
	address := s.start(t)
	for _, args := range [][]string{{"--domain", "shop"}, {"--rule", "shop.ip"}, {"--domain", "shop", "--rule", "shop.ip"}} {
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
		query admin.TopQuery
	}{
		{"", "accounts.login shop.path_/pay shop.ip", admin.TopQuery{Kind: "denied", Window: "minute", Limit: 20}},
		{"--sort denied --limit 2", "shop.path_/pay accounts.login", admin.TopQuery{Kind: "denied", Window: "minute", Limit: 2}},
		{"--sort name --window hour", "accounts.login shop.ip shop.path_/pay", admin.TopQuery{Kind: "denied", Window: "hour", Limit: 20}},
		{"--domain shop", "shop.path_/pay shop.ip", admin.TopQuery{Kind: "denied", Window: "minute", Domain: "shop", Limit: 20}},
		{"--rule shop.ip", "shop.ip", admin.TopQuery{Kind: "denied", Window: "minute", Domain: "shop", Rule: "shop.ip", Limit: 20}},
		{"--rule shop.ip --domain shop", "shop.ip", admin.TopQuery{Kind: "denied", Window: "minute", Domain: "shop", Rule: "shop.ip", Limit: 20}},
		{"--rule shop.ip --domain accounts", "--rule shop.ip: there is no such rule", admin.TopQuery{}},
		{"--rule shop", "--rule shop: there is no such rule", admin.TopQuery{}},
		{"--domain sho", "--domain sho: there is no such domain; the service has accounts, shop", admin.TopQuery{}},
		{"--sort hits", "--sort hits: write admitted, denied or name", admin.TopQuery{}},
		{"--window day", "--window day: write minute or hour", admin.TopQuery{}},
		{"--limit 0", "--limit 0: write 1 to 1000", admin.TopQuery{}},
		{"--limit 1001", "--limit 1001: write 1 to 1000", admin.TopQuery{}},
		{"--timeout -1s", "--timeout -1s: write a time above 0s", admin.TopQuery{}},
		{"another", "accepts at most 1 arg", admin.TopQuery{}},
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
		if strings.Join(names, " ") != tt.rules || s.queries[0] != tt.query || got.Window != tt.query.Window || len(got.Hot) != 2 || got.State.Store != "redis" {
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
	s.state.Components = []admin.Component{{Name: hostile, NotReadyReason: hostile}}
	s.state.Rules.Problems = []string{hostile}
	s.rates.Domains[0].Domain = hostile
	s.rates.Rules[0] = ruleRates(hostile, hostile, hostile, 1, 1)
	s.top[admin.TopHot][0] = admin.Subject{Domain: hostile, Rule: hostile, Subject: hostile}
	s.top[admin.TopDenied][0] = s.top[admin.TopHot][0]
	address := s.start(t)
	for _, args := range [][]string{nil, {"--json"}, {"--domain", hostile}, {"--domain", hostile + "x"}, {"--rule", hostile + "x"}, {"--sort", hostile}} {
		out, err := call(t, address, args...)
		if err != nil {
			out += err.Error()
		}
		expectPrintable(t, out)
	}
	client, err := portOptions(t).NewClient(address)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	snapshot, err := fetch(t.Context(), client, filter{window: windowMinute, subjects: 5})
	if err != nil {
		t.Fatal(err)
	}
	m := &model{sortBy: sortName, window: windowMinute}
	m.receive(snapshot, nil, time.Now())
	for width := 1; width < 250; width += 7 {
		m.resize(width, 60)
		m.receive(nil, errors.New(hostile), time.Now())
		expectPrintable(t, withoutSequences(frame(m.view(time.Now()), width)))
	}
}

// portOptions returns the defaults of the flags.
func portOptions(t *testing.T) *debugport.Options {
	t.Helper()
	o := new(debugport.Options)
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.AddFlags(f)
	return o
}

func expectPrintable(t *testing.T, text string) {
	t.Helper()
	for line := range strings.SplitSeq(text, "\n") {
		if output.Printable(line) != line {
			t.Errorf("the terminal gets %q", line)
		}
	}
}

// withoutSequences removes the control sequences that frame writes.
func withoutSequences(text string) string {
	for _, s := range []string{startOfPage, clearLine, restOfPage, plainText, "\r", styleSequences[titleStyle], styleSequences[alertStyle], styleSequences[dimStyle]} {
		text = strings.ReplaceAll(text, s, "")
	}
	return text
}

// exampleSnapshot returns a snapshot with a number of rules, of which each has fewer admitted and more denied than the one before.
func exampleSnapshot(rules int) *snapshot {
	e := example()
	s := &snapshot{Address: "a:6070", Window: windowMinute, State: e.state, Rates: e.rates, Denied: e.top[admin.TopDenied], Hot: e.top[admin.TopHot]}
	s.Rates.Rules = nil
	for i := range rules {
		s.Rates.Rules = append(s.Rates.Rules, ruleRates("shop", fmt.Sprintf("shop.r%02d", (i*7)%rules), "1 per day", float64(rules-i), float64(i)))
	}
	s.Rates.MatchingRules = rules
	return s
}

func TestKeys(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		sent string
		want []key
		rest string
	}{
		{"", nil, ""},
		{"qadnmh", []key{keyQuit, keySortAdmitted, keySortDenied, keySortName, keyMinute, keyHour}, ""},
		{"\x03", []key{keyQuit}, ""},
		{"xyz\x00ü", nil, ""},
		{"\x1b[A\x1b[B\x1bOA\x1bOB", []key{keyUp, keyDown, keyUp, keyDown}, ""},
		{"\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~", []key{keyPageUp, keyPageDown, keyFirst, keyLast, keyFirst, keyLast}, ""},
		{"d\x1b[", []key{keySortDenied}, "\x1b["},
		{"\x1b", nil, "\x1b"},
		{"\x1bq", []key{keyQuit}, ""},                // Escape, and then q
		{"\x1b[15~\x1b[1;5Cq", []key{keyQuit}, ""},   // F5 and Ctrl-Right mean nothing
		{"\x1b[" + strings.Repeat("1", 20), nil, ""}, // no end
		{"\x1b[200~q\x1b[201~", []key{keyQuit}, ""},  // pasted
		{"\x1b[M !!", []key{keyPageDown}, ""},        // not asked for: a click, whose blank is a key
		{strings.Repeat("\x1b[B", 3), []key{keyDown, keyDown, keyDown}, ""},
	} {
		got, rest := decodeKeys(tt.sent)
		if !slices.Equal(got, tt.want) || rest != tt.rest {
			t.Errorf("%q: %v and %q, want %v and %q", tt.sent, got, rest, tt.want, tt.rest)
		}
	}
}

func FuzzKeys(f *testing.F) {
	for _, sent := range []string{"q", "\x1b[A", "\x1b", "\x1b[1;5", "\x1bO", "ü"} {
		f.Add(sent, sent)
	}
	f.Fuzz(func(t *testing.T, first, second string) {
		keys, rest := decodeKeys(first)
		if len(rest) > maxSequenceBytes+1 || !strings.HasSuffix(first, rest) || len(keys) > len(first) {
			t.Errorf("%q: %v and %q", first, keys, rest)
		}
		_, _ = decodeKeys(rest + second)
	})
}

func TestPress(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		keys         []key
		first, rules string // the first rule on the screen, and which ones the last line says
		sort, window string
		wantQuit     bool
	}{
		{nil, "shop.r00", "rules 1-5 of 30", sortAdmitted, windowMinute, false},
		{[]key{keyDown, keyDown, keyUp}, "shop.r07", "rules 2-6 of 30", sortAdmitted, windowMinute, false},
		{[]key{keyPageDown, keyPageDown, keyPageUp}, "shop.r05", "rules 6-10 of 30", sortAdmitted, windowMinute, false},
		{[]key{keyUp, keyPageUp}, "shop.r00", "rules 1-5 of 30", sortAdmitted, windowMinute, false},
		{[]key{keyLast, keyDown, keyPageDown}, "shop.r25", "rules 26-30 of 30", sortAdmitted, windowMinute, false},
		{[]key{keyLast, keyFirst}, "shop.r00", "rules 1-5 of 30", sortAdmitted, windowMinute, false},
		{[]key{keyDown, keySortDenied}, "shop.r23", "rules 1-5 of 30", sortDenied, windowMinute, false},
		{[]key{keySortDenied, keySortName}, "shop.r00", "rules 1-5 of 30", sortName, windowMinute, false},
		{[]key{keySortName, keySortAdmitted, keyHour}, "shop.r00", "rules 1-5 of 30", sortAdmitted, windowHour, false},
		{[]key{keyHour, keyMinute}, "shop.r00", "rules 1-5 of 30", sortAdmitted, windowMinute, false},
		{[]key{keyQuit}, "shop.r00", "rules 1-5 of 30", sortAdmitted, windowMinute, true},
	} {
		m := &model{sortBy: sortAdmitted, window: windowMinute}
		m.receive(exampleSnapshot(30), nil, time.Now())
		m.resize(200, 24)
		quit := false
		for _, k := range tt.keys {
			quit = m.press(k)
		}
		text := withoutSequences(frame(m.view(time.Now()), 200))
		_, table, _ := strings.Cut(text, "\nRULE")
		if first := strings.Fields(strings.Split(table, "\n")[1])[0]; first != tt.first || !strings.HasSuffix(text, tt.rules) {
			t.Errorf("%v: the first rule is %s, want %s, %s in\n%s", tt.keys, first, tt.first, tt.rules, text)
		}
		if quit != tt.wantQuit || m.sortBy != tt.sort || m.window != tt.window {
			t.Errorf("%v: quit %t, sorted by %s, window %s", tt.keys, quit, m.sortBy, m.window)
		}
	}
}

func TestView(t *testing.T) {
	t.Parallel()
	m := &model{sortBy: sortDenied, window: windowMinute}
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	m.receive(exampleSnapshot(3), nil, at)
	m.resize(80, 24)
	m.receive(nil, errors.New("a:6070: connection refused"), at)
	want := `as of 12s ago: a:6070: ready; redis (answering for 1m); 3 rules in 2 domains, l…
a:6070: connection refused

DOMAIN    ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s
(all)           1234        12     3.2      <0.1        2.0M         0
shop              34        10       0         0           0         0
accounts        1200       2.0       0         0           0         0

RULE      ADMITTED/s  DENIED/s  NEAR/s  SHADOW/s  FALLBACK/s  FAILED/s
shop.r02         1.0       2.0       0         0           0         0
shop.r01         2.0       1.0       0         0           0         0
shop.r00         3.0         0       0         0           0         0


MOST DENIED, LAST MINUTE  PER SECOND  HITS  RULE
path=/pay,user=eve               9.5   570  shop.path_/pay



HOTTEST, LAST MINUTE  PER SECOND   HITS  RULE
login=alex                   800  48000  accounts.login
path=/pay,user=eve            10    600  shop.path_/pay

q quit  a/d/n sort: denied  m/h subjects: minute  arrows: rules 1-3 of 3`
	if got := withoutSequences(frame(m.view(at.Add(12*time.Second)), 80)); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}

// Whatever the size of the terminal, the screen fits, and has the keys in its last line.
func TestResize(t *testing.T) {
	t.Parallel()
	m := &model{sortBy: sortAdmitted, window: windowMinute}
	m.receive(exampleSnapshot(40), nil, time.Now())
	for height := 1; height < 80; height++ {
		for _, width := range []int{1, 10, 40, 79, 80, 81, 200} {
			m.resize(width, height)
			m.press(keyLast)
			lines := strings.Split(withoutSequences(frame(m.view(time.Now()), width)), "\n")
			for _, l := range lines {
				if output.Cells(l) > width {
					t.Fatalf("%d x %d: a line of %d: %s", width, height, output.Cells(l), l)
				}
			}
			if len(lines) > height || !strings.HasPrefix(lines[len(lines)-1], output.Shorten("q quit", width)[:1]) {
				t.Fatalf("%d x %d: %d lines, the last is %s", width, height, len(lines), lines[len(lines)-1])
			}
			if height > 24 && len(lines) != height {
				t.Errorf("%d x %d: only %d lines", width, height, len(lines))
			}
			if m.firstRule < 0 || m.firstRule+m.layout().rules > 40 && m.firstRule > 0 {
				t.Errorf("%d x %d: rules from %d", width, height, m.firstRule)
			}
		}
	}
}

// fakeTerminal is a terminal in tests.
type fakeTerminal struct {
	keys chan string

	mu            sync.Mutex
	out           strings.Builder
	width, height int
}

func (f *fakeTerminal) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.Write(p)
}

// last returns the frame that was written last.
func (f *fakeTerminal) last() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	frames := strings.Split(f.out.String(), startOfPage)
	return withoutSequences(frames[len(frames)-1])
}

func (f *fakeTerminal) resize(width, height int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.width, f.height = width, height
}

func (f *fakeTerminal) screen() screen {
	return screen{out: f, keys: f.keys, size: func() (int, int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.width, f.height
	}}
}

func TestLive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		terminal := &fakeTerminal{keys: make(chan string), width: 100, height: 30}
		m := &model{sortBy: sortAdmitted, window: windowMinute}
		m.receive(exampleSnapshot(3), nil, time.Now())
		var fetches atomic.Int64
		var failing atomic.Bool
		fetch := func(_ context.Context, window string) (*snapshot, error) {
			n := int(fetches.Add(1))
			time.Sleep(300 * time.Millisecond)
			if failing.Load() {
				return nil, errors.New("gone")
			}
			s := exampleSnapshot(3 + n)
			s.Window = window
			return s, nil
		}
		done := make(chan error)
		go func() { done <- runLive(t.Context(), m, terminal.screen(), fetch) }()
		for _, step := range []struct {
			act   func()
			after time.Duration
			want  string // is on the screen
		}{
			{func() {}, 0, "rules 1-3 of 3"},
			{func() {}, 1250 * time.Millisecond, "rules 1-3 of 3"}, // the first fetch runs
			{func() {}, 100 * time.Millisecond, "rules 1-4 of 4"},
			{func() { terminal.keys <- "\x1b["; terminal.keys <- "Bn" }, 0, "sort: name"},
			{func() { terminal.keys <- "h" }, 0, "subjects: hour"},
			{func() {}, 400 * time.Millisecond, "LAST HOUR"}, // is fetched at once
			{func() { terminal.resize(12, 10) }, 250 * time.Millisecond, "a:6070: rea…"},
			{func() { terminal.resize(100, 30); failing.Store(true) }, 2500 * time.Millisecond, "gone"},
			{func() { failing.Store(false) }, 2500 * time.Millisecond, "rules 1-10 of 10"},
		} {
			step.act()
			time.Sleep(step.after)
			synctest.Wait()
			if got := terminal.last(); !strings.Contains(got, step.want) {
				t.Errorf("after %v and %d fetches: no %s in\n%s", step.after, fetches.Load(), step.want, got)
			}
		}
		terminal.keys <- "xq"
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A signal and a closed keyboard end the view or not, and a fetch that hangs does not delay it.
func TestLiveEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		terminal := &fakeTerminal{keys: make(chan string), width: 100, height: 30}
		m := &model{sortBy: sortAdmitted, window: windowMinute}
		m.receive(exampleSnapshot(3), nil, time.Now())
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- runLive(ctx, m, terminal.screen(), func(ctx context.Context, _ string) (*snapshot, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			})
		}()
		close(terminal.keys)
		time.Sleep(5 * time.Second)
		select {
		case err := <-done:
			t.Fatalf("ended with %v", err)
		default:
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A panic of a fetch is one of runLive, so that the terminal is restored.
func TestLivePanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		terminal := &fakeTerminal{width: 100, height: 30}
		m := &model{sortBy: sortAdmitted, window: windowMinute}
		m.receive(exampleSnapshot(3), nil, time.Now())
		defer func() {
			if p := recover(); p != "a bug" {
				t.Errorf("panicked with %v", p)
			}
		}()
		_ = runLive(t.Context(), m, terminal.screen(), func(context.Context, string) (*snapshot, error) { panic("a bug") })
	})
}

func TestNumbers(t *testing.T) {
	t.Parallel()
	for r, want := range map[float64]string{0: "0", -1: "0", 0.049: "<0.1", 0.05: "0.1", 9.94: "9.9", 9.95: "10", 1234.4: "1234", 2.04e6: "2.0M"} {
		if got := rate(r); got != want {
			t.Errorf("%v: %s, want %s", r, got, want)
		}
	}
	for d, want := range map[time.Duration]string{-1: "0s", 59 * time.Second: "59s", time.Hour - 1: "59m", 47 * time.Hour: "47h", 49 * time.Hour: "2d"} {
		if got := age(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
