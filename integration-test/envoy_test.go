package integration

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

const year = 365 * 24 * 60 * 60 // seconds

// The comments of proxy.yaml show requests and promise answers. Here they are
// sent as they stand there.
func TestEnvoyDemoAsPromised(t *testing.T) {
	harness.Envoy(t) // or skip, before the service is built
	rules := newRuleDir(t)
	rules.putExample(t, "example.yaml")
	f := startFront(t, startService(t, rules.env()...).grpc, false)

	text := testfiles.Read(t, proxyFile)
	curl := regexp.MustCompile(`# +curl -i localhost:8888(\S+)((?: -H "[^"]+")*) {2,}(.+)`)
	header := regexp.MustCompile(`-H "([^"]+)"`)
	promised := curl.FindAllStringSubmatch(string(text), -1)
	if len(promised) < 8 {
		t.Errorf("only %d requests found in %s", len(promised), proxyFile)
	}
	for _, m := range promised {
		c := call{path: m[1]}
		for _, h := range header.FindAllStringSubmatch(m[2], -1) {
			c.header += h[1] + ","
		}
		want, err := statuses(m[3])
		if err != nil {
			t.Fatal(err)
		}
		for i := range want {
			status, _, err := f.send(c)
			if err != nil {
				t.Fatal(err)
			}
			if status != want[i] {
				t.Errorf("%v, request %d: status %d, but promised is: %s", c, i+1, status, m[3])
			}
		}
	}
}

// statuses spells out a promise: "always 200", "200 twice, then 429".
func statuses(promise string) ([]int, error) {
	if after, ok := strings.CutPrefix(promise, "always "); ok {
		status, err := strconv.Atoi(after[:min(3, len(after))]) // a remark may follow
		return slices.Repeat([]int{status}, 6), err
	}
	words := []string{"", "once", "twice", "three times", "four times", "five times"}
	for n, word := range words {
		if promise == "200 "+word+", then 429" {
			return append(slices.Repeat([]int{200}, n), 429, 429), nil
		}
	}
	return nil, fmt.Errorf("cannot read the promise %q", promise)
}

// More than the comments say, and the same in other words.
func TestEnvoyDemo(t *testing.T) {
	harness.Envoy(t)
	rules := newRuleDir(t)
	rules.putExample(t, "example.yaml")
	f := startFront(t, startService(t, rules.env()...).grpc, false)

	tests := []struct {
		name string
		call call
		want []int
	}{
		{"a route without limits", call{path: "/"}, []int{200, 200, 200, 200, 200, 200}},
		{"a route's own limit", call{path: "/test"}, []int{200, 200, 200, 429, 429}},
		{"one header", call{"/header", "foo: foo"}, []int{200, 200, 429, 429}},
		{"its other values apart", call{"/header", "foo: fu"}, []int{200, 200, 429}},
		{"no header, no descriptor", call{path: "/header"}, []int{200, 200, 200, 200}},
		{"two headers", call{"/twoheader", "foo: foo, bar: bar"}, []int{200, 200, 200, 200, 200, 429}},
		{"a banned value", call{"/twoheader", "foo: foo, bar: banned"}, []int{429, 429}},
		{"three a minute", call{"/twoheader", "foo: foo, baz: baz"}, []int{200, 200, 200, 429, 429}},
		{"shadow mode", call{"/twoheader", "foo: foo, baz: shady"}, []int{200, 200, 200, 200, 200}},
		{"not in shadow mode", call{"/twoheader", "foo: foo, baz: not-so-shady"}, []int{200, 429, 429}},
		{"two descriptors, one over", call{"/twoheader", "foo: foo, bar: banned, baz: other"}, []int{429}},
		{"two descriptors, both within", call{"/twoheader", "foo: foo, bar: other, baz: other"}, []int{200, 200, 429}},
		{"the first of two headers missing", call{"/twoheader", "bar: banned"}, []int{200, 200}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for i, want := range test.want {
				status, _, err := f.send(test.call)
				if err != nil {
					t.Fatal(err)
				}
				if status != want {
					t.Errorf("request %d: status %d, want %d", i+1, status, want)
				}
			}
		})
	}
}

// What callers read about their limit, in Envoy's words.
func TestEnvoyHeaders(t *testing.T) {
	harness.Envoy(t)
	rules := newRuleDir(t)
	rules.putExample(t, "example.yaml")
	f := startFront(t, startService(t, rules.env()...).grpc, false)

	// The limit that counts comes first, then each limit that was looked at.
	const (
		foo, bar, baz = `2;w=31536000`, `5;w=31536000;name="foo-and-bar"`, `3;w=31536000`
		banned, shady = `0;w=31536000`, `1;w=31536000`
	)
	steps := []struct {
		call             call
		status           int
		limit, remaining string // "" for no such header
	}{
		{call{"/header", "foo: foo"}, 200, "2, " + foo, "1"},
		{call{"/header", "foo: foo"}, 200, "2, " + foo, "0"},
		{call{"/header", "foo: foo"}, 429, "2, " + foo, "0"},
		{call{"/twoheader", "foo: foo, bar: bar"}, 200, "5, " + bar, "4"},
		{call{"/twoheader", "foo: foo, bar: bar, baz: baz"}, 200, "3, " + bar + ", " + baz, "2"}, // the scarcer of two
		{call{"/twoheader", "foo: foo, bar: banned"}, 429, "0, " + banned, "0"},
		{call{"/twoheader", "foo: foo, baz: shady"}, 200, "1, " + shady, "0"},
		{call{"/twoheader", "foo: foo, baz: shady"}, 200, "1, " + shady, "0"}, // over, and only watched
		{call{path: "/"}, 200, "", ""},
	}
	for i, s := range steps {
		status, header, err := f.send(s.call)
		if err != nil {
			t.Fatal(err)
		}
		if status != s.status {
			t.Errorf("step %d: status %d, want %d", i+1, status, s.status)
		}
		if got := header.Get("X-Ratelimit-Limit"); got != s.limit {
			t.Errorf("step %d: limit %q, want %q", i+1, got, s.limit)
		}
		if got := header.Get("X-Ratelimit-Remaining"); got != s.remaining {
			t.Errorf("step %d: remaining %q, want %q", i+1, got, s.remaining)
		}
		if got, want := header.Get("X-Envoy-Ratelimited") != "", s.status == 429; got != want {
			t.Errorf("step %d: x-envoy-ratelimited sent %t, want %t", i+1, got, want)
		}
		reset := header.Get("X-Ratelimit-Reset")
		if s.limit == "" {
			if reset != "" {
				t.Errorf("step %d: reset %q without a limit", i+1, reset)
			}
			continue
		}
		if seconds, err := strconv.Atoi(reset); err != nil || seconds < 1 || seconds > year {
			t.Errorf("step %d: reset %q, want 1 to %d seconds", i+1, reset, year)
		}
	}
}

// The window in Envoy's header is the whole one, unit times multiplier.
func TestEnvoyHeadersOfLongWindows(t *testing.T) {
	harness.Envoy(t)
	tests := []struct{ rule, want string }{
		{"{unit: day, requests_per_unit: 7}", "7, 7;w=86400"},
		{"{unit: week, requests_per_unit: 7}", "7, 7;w=604800"},
		{"{unit: minute, unit_multiplier: 5, requests_per_unit: 7}", "7, 7;w=300"},
		{"{unit: week, unit_multiplier: 2, requests_per_unit: 7}", "7, 7;w=1209600"},
		{"{unlimited: true}", ""},
	}
	text := "domain: rl\ndescriptors:\n"
	for i, test := range tests {
		text += fmt.Sprintf("- {key: foo, value: v%d, rate_limit: %s}\n", i, test.rule)
	}
	rules := newRuleDir(t)
	rules.put(t, "rules.yaml", text)
	f := startFront(t, startService(t, rules.env()...).grpc, false)
	for i, test := range tests {
		status, header, err := f.send(call{"/header", fmt.Sprintf("foo: v%d", i)})
		if err != nil {
			t.Fatal(err)
		}
		if got := header.Get("X-Ratelimit-Limit"); got != test.want || status != 200 {
			t.Errorf("%s: status %d, limit %q, want 200, %q", test.rule, status, got, test.want)
		}
	}
}

// A changed rule file takes hold while requests run, and none of them notices
// in any other way.
func TestEnvoyDuringReload(t *testing.T) {
	harness.Envoy(t)
	allow := func(n int) string {
		return fmt.Sprintf("domain: rl\ndescriptors: [{key: foo, rate_limit: {unit: year, requests_per_unit: %d}}]\n", n)
	}
	rules := newRuleDir(t)
	rules.put(t, "rules.yaml", allow(3))
	s := startService(t, rules.env()...)
	f := startFront(t, s.grpc, false)

	load := startTraffic(f, call{"/header", "foo: foo"})
	defer load.stop()
	steps := []struct{ limit, status int }{
		{3, 429}, // soon used up
		{100_000_000, 200},
		{0, 429},
		{200_000_000, 200},
	}
	for i, step := range steps {
		if i > 0 {
			rules.put(t, "rules.yaml", allow(step.limit))
		}
		want := fmt.Sprintf("%d, %d;w=%d", step.limit, step.limit, year)
		s.until(t, fmt.Sprintf("the limit is %d", step.limit), func() error {
			status, header, err := f.send(load.call)
			if err != nil {
				t.Fatal(err)
			}
			if got := header.Get("X-Ratelimit-Limit"); got != want || status != step.status {
				return fmt.Errorf("status %d, limit %q; want %d, %q", status, got, step.status, want)
			}
			return nil
		})
	}

	// A file that is no good is refused, and the last limit stays.
	rules.put(t, "rules.yaml", "domain: rl\ndescriptors: [{key: foo, rate_limit: {unit: fortnight}}]\n")
	s.until(t, "the service says what is wrong", func() error {
		if log := s.log(t); !strings.Contains(log, "level=error") || !strings.Contains(log, "fortnight") {
			return errors.New("it does not mention the word")
		}
		return nil
	})
	if status, _, err := f.send(load.call); status != 200 || err != nil {
		t.Errorf("after a refused file: status %d, error %v, want 200", status, err)
	}

	results := load.stop()
	t.Logf("meanwhile: %v", results)
	for result, n := range results {
		if result != "200" && result != "429" {
			t.Errorf("%d requests met %s, want none", n, result)
		}
	}
	if results["200"] == 0 || results["429"] == 0 {
		t.Errorf("results %v, want some of both limits", results)
	}
}

// TestEnvoyWithEachEngine sends requests in parallel. Envoy asks about all of them on one connection, and each counts
// once.
func TestEnvoyWithEachEngine(t *testing.T) {
	harness.Envoy(t)
	const workers, requestsEach, limit = 16, 25, 150
	rules := newRuleDir(t)
	rules.put(t, "rules.yaml", fmt.Sprintf("domain: rl\ndescriptors: [{key: foo, rate_limit: {unit: year, "+
		"requests_per_unit: %d}}]\n", limit))
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			f := startFront(t, startService(t, append(rules.env(), "GRPC_ENGINE="+engine)...).grpc, true)
			var all sync.WaitGroup
			statuses := make(chan int, workers*requestsEach)
			for range workers {
				all.Go(func() {
					for range requestsEach {
						status, _, err := f.send(call{"/header", "foo: foo"})
						if err != nil {
							t.Error(err)
						}
						statuses <- status
					}
				})
			}
			all.Wait()
			close(statuses)
			count := make(map[int]int)
			for status := range statuses {
				count[status]++
			}
			if want := map[int]int{200: limit, 429: workers*requestsEach - limit}; !maps.Equal(count, want) {
				t.Errorf("these statuses came this often: %v, want %v", count, want)
			}
		})
	}
}

// Without the service Envoy does what failure_mode_deny says, and obeys the
// service again once it is back.
func TestEnvoyWithoutService(t *testing.T) {
	harness.Envoy(t)
	tests := []struct {
		name            string
		failureModeDeny bool
		meanwhile       int
	}{
		{"requests pass", false, 200},
		{"requests are refused", true, 500},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rules := newRuleDir(t)
			rules.putExample(t, "example.yaml")
			s := startService(t, rules.env()...)
			f := startFront(t, s.grpc, test.failureModeDeny)
			expect := func(when string, calls map[call]int) {
				t.Helper()
				for c, want := range calls {
					status, _, err := f.send(c)
					if err != nil {
						t.Fatal(err)
					}
					if status != want {
						t.Errorf("%s: %v: status %d, want %d", when, c, status, want)
					}
				}
			}
			banned := call{"/twoheader", "foo: foo, bar: banned"}
			allowed := call{"/twoheader", "foo: foo, bar: bar"}
			unasked := call{path: "/"}

			expect("with the service", map[call]int{banned: 429, allowed: 200, unasked: 200})
			s.stop(t)
			expect("without the service", map[call]int{banned: test.meanwhile, allowed: test.meanwhile, unasked: 200})

			_, port, err := net.SplitHostPort(s.grpc)
			if err != nil {
				t.Fatal(err)
			}
			startService(t, append(rules.env(), "GRPC_PORT="+port)...)
			f.until(t, "Envoy has found the service again", func() error {
				status, _, err := f.send(banned)
				if err == nil && status != http.StatusTooManyRequests {
					err = fmt.Errorf("status %d", status)
				}
				return err
			})
			expect("with the service back", map[call]int{allowed: 200})
		})
	}
}

// Envoy itself finds nothing wrong with the examples, and nothing outdated.
func TestEnvoyValidatesExamples(t *testing.T) {
	for _, path := range []string{
		proxyFile, mockFile, repository + "/examples/envoy/quota.yaml", tcpFile,
		tokenBudgetDir + "/envoy.yaml", repository + "/examples/concurrency/envoy.yaml",
	} {
		t.Run(path, func(t *testing.T) {
			out, err := exec.Command(harness.Envoy(t), "--mode", "validate", "--log-level", "warning", "--config-path",
				path).CombinedOutput()
			if err != nil {
				t.Fatalf("%v:\n%s", err, out)
			}
			if strings.Contains(strings.ToLower(string(out)), "deprecated") {
				t.Errorf("uses deprecated fields:\n%s", out)
			}
		})
	}
}

// traffic repeats one call, two at a time, and counts what comes of it.
type traffic struct {
	call call
	quit chan struct{}
	once sync.Once // closes quit
	all  sync.WaitGroup

	mu      sync.Mutex
	results map[string]int // by status, or by error; guarded by mu
}

func startTraffic(f *front, c call) *traffic {
	l := &traffic{call: c, quit: make(chan struct{}), results: make(map[string]int)}
	for range 2 {
		l.all.Go(func() {
			for {
				select {
				case <-l.quit:
					return
				default:
				}
				status, _, err := f.send(c)
				result := strconv.Itoa(status)
				if err != nil {
					result = err.Error()
				}
				l.mu.Lock()
				l.results[result]++
				l.mu.Unlock()
			}
		})
	}
	return l
}

// stop ends the traffic and returns how often each result was met. It may be
// called again.
func (l *traffic) stop() map[string]int {
	l.once.Do(func() { close(l.quit) })
	l.all.Wait()
	return l.results
}
