package gateway

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// All policies are in force at once, and each is enforced.
func TestPolicies(t *testing.T) {
	onlyFull(t)
	cases := readCases(t)
	s := startStack(t, cases)
	t.Run("rules in force", s.checkRules)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { s.play(t, c) })
	}
}

// Policies change, and parts of the stack stop and come back. The policy of all-requests is used up all the time, and
// stays so. There is no other, since standalone mode reads all resources anew for each change, which takes seconds for
// those of all cases.
func TestEvents(t *testing.T) {
	onlyFull(t)
	cases := slices.DeleteFunc(readCases(t), func(c *policyCase) bool { return c.name != "all-requests" })
	s := startStack(t, cases)
	s.play(t, cases[0])
	for _, event := range []struct {
		name  string
		check func(*testing.T)
	}{
		{"a policy changes", s.changePolicy},
		{"a policy is removed", s.removePolicy},
		{"a policy is wrong", s.wrongPolicy},
		{"the service restarts", s.restartService},
		{"Redis stops and comes back", s.stopRedis},
		{"Envoy Gateway restarts", s.restartGateway},
	} {
		t.Run(event.name, event.check)
	}
}

// A policy of a route that each event uses.
func eventPolicy(name, rules string) string {
	return strings.NewReplacer("NAME", name, "RULES", rules).Replace(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: NAME, namespace: default}
spec:
  parentRefs: [{name: main}]
  hostnames: [NAME.example]
  rules:
  - backendRefs: [{group: gateway.envoyproxy.io, kind: Backend, name: http}]
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: BackendTrafficPolicy
metadata: {name: NAME, namespace: default}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: NAME}]
  rateLimit:
    global:
      rules: [RULES]
`)
}

func perYear(n int) string { return fmt.Sprintf("{limit: {requests: %d, unit: Year}}", n) }

// apply writes a policy, and waits until a request shows it. Each poll charges one of at least a million requests.
func (s *stack) apply(t *testing.T, name, rules string, want ...string) {
	t.Helper()
	s.writeResources(t, name+".yaml", eventPolicy(name, rules))
	s.awaitAnswer(t, name, want...)
}

// eventDeadline is for changes of Envoy's configuration, which Envoy Gateway takes a second for, or many if the machine
// is busy.
const eventDeadline = 6 * harness.Deadline

// awaitAnswer waits until a request is answered with a code and headers, and logs how long that took.
func (s *stack) awaitAnswer(t *testing.T, name string, want ...string) {
	t.Helper()
	begun := time.Now()
	harness.Await(t, eventDeadline, fmt.Sprintf("no answer %q", want), func() error {
		return s.expect(t, request{method: "GET", host: name + ".example", path: "/"},
			answer{code: want[0], headers: want[1:]})
	})
	t.Logf("answer %q after %v", want, time.Since(begun).Round(10*time.Millisecond))
}

// Each rule that a case has is in force, under the domain of its listener or, if it is shared, of its policy.
func (s *stack) checkRules(t *testing.T) {
	var rules string
	harness.Await(t, eventDeadline, "rules are missing", func() (err error) {
		rules, err = s.rules()
		for _, domain := range []string{"default/main/http.", "default/merged/http.", "default/routes-share."} {
			if err == nil && !strings.Contains(rules, "\n"+domain) && !strings.HasPrefix(rules, domain) {
				err = fmt.Errorf("no rule of the domain %s in\n%s", strings.TrimSuffix(domain, "."), rules)
			}
		}
		return err
	})
	for line := range strings.Lines(readFile(t, s.service.Log)) {
		known := slices.ContainsFunc([]string{
			"level=info", "GRPC_SERVER_TLS_CA_CERT has no effect",
			"/etc/statsd-exporter/conf.yaml", "xds server localhost:18001",
		}, func(text string) bool {
			return strings.Contains(line, text)
		})
		if !known {
			t.Errorf("the service warns: %s", line)
		}
	}
	t.Logf("%d rules are in force", strings.Count(rules, "\n"))
}

// Is a changed policy in force soon, and do unchanged ones keep their counters?
func (s *stack) changePolicy(t *testing.T) {
	s.apply(t, "changed", perYear(1_000_000), "200", "x-ratelimit-limit=1000000,1000000;w=31536000")
	s.apply(t, "changed", perYear(2_000_000), "200", "x-ratelimit-limit=2000000,2000000;w=31536000")
	s.awaitAnswer(t, "all-requests", "429")
}

// Are requests no longer limited after a policy is removed, and is its rule gone from the service?
func (s *stack) removePolicy(t *testing.T) {
	s.apply(t, "removed", perYear(1_000_000), "200", "x-ratelimit-limit=1000000,1000000;w=31536000")
	route, _, _ := strings.Cut(eventPolicy("removed", ""), "---\n")
	s.writeResources(t, "removed.yaml", route)
	s.awaitAnswer(t, "removed", "200", "!x-ratelimit-limit")
	s.awaitRules(t, "the rule is gone", func(rules string) bool { return !strings.Contains(rules, "/removed/") })
	s.awaitAnswer(t, "all-requests", "429")
}

func (s *stack) awaitRules(t *testing.T, what string, done func(string) bool) {
	t.Helper()
	harness.Await(t, eventDeadline, "not yet: "+what, func() error {
		rules, err := s.rules()
		if err == nil && !done(rules) {
			err = errors.New(rules)
		}
		return err
	})
}

// Does a policy that Envoy Gateway refuses leave the others in force?
func (s *stack) wrongPolicy(t *testing.T) {
	s.writeResources(t, "wrong.yaml",
		eventPolicy(
			"wrong", `{clientSelectors: [{headers: [{name: x-user, type: RegularExpression, value: "("}]}], limit: {requests: 1, unit: Year}}`))
	s.apply(t, "beside-wrong", perYear(1_000_000), "200", "x-ratelimit-limit=1000000,1000000;w=31536000")
	s.awaitAnswer(t, "all-requests", "429")
	if err := os.Remove(filepath.Join(s.resources, "wrong.yaml")); err != nil {
		t.Fatal(err)
	}
}

// Does a service that restarts get its rules again while Envoy Gateway lives, and are the counters still in Redis?
func (s *stack) restartService(t *testing.T) {
	before, err := s.rules()
	if err != nil {
		t.Fatal(err)
	}
	s.service.Stop()
	// Envoy lets requests pass, since Envoy Gateway does not set failClosed by default
	s.awaitAnswer(t, "all-requests", "200")
	if err := s.service.Start(); err != nil {
		t.Fatal(err)
	}
	s.awaitRules(t, "the rules are those of before", func(rules string) bool { return sorted(rules) == sorted(before) })
	s.awaitAnswer(t, "all-requests", "429")
	s.apply(t, "changed", perYear(3_000_000), "200", "x-ratelimit-limit=3000000,3000000;w=31536000")
}

// Domains have no order.
func sorted(rules string) string {
	lines := strings.SplitAfter(rules, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// Do requests pass while Redis is down, and are limits enforced again when it is back?
func (s *stack) stopRedis(t *testing.T) {
	s.apply(t, "redis", perYear(1_000_000), "200", "x-ratelimit-limit=1000000,1000000;w=31536000")
	s.redis.Stop()
	s.awaitAnswer(t, "redis", "200", "!x-ratelimit-limit")
	s.redis.Restart(t)
	s.awaitAnswer(t, "redis", "200", "x-ratelimit-limit=1000000,1000000;w=31536000")
	s.awaitAnswer(t, "all-requests", "429") // its counter is gone with Redis' memory, and is charged anew
}

// Do the rules stay while Envoy Gateway is down, and is a policy that changed meanwhile in force after it is back?
func (s *stack) restartGateway(t *testing.T) {
	before, err := s.rules()
	if err != nil {
		t.Fatal(err)
	}
	s.gateway.Stop()
	s.writeResources(t, "changed.yaml", eventPolicy("changed", perYear(4_000_000)))
	harness.Await(t, eventDeadline, "the service does not notice", func() error {
		if text := readFile(t, s.service.Log); !strings.Contains(text, "the rules stay as they are") {
			return errors.New("its log does not say so")
		}
		return nil
	})
	if rules, err := s.rules(); err != nil || rules != before {
		t.Errorf("%v; without Envoy Gateway the rules are\n%swant\n%s", err, rules, before)
	}
	if err := s.gateway.Start(); err != nil {
		t.Fatal(err)
	}
	s.awaitEnvoy(t)
	s.awaitAnswer(t, "changed", "200", "x-ratelimit-limit=4000000,4000000;w=31536000")
	s.awaitAnswer(t, "all-requests", "429")
}
