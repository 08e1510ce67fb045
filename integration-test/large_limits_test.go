package integration

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/testbed/browser"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

const (
	// budget is 100,000 dollars in micro-dollars.
	budget     = 100_000_000_000
	budgetText = "100000000000"
)

// budgetRules have a budget a year for each algorithm. Memcached has the first three.
var budgetRules = []string{
	"- {key: fixed, rate_limit: {unit: year, requests_per_unit: 100_000_000_000}}",
	"- {key: plan, limits_from: plans.csv, rate_limit: {unit: year}}",
	"- {key: slide, rate_limit: {unit: year, requests_per_unit: 100_000_000_000, " +
		"algorithm: sliding_window_counter, count_blocked: true}}",
	"- {key: first, rate_limit: {unit: year, requests_per_unit: 100_000_000_000, algorithm: first_hit_window}}",
	"- {key: gcra, rate_limit: {unit: year, requests_per_unit: 100_000_000_000, algorithm: gcra}}",
}

// A budget in micro-dollars is spent to the last one, by two replicas that share a store, with charges of 1 to 10^9.
// All that shows numbers shows whole ones, but for the fields with 32 bits.
func TestLargeLimits(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		env  func(t *testing.T) []string
		keys []string
	}{
		"memory": {
			func(*testing.T) []string { return nil }, []string{"fixed=a", "plan=acme", "slide=a", "first=a", "gcra=a"},
		},
		"redis": {
			func(t *testing.T) []string {
				return []string{
					"BACKEND_TYPE=redis", "REDIS_URL=" + redistest.Start(t, redistest.Options{}).Addr, "REDIS_TIMEOUT=5s",
					"LOCAL_CACHE_SIZE_IN_BYTES=1000000", "COUNTING_MODE=leased",
				}
			}, []string{"fixed=a", "plan=acme", "slide=a", "first=a", "gcra=a"},
		},
		"memcached": {
			func(t *testing.T) []string {
				return []string{
					"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + memcachedtest.Start(t, memcachedtest.Options{}).Addr,
					"MEMCACHE_TIMEOUT=5s",
				}
			}, []string{"fixed=a", "plan=acme", "slide=a"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rules := newRuleDir(t)
			rules.put(t, "llm.yaml", "domain: llm\ndescriptors:\n"+strings.Join(budgetRules[:len(test.keys)], "\n"))
			rules.put(t, "plans.csv", "free,1000\nacme,100000000000\n")
			env := append(test.env(t), "LIMIT_RESPONSE_HEADERS_ENABLED=true")
			replicas := []*upstream{startWith(t, rules, env...)}
			if name != "memory" {
				replicas = append(replicas, startWith(t, rules, env...))
			}
			for _, key := range test.keys {
				spendBudget(t, replicas, key)
			}
		})
	}
}

// charge charges a number of units, and returns the answer.
func (u *upstream) charge(t *testing.T, descriptor string, units uint64) *rlsv3.RateLimitResponse {
	t.Helper()
	req := request("llm", descriptor)
	req.Descriptors[0].HitsAddend = wrapperspb.UInt64(units)
	answer, err := rlsv3.NewRateLimitServiceClient(u.conn).ShouldRateLimit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

// spendBudget charges a budget until nothing is left, and looks at what the answers and the commands say.
func spendBudget(t *testing.T, replicas []*upstream, descriptor string) {
	t.Helper()
	// Within seconds a bucket gets back some thousands of units, and the last charge may find more than is left here.
	isBucket := strings.HasPrefix(descriptor, "gcra")
	rnd, left := rand.New(rand.NewPCG(1, 1)), uint64(budget)
	for i := 0; left > 0; i++ {
		units := min(1+rnd.Uint64N(1e9), left)
		answer := replicas[i%len(replicas)].charge(t, descriptor, units)
		left -= units
		st := answer.Statuses[0]
		shown := min(left, math.MaxUint32)
		isExact := st.LimitRemaining == uint32(shown) || isBucket && uint64(st.LimitRemaining) >= shown
		if answer.OverallCode != rlsv3.RateLimitResponse_OK || st.CurrentLimit.RequestsPerUnit != math.MaxUint32 || !isExact {
			t.Fatalf("%s, charge %d of %d with %d left: %v", descriptor, i, units, left, answer)
		}
		headers := make(map[string]string)
		for _, h := range answer.ResponseHeadersToAdd {
			headers[strings.ToLower(h.Key)] = h.Value
		}
		if limit, n := headers["ratelimit-limit"], headers["ratelimit-remaining"]; limit != budgetText ||
			n != fmt.Sprint(left) && !isBucket {
			t.Fatalf("%s: headers %v with %d left", descriptor, headers, left)
		}
		if i == 2 {
			replicas[0].showBudget(t, descriptor, left, isBucket)
		}
	}
	for _, u := range replicas {
		if answer := u.charge(t, descriptor, 1e6); answer.OverallCode != rlsv3.RateLimitResponse_OVER_LIMIT {
			t.Errorf("%s: a charge passes when nothing is left: %v", descriptor, answer)
		}
	}
}

// showBudget looks at what /json and the commands say of a budget.
func (u *upstream) showBudget(t *testing.T, descriptor string, left uint64, isBucket bool) {
	t.Helper()
	key, value, _ := strings.Cut(descriptor, "=")
	body := fmt.Sprintf(`{"domain":"llm","descriptors":[{"entries":[{"key":%q,"value":%q}],"hitsAddend":"0"}]}`, key, value)
	resp, err := client.Post("http://"+u.http+"/json", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	explanation, _, _ := program(t, "explain", "--domain", "llm", "--descriptors", descriptor, "--address", u.debug)
	counter, _, _ := program(t, "counter", "get", "llm", descriptor, "--address", u.debug)
	for _, shown := range []struct{ what, text, limit, left string }{
		{"/json", string(text), `"requestsPerUnit":` + budgetText + `,`, fmt.Sprintf(`"limitRemaining":%d,`, left)},
		{"explain", explanation, budgetText + " per year", fmt.Sprint(left)},
		{"counter get", counter, budgetText, fmt.Sprint(budget - left)},
	} {
		if !strings.Contains(shown.text, shown.limit) || !isBucket && !strings.Contains(shown.text, shown.left) {
			t.Errorf("%s of %s with %d left: %s", shown.what, descriptor, left, shown.text)
		}
	}
}

// A budget is raised and refused at run time, and tools show and check it.
func TestLargeLimitsInTools(t *testing.T) {
	t.Parallel()
	rules := newRuleDir(t)
	rules.put(t, "llm.yaml", "domain: llm\ndescriptors:\n"+budgetRules[0])
	u := startWith(t, rules)
	u.charge(t, "fixed=a", 7)
	if out := u.limit(t, "set", "llm", "fixed=a", "--rate", "281474976710656", "--reason", "test"); !strings.Contains(out,
		budgetText+" per year -> 281474976710656 per year") || !strings.Contains(out, "281474976710649") {
		t.Error(out)
	}
	if out := u.limit(t, "export", "llm"); !strings.Contains(out, "requests_per_unit: 281474976710656") {
		t.Error(out)
	}
	_, errOut, code := program(t, "limit", "set", "llm", "fixed=a", "--rate", "281474976710657", "--reason", "test",
		"--address", u.debug)
	if code != 2 || !strings.Contains(errOut, "is not a number of at most 281474976710656") {
		t.Errorf("%d, %s", code, errOut)
	}
	page := browser.Start(t).Open(t, "http://"+u.debug+"/", 1280)
	page.Type("#explain-domain", "llm")
	page.Type("#explain-descriptors", "fixed=a")
	page.Click("#explain-form button[type=submit]")
	page.Await("document.querySelector('#explain-result .charge')?.textContent.includes(" +
		"'7 used, 281,474,976,710,649 left')")
	out, _, code := program(t, "check", "--strict", rules.files)
	if code != 0 || !strings.Contains(out, "show a limit of "+budgetText+" as 4294967295") {
		t.Errorf("%d, %s", code, out)
	}
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("domain: d\ndescriptors:\n- {key: a, rate_limit: {unit: year, "+
		"requests_per_unit: 281474976710657}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, errOut, code = program(t, "check", bad)
	if code != 1 || !strings.Contains(out+errOut,
		`bad.yaml:3:56: requests_per_unit is out of range: "281474976710657"; write 0 to 281474976710656`) {
		t.Errorf("%d, %s%s", code, out, errOut)
	}
}

// Recordings with large charges are replayed, compared and measured in whole numbers, and tests of rules expect them.
func TestLargeLimitsOffline(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		testfiles.Write(t, path, text)
		return path
	}
	write("new/llm.yaml", "domain: llm\ndescriptors:\n"+budgetRules[0])
	write("old/llm.yaml", strings.Replace("domain: llm\ndescriptors:\n"+budgetRules[0], "100_", "40_", 1))
	write("new/llm_test.yaml", "rules: .\ntests:\n- name: budget\n  steps:\n"+
		"  - {ask: 'llm: fixed=a', hits: 99999999999, expect: OK, statuses: [{limit: 100000000000, remaining: 1}]}\n"+
		"  - {ask: 'llm: fixed=a', hits: 2, expect: OVER_LIMIT}\n")
	var lines strings.Builder
	for i := range 61 {
		fmt.Fprintf(&lines, `{"at":"%ds","request":{"domain":"llm","descriptors":[{"entries":[{"key":"fixed","value":"a"}],`+
			`"hitsAddend":"999999999"}]}}`+"\n", i)
	}
	recording := write("recording.jsonl", lines.String())
	for _, test := range []struct {
		command []string
		want    string
	}{
		{[]string{"test", filepath.Join(dir, "new")}, "1 test, 2 requests"},
		{[]string{"simulate", recording, "--config", filepath.Join(dir, "new")}, `"limitRemaining":39000000061,`},
		{
			[]string{"diff", filepath.Join(dir, "old"), filepath.Join(dir, "new"), "--requests", recording},
			"limit: 40000000000 per year -> 100000000000 per year (looser)\n\n61 requests replayed: 21 get another answer",
		},
		{
			[]string{"propose", recording, filepath.Join(dir, "new"), "--limit", "50000000000"},
			"llm.fixed  --limit      50000000000       18.033%              100%",
		},
	} {
		if out, errOut, _ := program(t, test.command...); !strings.Contains(out, test.want) {
			t.Errorf("%v: %s%s", test.command, out, errOut)
		}
	}
}
