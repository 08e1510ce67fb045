package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/memcachedtest"
)

// Processes that share servers admit together what one alone would, to the hit,
// whether all calls meet on one key or on many, and leave under
// envoyproxy/ratelimit's keys what it would.
func TestMemcachedSharedByThree(t *testing.T) {
	var servers []*memcachedtest.Server
	var addrs []string
	for range 3 {
		s := memcachedtest.Start(t, memcachedtest.Options{})
		servers, addrs = append(servers, s), append(addrs, s.Addr)
	}
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", `
domain: d
descriptors:
- {key: hot, rate_limit: {unit: year, requests_per_unit: 1000}}
- {key: many, rate_limit: {unit: year, requests_per_unit: 25}}
- {key: slide, rate_limit: {algorithm: sliding_window_counter, count_blocked: true, unit: year, requests_per_unit: 1000}}
`)
	var replicas []*upstream
	for range 3 {
		replicas = append(replicas, startWith(t, rules, "BACKEND_TYPE=memcache",
			"MEMCACHE_HOST_PORT="+strings.Join(addrs, ","), "MEMCACHE_TIMEOUT=5s"))
	}
	for _, test := range []struct {
		name        string
		keys, limit int
	}{
		{"hot", 1, 1000},
		{"slide", 1, 1000},
		{"many", 50, 25},
	} {
		t.Run(test.name, func(t *testing.T) {
			var asks []string
			for k := range test.keys {
				asks = append(asks, fmt.Sprintf("%s=%d", test.name, k))
			}
			begun := time.Now()
			admitted := admit(t, replicas, asks, 2*test.limit)
			t.Logf("%d calls took %v", 2*test.limit*test.keys, time.Since(begun).Round(time.Millisecond))
			for k, ask := range asks {
				if admitted[k] != test.limit {
					t.Errorf("%s: %d calls were admitted, want %d", ask, admitted[k], test.limit)
				}
				key := fmt.Sprintf("d_%s_%d_%d", test.name, k, begun.Unix()/year*year)
				if test.name == "slide" {
					key = fmt.Sprintf("{d_slide_%d_}|sc:%d:%d", k, year, begun.Unix()/year*year)
				}
				got := ""
				for _, s := range servers {
					got += s.Get(t, key)
				}
				if got != fmt.Sprint(2*test.limit) {
					t.Errorf("%s is %q, want %d", key, got, 2*test.limit)
				}
			}
		})
	}
}

// While one of three servers is away, what it counts is refused an answer and
// the rest goes on; when it is back it counts anew.
func TestMemcachedLosesOne(t *testing.T) {
	var servers []*memcachedtest.Server
	var addrs []string
	for range 3 {
		s := memcachedtest.Start(t, memcachedtest.Options{})
		servers, addrs = append(servers, s), append(addrs, s.Addr)
	}
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors:\n- {key: k, rate_limit: {unit: year, requests_per_unit: 1000}}\n")
	u := startWith(t, rules, "BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT="+strings.Join(addrs, ","),
		"MEMCACHE_TIMEOUT=5s")
	round := func() (answered int) {
		for k := range 60 {
			request, err := newRequest("d", fmt.Sprintf("k=%d", k))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := u.call(t, request); err == nil {
				answered++
			}
		}
		return answered
	}
	if n := round(); n != 60 {
		t.Errorf("%d of 60 were answered", n)
	}
	servers[1].Kill()
	if n := round(); n < 20 || n > 55 {
		t.Errorf("without one of three servers %d of 60 were answered", n)
	}
	if status, text := u.healthcheck(t); status != 200 {
		t.Errorf("/healthcheck: %d %q", status, text)
	}
	servers[1].Restart(t)
	u.until(t, "all are answered", func() error {
		if n := round(); n != 60 {
			return fmt.Errorf("%d of 60", n)
		}
		return nil
	})
}
