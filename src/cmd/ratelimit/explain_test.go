package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
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

// file writes text to a file in a new directory and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestExplainFiles(t *testing.T) {
	config := file(t, "a.yaml", explainRules)
	const asked = `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"1, 2"}],"hitsAddend":"3"}]}`
	request := file(t, "request.json", asked)
	for _, tt := range []struct {
		args []string
		code int
		want []string // in the output, in this order
	}{
		{
			[]string{"--config", config, "--domain", "d", "--descriptors", "ip=1", "--descriptors", "vip=x,y=z"},
			0,
			[]string{
				"1 of 2, d: ip=1\n", "takes ip (" + config + ":4:5): key alone", "rule d.ip (", "2 per year", "per-ip",
				"charges 1 hit to counter d_ip_1_", "2 of 2", "no rule: the rules end at vip, entry 1 of 2",
			},
		},
		{
			[]string{"-config", filepath.Dir(config), "-domain", "d", "-descriptors", "ip=10.1", "--hits", "0"},
			0,
			[]string{"takes ip=10.*", "shadow mode", "looks only at counter d_ip_10.1_"},
		},
		{
			[]string{"--config", config, "--domain", "d", "--descriptors", "ip=1", "--refund"},
			0,
			[]string{"gives 1 hit back to counter"},
		},
		{[]string{"--config", config, "--request", request}, 0, []string{`ip="1, 2"`, "charges 3 hits"}},
		{[]string{"--config", config, "--request", "-"}, 0, []string{`ip="1, 2"`, "charges 3 hits"}},
		{
			[]string{"--config", config, "--domain", "d", "--descriptors", "ip=/items?page=2,key=dGVzdA=="},
			0,
			[]string{"d: ip=/items?page=2, key=dGVzdA==\n", "the rules end at ip, entry 1 of 2"},
		},
		{
			[]string{"--config", config, "--domain", "D", "--descriptors", "ip=1"},
			0,
			[]string{"no rules have the domain D", "did you mean d?"},
		},
		{
			[]string{"--config", config, "--key-format", "v2", "--domain", "d", "--descriptors", "ip=1_2"},
			0,
			[]string{"counter d_ip_1%5F2_"},
		},
		{
			[]string{"--config", config, "--key-format", "v3", "--domain", "d", "--descriptors", "ip=1_2"},
			2,
			[]string{"write v1 or v2"},
		},
		{nil, 2, []string{"name a domain"}},
		{
			[]string{"--config", config, "--address", "localhost", "--domain", "d", "--descriptors", "ip=1"},
			2,
			[]string{"name either rules with --config or a service with --address"},
		},
		{[]string{"--config", config, "--descriptors", "ip=1"}, 2, []string{"name a domain"}},
		{[]string{"--config", config, "--domain", "d"}, 2, []string{"name at least one descriptor"}},
		{[]string{"--config", config, "--domain", "d", "--descriptors", "ip"}, 2, []string{`"ip" is not that`}},
		{
			[]string{"--config", "../../../examples/trees", "--domain", "limits", "--path", "user/alex/trade"},
			0,
			[]string{"\n  alex\n    takes * (", "charges 1 hit to counter limits_user_alex_trade_"},
		},
		{
			[]string{"--config", "../../../examples/trees", "--domain", "limits", "--path", "user//trade"},
			2,
			[]string{"-path user//trade: write words, with a slash between each two"},
		},
		{[]string{"--config", config, "--request", request, "--hits", "2"}, 2, []string{"leave out --hits"}},
		{[]string{"--config", config, "--request", config}, 1, []string{"the request is not a RateLimitRequest"}},
		{
			[]string{"--config", config, "--request", file(t, "none.json", `{"domain":"d"}`)},
			1,
			[]string{"bad request: there are no descriptors"},
		},
		{[]string{"--config", config, "--request", filepath.Join(t.TempDir(), "none")}, 1, []string{"no such file"}},
		{
			[]string{"--config", request, "--domain", "d", "--descriptors", "ip=1"},
			1,
			[]string{"error: " + request, "the rules have problems"},
		},
		{[]string{"--address", "127.0.0.1:1", "--domain", "d", "--descriptors", "ip=1"}, 1, []string{"connection refused"}},
		{
			[]string{"--address", "http://user:secret@127.0.0.1:1", "--domain", "d", "--descriptors", "ip=1"},
			2,
			[]string{"leave out the password"},
		},
		{
			[]string{"--address", "127.0.0.1:1", "--request", file(t, "broken.json", "{")},
			1,
			[]string{"the request is not JSON"},
		},
	} {
		code, out, errOut := callWithInput(t, asked, append([]string{"ratelimit", "explain"}, tt.args...)...)
		if code != tt.code {
			t.Errorf("%q: exit %d, want %d\n%s%s", tt.args, code, tt.code, out, errOut)
		}
		rest := out + errOut
		for _, want := range tt.want {
			at := strings.Index(rest, want)
			if at < 0 {
				t.Errorf("%q: no %q in\n%s%s", tt.args, want, out, errOut)
				break
			}
			rest = rest[at+len(want):]
		}
	}
	_, out, _ := call(t, "ratelimit", "explain", "--config", config, "--domain", "d", "--descriptors", "ip=1", "--json")
	report := new(explain.Report)
	if err := json.Unmarshal([]byte(out), report); err != nil || report.Decision != nil || len(report.Descriptors) != 1 ||
		report.Descriptors[0].Charges[0].Key != "d_ip_1_" {
		t.Errorf("%v in\n%s", err, out)
	}
}

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
		{"GET", "?domain=d&descriptors=ip", "", 400, `descriptors=ip: write key=value`},
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
	if keys := fmt.Sprint(server.Do(t, "KEYS", "*")); keys != "[]" {
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
	if code != 503 || text != "the store did not answer\n" {
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
			keys, ok := server.Do(t, "KEYS", "*").([]any)
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
