package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"gopkg.in/yaml.v3"

	"ratelimit/testbed/harness"
)

// blocks returns the blocks of a page of that kind that begin with prefix.
func blocks(t *testing.T, page, kind, prefix string) []string {
	t.Helper()
	var found []string
	for _, m := range regexp.MustCompile("(?s)```"+kind+"\n(.*?)```").FindAllStringSubmatch(read(t, page), -1) {
		if strings.HasPrefix(m[1], prefix) {
			found = append(found, m[1])
		}
	}
	if len(found) == 0 {
		t.Fatalf("%s has no block of %s that begins with %q", page, kind, prefix)
	}
	return found
}

// startRecipe serves the rules of a domain from a page. Their units are years, so
// that the test does not meet the end of a window.
func startRecipe(t *testing.T, page, domain string, env ...string) *service {
	t.Helper()
	text := blocks(t, page, "yaml", "domain: "+domain+"\n")[0]
	text = regexp.MustCompile(`unit: minute(, unit_multiplier: \d+)?`).ReplaceAllString(text, "unit: year")
	rules := newRuleDir(t)
	rules.put(t, "recipe.yaml", text)
	env = append(env, "USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")
	return startService(t, append(rules.env(), env...)...)
}

// matches says where a pattern is missing.
func matches(t *testing.T, url, pattern string) {
	t.Helper()
	text, err := get(url)
	if err != nil || !regexp.MustCompile(pattern).Match(text) {
		t.Errorf("%s does not match %s: %v\n%s", url, pattern, err, text)
	}
}

// What the recipe looks at is there: the counter, the line in the log, the
// explanation and the metric.
func TestRecipeWhy429(t *testing.T) {
	const page = "docs/recipes/why-429.md"
	s := startRecipe(t, page, "accounts", "LOG_DENIALS=10")
	for range 4 {
		s.ask(t, "accounts", "login=alex")
	}
	matches(t, "http://"+s.debug+"/stats", `rate_limit\.accounts.*over_limit: 1\n`)
	matches(t, "http://"+s.prometheus+"/metrics",
		`\nratelimit_decisions_total\{domain="accounts",outcome="over",rule="login"\} 1\n`)
	for _, line := range blocks(t, page, "sh", "curl 'localhost:6070/explain") {
		path := strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(line), "curl 'localhost:6070"), "'")
		matches(t, "http://"+s.debug+path, `rule accounts\.login `)
	}
	for _, want := range []int{0, 1} { // The second reset finds no counter.
		reset := strings.TrimSpace(blocks(t, page, "sh", "ratelimit counter reset")[0])
		if out, errOut, code := shell(t, reset+" --address "+s.debug); code != want {
			t.Errorf("%s: exit %d, %s%s", reset, code, out, errOut)
		}
	}
	line := regexp.MustCompile(`wait=\S+`).ReplaceAllString(blocks(t, page, "text", "level=info")[0], `wait=\S+`)
	s.until(t, "the denial is in the log", func() error {
		if !regexp.MustCompile(strings.TrimSpace(line)).MatchString(s.log(t)) {
			return errors.New("it is not")
		}
		return nil
	})
}

// The metric of step 2 counts what a rule in shadow mode would have refused.
func TestRecipeRollOut(t *testing.T) {
	s := startRecipe(t, "docs/recipes/roll-out-a-limit.md", "rollout")
	for range 3 {
		if status, _ := s.ask(t, "rollout", "customer=acme"); status != 200 {
			t.Errorf("status %d", status)
		}
	}
	matches(t, "http://"+s.prometheus+"/metrics",
		`\nratelimit_decisions_total\{domain="rollout",outcome="shadow",rule="customer"\} 1\n`)
}

// Envoy's API has every field of the routes that recipes show.
func TestRecipeRoutes(t *testing.T) {
	for _, text := range blocks(t, "docs/recipes/protect-a-login.md", "yml", "- match:") {
		var routes []any
		if err := yaml.Unmarshal([]byte(text), &routes); err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			data, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			route := new(routev3.Route)
			if err := protojson.Unmarshal(data, route); err != nil {
				t.Fatalf("%v in\n%s", err, text)
			}
			if err := route.ValidateAll(); err != nil {
				t.Errorf("%v in\n%s", err, text)
			}
		}
	}
}

// startRoutes serves the rules of a domain of a page. It returns a function that starts an Envoy with the routes of
// that page after change has edited them.
func startRoutes(t *testing.T, page, domain string) func(change func(routes string) string) *front {
	t.Helper()
	harness.Envoy(t) // or skip, before the service is built
	backend := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(backend.Close)
	r := &holdsRecipe{service: startRecipe(t, page, domain), dir: tokenBudgetDir, backend: backend}
	text := blocks(t, page, "yml", "- match:")[0]
	return func(change func(string) string) *front {
		return r.envoy(t, func(t *testing.T, config *document) {
			var routes yaml.Node
			if err := yaml.Unmarshal([]byte(change(text)), &routes); err != nil {
				t.Fatal(err)
			}
			*config.at("routes")[0] = *routes.Content[0]
			config.set(t, "cluster", "model")
			config.set(t, "domain", domain)
		})
	}
}

// A search takes ten units, and a refused one none, through a real Envoy. A cost may also come from a header.
func TestRecipeWeightedRequests(t *testing.T) {
	envoy := startRoutes(t, "docs/recipes/weighted-requests.md", "shop")
	fixed := envoy(func(routes string) string { return routes })
	byHeader := envoy(func(routes string) string {
		return strings.Replace(routes, "{number: 10}", `{format: "%REQ(x-cost)%"}`, 1)
	})
	for i, step := range []struct {
		front  *front
		path   string
		header string
		want   int
	}{
		{fixed, "/search?q=tea", "x-user: alex", 200}, // 10
		{fixed, "/items", "x-user: alex", 200},        // 11
		{fixed, "/search?q=tea", "x-user: alex", 429},
		{byHeader, "/search?q=tea", "x-user: alex, x-cost: 10", 429},
		{byHeader, "/search?q=tea", "x-user: alex, x-cost: 8", 200}, // 19
		{fixed, "/items", "x-user: alex", 200},                      // 20
		{fixed, "/items", "x-user: alex", 429},
		{byHeader, "/search?q=tea", "x-user: alex", 200}, // Envoy sends no descriptor.
		{byHeader, "/search?q=tea", "x-user: alex, x-cost: much", 200},
		{byHeader, "/search?q=tea", "x-user: alex, x-cost: 1", 429},
	} {
		status, _, err := step.front.send(call{path: step.path, header: step.header})
		if err != nil {
			t.Fatal(err)
		}
		if status != step.want {
			t.Errorf("request %d, %s of %s: status %d, want %d", i+1, step.path, step.header, status, step.want)
		}
	}
}

// The lines of the crontab swap the rules while the service runs, and what was used stays counted. A changed limit does
// the same without files.
func TestRecipeTimeOfDay(t *testing.T) {
	const page = "docs/recipes/time-of-day.md"
	for store, env := range holdStores {
		t.Run(store, func(t *testing.T) {
			root := t.TempDir()
			day := strings.Replace(blocks(t, page, "yaml", "# /srv/rules/day/")[0], "unit: hour", "unit: year", 1)
			write(t, root+"/day/config/reports.yaml", day)
			night := strings.Replace(day, "requests_per_unit: 2", "requests_per_unit: 4", 1)
			write(t, root+"/night/config/reports.yaml", night)
			link(t, "day", root+"/current")
			s := startService(t, append(env(t), "RUNTIME_ROOT="+root+"/current", "RUNTIME_DEBOUNCE=10ms")...)
			swap := func(to string) {
				line := regexp.MustCompile(`(?m)^0 \d+ \* \* \* (ln -sfn ` + to + ` .*)$`).FindStringSubmatch(read(t, page))[1]
				if out, errOut, code := shell(t, strings.ReplaceAll(line, "/srv/rules", root)); code != 0 {
					t.Fatalf("%s: exit %d, %s%s", line, code, out, errOut)
				}
			}
			// allows waits until the limit of a user is n, and sends requests of alex until one is refused.
			allows := func(when string, n, left int) {
				t.Helper()
				s.until(t, when, func() error {
					_, answer := s.ask(t, "reports", "user="+when)
					if got := answer.Statuses[0].CurrentLimit.RequestsPerUnit; int(got) != n {
						return fmt.Errorf("the limit is %d, want %d", got, n)
					}
					return nil
				})
				for i := range left + 1 {
					want := map[bool]int{true: admitted, false: refused}[i < left]
					if status, _ := s.ask(t, "reports", "user=alex"); status != want {
						t.Errorf("%s: request %d of %d is answered %d, want %d", when, i+1, left+1, status, want)
					}
				}
			}
			allows("by day", 2, 2)
			swap("night")
			allows("by night", 4, 2)
			swap("day")
			allows("by day again", 2, 0)
			set := regexp.MustCompile("`(ratelimit limit set [^`]*)`").FindStringSubmatch(read(t, page))[1]
			if out, errOut, code := shell(t, set+" --address "+s.debug); code != 0 {
				t.Fatalf("%s: exit %d, %s%s", set, code, out, errOut)
			}
			allows("with a changed limit", 4, 0)
		})
	}
}
