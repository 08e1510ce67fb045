package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

const changedLimitRules = `
domain: shop
descriptors:
  - key: user
    rate_limit: {unit: year, requests_per_unit: 3}
  - key: tenant
    rate_limit: {unit: year, requests_per_unit: 1000, counting: leased}
`

// limit runs `ratelimit limit` with words, at the service, and returns what it prints.
func (s *service) limit(t *testing.T, words ...string) string {
	t.Helper()
	out, errOut, code := program(t, append(append([]string{"limit"}, words...), "--address", s.debug)...)
	if code != 0 {
		t.Fatalf("limit %q: exit %d, %s%s", words, code, out, errOut)
	}
	return out
}

// becomes waits until a request for the descriptor gets the status.
func (s *service) becomes(t *testing.T, descriptor string, want int) {
	t.Helper()
	s.until(t, fmt.Sprintf("%s is answered %d", descriptor, want), func() error {
		if status, answer := s.ask(t, "shop", descriptor); status != want {
			return fmt.Errorf("%d %v", status, answer)
		}
		return nil
	})
}

const (
	admitted = http.StatusOK
	refused  = http.StatusTooManyRequests
)

// A change that is made at one replica applies at all others, with their over-limit caches and leases, and stays when
// replicas, connections and primaries of Redis go.
func TestChangedLimits(t *testing.T) {
	t.Parallel()
	stores := map[string]func(t *testing.T) (env []string, disturb func()){
		"single": func(t *testing.T) ([]string, func()) {
			s := redistest.Start(t, redistest.Options{})
			return []string{"REDIS_URL=" + s.Addr}, func() { s.Do(t, "CLIENT", "KILL", "TYPE", "normal") }
		},
		"sentinel": func(t *testing.T) ([]string, func()) {
			s := redistest.StartSentinel(t, redistest.SentinelOptions{})
			return []string{"REDIS_TYPE=sentinel", "REDIS_URL=" + s.PrimaryName + "," + strings.Join(s.SentinelAddrs, ",")},
				func() { s.Failover(t) }
		},
		"cluster": func(t *testing.T) ([]string, func()) {
			c := redistest.StartCluster(t, redistest.ClusterOptions{})
			return []string{"REDIS_TYPE=cluster", "REDIS_URL=" + strings.Join(c.Addrs, ",")}, func() {
				slot := redistest.KeySlot("{ratelimit_overrides}")
				from := c.NodeForSlot(t, slot)
				for _, to := range c.Primaries(t) {
					if to != from {
						c.MigrateSlot(t, slot, to)
						return
					}
				}
			}
		},
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env, disturb := open(t)
			rules := newRuleDir(t)
			rules.put(t, "shop.yaml", changedLimitRules)
			env = append(append(rules.env(), env...), "BACKEND_TYPE=redis", "REDIS_TIMEOUT=2s",
				"LOCAL_CACHE_SIZE_IN_BYTES=1000000")
			a, b := startService(t, env...), startService(t, env...)
			for range 5 {
				b.ask(t, "shop", "user=eve")
				b.ask(t, "shop", "user=bob")
			}
			b.becomes(t, "user=eve", refused)

			out := a.limit(t, "set", "shop", "user=eve", "--rate", "x10", "--for", "1h", "--reason", "ticket 123",
				"--who", "anna")
			if !strings.Contains(out, "3 per year -> 30 per year") {
				t.Error(out)
			}
			b.becomes(t, "user=eve", admitted)
			if _, answer := b.ask(t, "shop", "user=eve"); answer.Statuses[0].CurrentLimit.RequestsPerUnit != 30 {
				t.Errorf("told %v", answer.Statuses[0].CurrentLimit)
			}
			b.becomes(t, "user=bob", refused)
			b.limit(t, "ban", "shop", "user=m*", "--reason", "spam")
			a.becomes(t, "user=mallory", refused)
			if status, _ := a.ask(t, "shop", "user=nina"); status != admitted {
				t.Error("another subject is refused")
			}

			disturb()
			b.kill(t)
			b = startService(t, env...)
			b.becomes(t, "user=mallory", refused)
			b.becomes(t, "user=eve", admitted)
			why, _, _ := program(t, "explain", "--domain", "shop", "--descriptors", "user=eve", "--address", b.debug)
			if !strings.Contains(why, "the limit was changed at run time: x10 by anna until ") {
				t.Error(why)
			}

			for range 20 { // Both have leases of the limit.
				a.ask(t, "shop", "tenant=acme")
				b.ask(t, "shop", "tenant=acme")
			}
			a.limit(t, "ban", "shop", "tenant=acme", "--reason", "unpaid")
			a.becomes(t, "tenant=acme", refused)
			b.becomes(t, "tenant=acme", refused)
			b.limit(t, "unset", "shop", "tenant=acme")
			a.becomes(t, "tenant=acme", admitted)
			b.becomes(t, "tenant=acme", admitted)

			a.limit(t, "ban", "shop", "user=late", "--for", "1s", "--reason", "short")
			for _, s := range []*service{a, b} {
				s.becomes(t, "user=late", admitted)
			}
			var history []struct{ Action, Subject, Reason, Who string }
			if err := json.Unmarshal([]byte(a.limit(t, "history", "shop", "--json")), &history); err != nil {
				t.Fatal(err)
			}
			if len(history) != 5 || history[4].Reason != "ticket 123" || history[4].Who != "anna" ||
				history[1].Action != "unset" {
				t.Errorf("%+v", history)
			}
			if !strings.Contains(a.log(t), `msg="limit changed" action=set after="x10 by anna until `) {
				t.Error("the log of the first replica has no line of the change")
			}
		})
	}
}

// Replicas go on with the changes that they know while Redis is away, and say that they may not know all.
func TestChangedLimitsInAnOutage(t *testing.T) {
	t.Parallel()
	redis := redistest.Start(t, redistest.Options{})
	rules := newRuleDir(t)
	rules.put(t, "shop.yaml", "domain: shop\non_store_failure: local\ndescriptors:\n"+
		"  - {key: user, rate_limit: {unit: year, requests_per_unit: 100}}\n")
	env := append(rules.env(), "BACKEND_TYPE=redis", "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=500ms")
	s := startService(t, env...)
	s.limit(t, "ban", "shop", "user=eve", "--reason", "guesses passwords")
	s.becomes(t, "user=eve", refused)
	redis.Kill()
	s.until(t, "/readyz tells it", func() error {
		text, err := get("http://" + s.debug + "/readyz")
		if err != nil || !strings.Contains(string(text), "limits changed at run time") {
			return fmt.Errorf("%s %w", text, err)
		}
		return nil
	})
	s.becomes(t, "user=eve", refused)
	s.becomes(t, "user=bob", admitted)
	_, errOut, code := program(t, "limit", "unset", "shop", "user=eve", "--address", s.debug)
	if code != 1 || !strings.Contains(errOut, "503") {
		t.Errorf("exit %d, %s", code, errOut)
	}
	redis.Restart(t) // It has lost all.
	s.until(t, "the changes are stored again", func() error {
		if !strings.Contains(s.log(t), "1 that this replica knew are stored again") {
			return errors.New(tail(s.log(t)))
		}
		return nil
	})
	other := startService(t, env...)
	other.becomes(t, "user=eve", refused)
}

// With counters in memory, changes are kept in a file, or as long as the process lives; with Memcached there are none.
func TestChangedLimitsWithoutRedis(t *testing.T) {
	t.Parallel()
	rules := newRuleDir(t)
	rules.put(t, "shop.yaml", changedLimitRules)
	file := filepath.Join(t.TempDir(), "limits")
	env := append(rules.env(), "OVERRIDES_FILE="+file)
	s := startService(t, env...)
	s.limit(t, "ban", "shop", "user=eve", "--reason", "x")
	s.becomes(t, "user=eve", refused)
	s.kill(t)
	s = startService(t, env...)
	s.becomes(t, "user=eve", refused)
	s.limit(t, "unset", "shop", "user=eve")
	s.becomes(t, "user=eve", admitted)
	s.stop(t)
	data := testfiles.Read(t, file)
	data[30] ^= 1
	testfiles.Write(t, file, data)
	refusal, err := serviceCommand(t, env...).CombinedOutput()
	if err == nil || !strings.Contains(string(refusal), "OVERRIDES_FILE: overrides: "+file+":1:1: the line is damaged") {
		t.Errorf("%v, %s", err, refusal)
	}

	inMemory := startService(t, rules.env()...)
	if out := inMemory.limit(t, "ban", "shop", "user=eve", "--reason", "x"); !strings.Contains(out,
		"warning: the change lasts as long as this process: set OVERRIDES_FILE") {
		t.Error(out)
	}
	memcached := startService(t, append(rules.env(), "BACKEND_TYPE=memcache",
		"MEMCACHE_HOST_PORT="+memcachedtest.Start(t, memcachedtest.Options{}).Addr)...)
	off := startService(t, append(rules.env(), "OVERRIDES_MAX=0")...)
	for s, want := range map[*service]string{
		memcached: "cannot be changed at run time with Memcached",
		off:       "because OVERRIDES_MAX is 0",
	} {
		_, errOut, code := program(t, "limit", "ban", "shop", "user=eve", "--reason", "x", "--address", s.debug)
		if code != 1 || !strings.Contains(errOut, want) {
			t.Errorf("exit %d, %s; want %s", code, errOut, want)
		}
	}
}

// In a tree of limits a subject is changed by all of its words. A star would stand for itself, so it is refused.
func TestChangedLimitsOfTrees(t *testing.T) {
	t.Parallel()
	rules := newRuleDir(t)
	rules.put(t, "limits.yaml", "schema: {user: {children: {\"*\": {limits: [15, 30, 60]}}}}\n")
	s := startService(t, rules.env()...)
	out := s.limit(t, "set", "limits", "user,alex", "--rate", "x2", "--reason", "test")
	if !strings.Contains(out, "-> 60 per 1m") {
		t.Error(out)
	}
	for _, subject := range []string{"user,al*", "user,*", "*"} {
		_, errOut, code := program(t, "limit", "ban", "limits", subject, "--reason", "test", "--address", s.debug)
		if code == 0 || !strings.Contains(errOut, "a tree of limits has no patterns: name all words of the subject") {
			t.Errorf("%s: exit %d, %s", subject, code, errOut)
		}
	}
}
