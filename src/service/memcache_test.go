package service

import (
	"strings"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
)

const memcacheRules = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: month
    rate_limit: {unit: month, requests_per_unit: 2}
  - key: many
    rate_limit: {unit: year, requests_per_unit: 500}
  - key: sliding
    rate_limit: {algorithm: sliding_window_counter, count_blocked: true, unit: year, requests_per_unit: 2}
`

// Limits per month and year hold, values with blanks are limited, and the service is
// healthy. None of this is true of envoyproxy/ratelimit.
func TestMemcache(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := launch(t, memcacheRules, "BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT="+server.Addr, "MEMCACHE_TIMEOUT=5s",
		"LOCAL_CACHE_SIZE_IN_BYTES=1000000", "REPLICAS=1") // so that replicas need no counter
	s.until("ready", s.healthy)
	for _, key := range []string{"ip", "month", "sliding"} {
		for _, value := range []string{"1", "a b", strings.Repeat("long", 100), "ключ"} {
			for i, want := range []int{200, 200, 429, 429} {
				got, err := s.post(key, value)
				if err != nil || got != want {
					t.Errorf("%s=%.10s, request %d: got %d, %v, want %d", key, value, i+1, got, err, want)
				}
			}
		}
	}
	if !s.logged("store=memcache")() {
		t.Error("the ready line does not name the store")
	}
	_, stats := s.get("debug", "/stats")
	for _, want := range []string{
		"ratelimit.memcache.increment.__code=miss: 12\n", "ratelimit.memcache.add.__code=success: 12\n",
		"ratelimit.memcache.add.__code=error: 0\n",
		"ratelimit.memcache.keys_found: 0\n", "ratelimit.memcache.server_changes: 0\n",
	} {
		if !strings.Contains(stats, want) {
			t.Errorf("no %q in the statistics:\n%s", want, stats)
		}
	}
}

// The ports are open before Memcached answers, and say so. Requests fail when Memcached
// stops answering later.
func TestMemcacheComesLate(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	server := memcachedtest.Start(t, memcachedtest.Options{TLS: certs})
	server.Stop()
	s := launch(t, memcacheRules, "BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT="+server.Addr, "MEMCACHE_TIMEOUT=500ms",
		"MEMCACHE_TLS=true", "MEMCACHE_TLS_CACERT="+certs.CA, "MEMCACHE_TLS_CLIENT_CERT="+certs.Client.Cert,
		"MEMCACHE_TLS_CLIENT_KEY="+certs.Client.Key,
		"MEMCACHE_HEALTH_CHECK_ACTIVE_CONNECTION=true")
	s.until("not ready, and why", func() bool {
		code, body := s.get("http", "/healthcheck")
		return code == 500 && strings.Contains(body, "Memcached does not answer")
	})
	s.until("refused for want of a store", func() bool { return s.ask("1") == 503 })
	server.Restart(t)
	s.until("ready", s.healthy)
	s.until("an answer", func() bool { return s.ask("1") == 200 })
	server.Stop()
	s.until("unhealthy", func() bool { return !s.healthy() })
	if got := s.ask("1"); got != 503 {
		t.Errorf("without Memcached: %d, want 503", got)
	}
	server.Restart(t)
	s.until("healthy again", s.healthy)
}

// Rules that Memcached cannot count are refused, with their place and the stores that can.
func TestMemcacheRefusesRules(t *testing.T) {
	t.Parallel()
	const rules = "domain: d\ndescriptors:\n- {key: a, rate_limit: {algorithm: gcra, unit: day, requests_per_unit: 1}}\n"
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := launch(t, rules, "BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT="+server.Addr)
	s.until("unhealthy for its rules", func() bool {
		code, body := s.get("debug", "/readyz")
		return code == 503 && strings.Contains(body, "Memcached cannot count by gcra")
	})
}
