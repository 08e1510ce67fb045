package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/operator/explain"
	"ratelimit/testbed/redistest"
)

const explainRules = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 2, name: per-ip}
  - key: ip
    value: 10.*
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: vip
    rate_limit: {unit: year, requests_per_unit: 9, replaces: [{name: per-ip}]}
`

// explainAt asks /explain.
func (r *running) explainAt(method, query, accept, body string) (code int, kind, answer string) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, "http://"+r.address("debug")+"/explain"+query,
		strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header.Get("Content-Type"), string(text)
}

// stats returns the figures of decisions, without those of the process and connections.
func (r *running) stats() string {
	_, all := r.get("debug", "/stats")
	return regexp.MustCompile(`(?m)^ratelimit\.(go|buffered|\w+\.cx)[._].*\n`).ReplaceAllString(all, "")
}

const askIP = `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"1"}]}]}`

// Explanations charge nothing and count in no statistics.
func TestExplainCharges(t *testing.T) {
	s := launch(t, explainRules, "CACHE_KEY_PREFIX=p:")
	s.until("ready", s.healthy)
	s.ask("2")
	before := s.stats()
	for i := range 50 {
		switch i % 4 {
		case 0:
			code, kind, text := s.explainAt("GET", "?domain=d&descriptors=ip=1", "", "")
			if code != 200 || !strings.HasPrefix(kind, "text/plain") ||
				!strings.Contains(text, "counter p:d_ip_1_\n    now 0 used, 2 left: passes\nnow the request passes\n") {
				t.Fatalf("%d %s %s", code, kind, text)
			}
		case 1:
			code, kind, text := s.explainAt("POST", "", "application/json", askIP)
			report := new(explain.Report)
			if err := json.Unmarshal([]byte(text), report); err != nil || code != 200 || kind != "application/json" {
				t.Fatalf("%d %s %s: %v", code, kind, text, err)
			}
			if now := report.Descriptors[0].Charges[0].State; report.Decision.Code != "OK" || *now.Before != 0 ||
				*now.Remaining != 2 || now.Over {
				t.Fatalf("got %s", text)
			}
		case 2:
			code, _, text := s.explainAt("GET", "?domain=d&descriptors=ip=1&hits=3&format=json", "", "")
			if code != 200 || !strings.Contains(text, `"code": "OVER_LIMIT"`) {
				t.Fatalf("%d %s", code, text)
			}
		case 3:
			code, out, errOut := call(t, "ratelimit", "explain", "--address", s.address("debug"), "--domain", "d",
				"--descriptors", "ip=1", "--descriptors", "ip=10.0")
			if code != 0 || !strings.Contains(out, "shadow mode") || !strings.HasSuffix(out, "now the request passes\n") {
				t.Fatalf("exit %d\n%s%s", code, out, errOut)
			}
		}
	}
	if after := s.stats(); after != before {
		t.Errorf("the statistics moved from\n%sto\n%s", before, after)
	}
	for i, want := range []int{200, 200, 429} {
		if got := s.ask("1"); got != want {
			t.Errorf("request %d after all that: got %d, want %d", i+1, got, want)
		}
	}
	if _, _, text := s.explainAt("GET", "?domain=d&descriptors=ip=1", "", ""); !strings.Contains(text,
		"now 3 used, 0 left: is over, passes in ") {
		t.Errorf("got %s", text)
	}
	if code, _, text := s.explainAt("GET", "?domain=d&descriptors=ip=dGVzdA==", "", ""); code != 200 ||
		!strings.Contains(text, "d_ip_dGVzdA==_\n") {
		t.Errorf("a value with =: %d %s", code, text)
	}
	if _, _, text := s.explainAt("GET", "?domain=d&descriptors=ip=1&refund=true", "", ""); !strings.Contains(text,
		"gives 1 hit back") {
		t.Errorf("got %s", text)
	}
	if code, _, errOut := call(t, "ratelimit", "explain", "--address", s.address("http"), "--domain", "d", "--descriptors",
		"ip=1"); code != 1 || !strings.Contains(errOut, "has no /explain") {
		t.Errorf("another port: exit %d, %s", code, errOut)
	}
}

func TestExplainRefuses(t *testing.T) {
	s := launch(t, explainRules)
	s.until("ready", s.healthy)
	for _, tt := range []struct {
		method, query, body string
		code                int
		want                string
	}{
		{"GET", "", "", 400, "the domain is empty"},
		{"GET", "?domain=d", "", 400, "there are no descriptors"},
		{"GET", "?descriptors=ip=1", "", 400, "the domain is empty"},
		{"GET", "?domain=d&descriptors=ip,,a=b", "", 400, `descriptors=ip,,a=b: write key=value`},
		{"GET", "?domain=d&descriptor=ip=1", "", 400, `"descriptor" is not known; write ?domain=D`},
		{"GET", "?domain=d&domain=e&descriptors=ip=1", "", 400, "domain makes no sense"},
		{"GET", "?domain=d&descriptors=ip=1&hits=x", "", 400, "hits makes no sense"},
		{"GET", "?domain=d&descriptors=ip=1&refund=x", "", 400, "refund makes no sense"},
		{"GET", "?domain=d&descriptors=ip=1&format=xml", "", 400, `format "xml" is not known`},
		{"GET", "?domain=%zz", "", 400, "the query cannot be read"},
		{"POST", "?domain=d&descriptors=ip=1&hits=5", askIP, 400, "with POST the body has the whole request"},
		{"POST", "?format=xml", askIP, 400, `format "xml" is not known`},
		{"POST", "", "", 400, "the body is not a RateLimitRequest"},
		{"POST", "", strings.Repeat(`{"descriptors":[`, 400), 400, "the body is not a RateLimitRequest"},
		{"POST", "", strings.Repeat("[", 1<<20), 400, "the body is not a RateLimitRequest"},
		{"POST", "", `{"domain":"d","descriptors":[{"entry":[]}]}`, 400, "the body is not a RateLimitRequest"},
		{
			"POST", "", `{"domain":"d","descriptors":[{"limit":{"requestsPerUnit":1}}]}`, 400,
			"descriptor 0: limit: the unit is not",
		},
		{"POST", "", strings.Repeat(" ", 1<<20) + askIP, 413, "larger than 1 MiB"},
		{
			"POST", "", `{"domain":"d","descriptors":[` + strings.Repeat("{},", 20_000) + `{}]}`, 413,
			"more than 1000 descriptors",
		},
		{
			"POST", "", `{"domain":"d","descriptors":[` + strings.Repeat("{},", 100) + `{}]}`, 400,
			"101 descriptors; ask for 100 at most",
		},
		// the answer to the question
		{"GET", "?domain=nowhere&descriptors=ip=1", "", 200, "no rules have the domain nowhere"},
		{"PUT", "", askIP, 405, "this page takes GET, HEAD, POST"},
		{"HEAD", "?domain=d&descriptors=ip=1", "", 200, ""},
		{"HEAD", "?domain=d", "", 400, ""},
	} {
		code, _, text := s.explainAt(tt.method, tt.query, "", tt.body)
		if code != tt.code || !strings.Contains(text, tt.want) {
			t.Errorf("%s %s %.80s: %d %s", tt.method, tt.query, tt.body, code, text)
		}
	}
	bad := launch(t, "domain: [\n")
	bad.until("refused", bad.logged("rules refused"))
	if code, _, text := bad.explainAt("POST", "", "", askIP); code != 503 ||
		!strings.Contains(text, "no rules are loaded yet") {
		t.Errorf("%d %s", code, text)
	}
}

// Explanations work on Redis behind the over-limit cache. They do not show errors of
// Redis.
func TestExplainOnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := launch(t, explainRules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=2s", "LOCAL_CACHE_SIZE_IN_BYTES=1000000")
	s.until("ready", s.healthy)
	explained := func() string {
		code, _, text := s.explainAt("POST", "", "", askIP)
		return fmt.Sprint(code, " ", text)
	}
	for range 20 {
		if got := explained(); !strings.Contains(got, "now 0 used, 2 left: passes") {
			t.Fatal(got)
		}
	}
	if keys := fmt.Sprint(server.Do(t, "KEYS", "d_*")); keys != "[]" {
		t.Errorf("a look made keys: %s", keys)
	}
	for i, want := range []int{200, 200, 429} {
		if got := s.ask("1"); got != want {
			t.Errorf("request %d: got %d, want %d", i+1, got, want)
		}
	}
	if got := explained(); !strings.Contains(got, "now 3 used, 0 left: is over, passes in ") ||
		!strings.Contains(got, "says the over-limit cache") {
		t.Error(got)
	}
	server.Kill()
	code, _, text := s.explainAt("GET", "?domain=d&descriptors=ip=7", "", "")
	if code != 200 || !strings.Contains(text, "rule d.ip ") || !strings.Contains(text, "by on_store_failure: error") ||
		!strings.Contains(text, "no count is known: the store did not answer: redis: ") {
		t.Errorf("%d %s", code, text)
	}
}

const explainAlgorithms = `
domain: d
descriptors:
  - {key: fixed_window, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: first_hit_window, rate_limit: {algorithm: first_hit_window, unit: year, requests_per_unit: 3}}
  - {key: sliding_window, rate_limit: {algorithm: sliding_window, unit: year, requests_per_unit: 3}}
  - {key: sliding_window_counter, rate_limit: {algorithm: sliding_window_counter, unit: year, requests_per_unit: 3}}
  - {key: gcra, rate_limit: {algorithm: gcra, unit: year, requests_per_unit: 3}}
`

// With each algorithm an explanation shows the charges and changes no counter: it creates
// none, and does not extend its life.
func TestExplainLeavesCounters(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	for _, tt := range []struct {
		store string
		vars  []string
		all   func() string // the contents of the store; nil: not readable
	}{
		{store: "memory"},
		{"redis", []string{"REDIS_URL=" + server.Addr, "REDIS_TIMEOUT=5s"}, func() string {
			var all strings.Builder
			keys, ok := server.Do(t, "KEYS", "*d_*").([]any)
			if !ok {
				t.Fatal("KEYS has no list")
			}
			slices.SortFunc(keys, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
			for _, key := range keys {
				fmt.Fprintf(&all, "%s ends %v: %q\n", key, server.Do(t, "PEXPIRETIME", key), server.Do(t, "DUMP", key))
			}
			return all.String()
		}},
	} {
		t.Run(tt.store, func(t *testing.T) {
			s := launch(t, explainAlgorithms, tt.vars...)
			s.until("ready", s.healthy)
			for used := range 4 {
				before := ""
				if tt.all != nil {
					before = tt.all()
				}
				for range 3 {
					for _, more := range []string{"", "&hits=2", "&hits=0", "&refund=true"} {
						for _, kind := range algorithms(t) {
							code, _, text := s.explainAt("GET", "?domain=d&descriptors="+kind+"=x"+more, "", "")
							if want := fmt.Sprintf("now %d used, %d left", used, 3-used); code != 200 || !strings.Contains(text, want) {
								t.Fatalf("%s%s: %d, no %q in\n%s", kind, more, code, want, text)
							}
						}
					}
				}
				if tt.all != nil && tt.all() != before {
					t.Fatalf("with %d used, Redis went from\n%sto\n%s", used, before, tt.all())
				}
				for _, kind := range algorithms(t) {
					want := 200
					if used == 3 {
						want = 429
					}
					if got, err := s.post(kind, "x"); got != want || err != nil {
						t.Errorf("%s with %d used: %d, %v", kind, used, got, err)
					}
				}
			}
		})
	}
}

// algorithms are the keys of explainAlgorithms.
func algorithms(t *testing.T) (names []string) {
	for _, m := range regexp.MustCompile(`\{key: (\w+),`).FindAllStringSubmatch(explainAlgorithms, -1) {
		names = append(names, m[1])
	}
	if len(names) != 5 {
		t.Fatalf("got %q", names)
	}
	return names
}

// During a reload each explanation is by the old rules or by the new ones.
func TestExplainWhileReloading(t *testing.T) {
	t.Parallel()
	s := launch(t, explainRules)
	s.until("ready", s.healthy)
	other := strings.NewReplacer("domain: d", "domain: e", "key: ip", "key: address").Replace(explainRules)
	for round := range 6 {
		s.write([]string{other, explainRules}[round%2])
		s.until("the new rules explain", func() bool {
			code, _, text := s.explainAt("GET", "?domain=d&descriptors=ip=1", "", "")
			met := strings.Contains(text, "takes ip (") && strings.HasSuffix(text, "now the request passes\n")
			if missed := strings.Contains(text, "no rules have the domain d\n"); code != 200 || met == missed {
				t.Fatalf("%d %s", code, text)
			}
			return met == (round%2 == 1)
		})
	}
}
