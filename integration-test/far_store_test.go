package integration

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
)

// A store that is further away than its timeout is named as such, with what to do, and
// callers are not told where it is. With a longer timeout the service becomes ready and
// answers.
func TestFarStore(t *testing.T) {
	const away = 600 * time.Millisecond
	certs := harness.NewCertificates(t)
	for _, tt := range []struct {
		name, variable, what string
		start                func(t *testing.T) string // the address
		env                  func(addr string) []string
	}{
		{
			"Redis", "REDIS_TIMEOUT", "Redis",
			func(t *testing.T) string { return redistest.Start(t, redistest.Options{}).Addr },
			func(addr string) []string { return []string{"BACKEND_TYPE=redis", "REDIS_URL=" + addr} },
		},
		{
			"Redis with TLS", "REDIS_TIMEOUT", "Redis",
			func(t *testing.T) string { return redistest.Start(t, redistest.Options{TLS: certs}).Addr },
			func(addr string) []string {
				return []string{"BACKEND_TYPE=redis", "REDIS_URL=" + addr, "REDIS_TLS=true", "REDIS_TLS_CACERT=" + certs.CA}
			},
		},
		{
			"Memcached", "MEMCACHE_TIMEOUT", "Memcached",
			func(t *testing.T) string { return memcachedtest.Start(t, memcachedtest.Options{}).Addr },
			func(addr string) []string { return []string{"BACKEND_TYPE=memcache", "MEMCACHE_HOST_PORT=" + addr} },
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			proxy := harness.StartProxy(t, tt.start(t))
			proxy.Latency(away)
			rules := newRuleDir(t)
			rules.put(t, "d.yaml", "domain: d\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: 2}}]\n")
			env := append(rules.env(), tt.env(proxy.Addr)...)

			near := runService(t, append(env, tt.variable+"=500ms")...)
			near.until(t, "the log says why", func() error {
				near.readLog(t)
				log := near.log(t)
				if !strings.Contains(log, tt.what+" answers in ") ||
					!strings.Contains(log, tt.variable+" is 500 ms: set it to 1.") || !strings.Contains(log, proxy.Addr) {
					return errors.New("it does not")
				}
				return nil
			})
			near.until(t, "/healthcheck says so without the address", func() error { // A ping of a busy machine may take longer.
				status, text := near.healthcheck(t)
				if status == 200 || !strings.Contains(text, tt.what+" answers in ") ||
					!strings.Contains(text, tt.variable+" is 500 ms") || strings.Contains(text, proxy.Addr) {
					return fmt.Errorf("%d %q", status, text)
				}
				return nil
			})

			far := startService(t, append(env, tt.variable+"=5s")...)
			for n := range 3 {
				if status, answer := far.ask(t, "d", fmt.Sprintf("a=%d", n)); status != 200 {
					t.Errorf("call %d: %d %v", n, status, answer)
				}
			}
		})
	}
}
