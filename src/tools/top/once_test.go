package top

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/operator"
	"ratelimit/src/quota"
)

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
