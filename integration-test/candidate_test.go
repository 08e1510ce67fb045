package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"ratelimit/src/operator"
	"ratelimit/testbed/redistest"
)

// candidateState returns what /candidate says.
func (s *service) candidateState(t *testing.T) (c operator.Candidate) {
	t.Helper()
	resp, err := client.Get("http://" + s.debug + "/candidate?format=json")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&c); err != nil {
		t.Fatal(err)
	}
	return c
}

// untilCandidate waits until a number of candidate rules is judged.
func (s *service) untilCandidate(t *testing.T, rules int) {
	t.Helper()
	s.until(t, fmt.Sprintf("%d candidate rules are judged", rules), func() error {
		if c := s.candidateState(t); c.Rules != rules || len(c.Problems) > 0 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

// A directory of candidate rules appears, its differences show, and its files are moved to the live rules: a limit that
// no live limit counted goes on counting, and so does a limit with another number.
func TestCandidateIsPutInForce(t *testing.T) {
	t.Parallel()
	for _, store := range []string{"memory", "redis"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			rules := newRuleDir(t)
			next := ruleDir{root: rules.root, files: filepath.Join(rules.root, "next", "config")}
			rules.put(t, "shop.yaml", "domain: shop\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 5}}]")
			env := append(rules.env(), "RUNTIME_CANDIDATE_SUBDIRECTORY=next", "RUNTIME_DEBOUNCE=10ms", "DISABLE_STATS=true")
			if store == "redis" {
				env = append(env, "BACKEND_TYPE=redis", "REDIS_TIMEOUT=5s",
					"REDIS_URL="+redistest.Start(t, redistest.Options{}).Addr)
			}
			s := startService(t, env...)
			if err := os.MkdirAll(next.files, 0o755); err != nil {
				t.Fatal(err)
			}
			next.put(t, "shop.yaml", `domain: shop
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: ip, rate_limit: {unit: year, requests_per_unit: 4, algorithm: sliding_window}}
`)
			s.untilCandidate(t, 2)
			admitted := func(descriptor string, times, want int) {
				t.Helper()
				got := 0
				for range times {
					if status, _ := s.ask(t, "shop", descriptor); status == http.StatusOK {
						got++
					}
				}
				if got != want {
					t.Errorf("%s: %d of %d requests are admitted, want %d", descriptor, got, times, want)
				}
			}
			admitted("user=a", 4, 4) // The candidate refuses the fourth.
			admitted("ip=1", 3, 3)
			c := s.candidateState(t)
			if c.Requests.WouldDeny != 1 || c.Requests.Same != 6 || len(c.Examples) != 1 || c.Examples[0].Subject != "user=a" ||
				c.Examples[0].Rule != "shop.user" {
				t.Errorf("before: %+v", c)
			}
			if err := os.Rename(filepath.Join(next.files, "shop.yaml"), filepath.Join(rules.files, "shop.yaml")); err != nil {
				t.Fatal(err)
			}
			s.untilCandidate(t, 0)
			s.until(t, "the candidate is in force", func() error {
				if status, _ := s.ask(t, "shop", "user=a"); status != http.StatusTooManyRequests { // 4 of 3 are counted.
					return fmt.Errorf("status %d", status)
				}
				return nil
			})
			admitted("ip=1", 3, 1) // 3 of 4 are counted.
			admitted("user=b", 4, 3)
			admitted("ip=2", 5, 4)
		})
	}
}
