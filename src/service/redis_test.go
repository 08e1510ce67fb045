package service

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/testfiles"
)

const redisRules = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: year, requests_per_unit: 2}
  - key: many
    rate_limit: {unit: year, requests_per_unit: 500}
  - key: fast
    rate_limit: {unit: second, requests_per_unit: 1000}
`

// The service starts with the variables that envoyproxy/ratelimit documents.
func TestRedisAsDocumentedUpstream(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := launch(t, redisRules, "USE_STATSD=false", "LOG_LEVEL=debug", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+server.Addr,
		"REDIS_TIMEOUT=2s")
	s.until("ready", s.healthy)
	for i, want := range []int{200, 200, 429} {
		if got := s.ask("1"); got != want {
			t.Errorf("request %d: got %d, want %d", i+1, got, want)
		}
	}
	keys := fmt.Sprint(server.Do(t, "KEYS", "*"))
	if !strings.Contains(keys, "d_ip_1_") {
		t.Errorf("keys: %s", keys)
	}
	if !s.logged("store=redis")() {
		t.Error("the ready line does not name the store")
	}
	_, stats := s.get("debug", "/stats")
	if !strings.Contains(stats, "ratelimit.redis_pool.cx_active: ") {
		t.Errorf("no statistics of the pool:\n%s", stats)
	}
}

// The Redis at envoyproxy/ratelimit's default socket is used unless a variable names a
// store.
func TestRedisAtUpstreamsSocket(t *testing.T) {
	server := redistest.Start(t, redistest.Options{UnixSocket: true})
	noSocket := filepath.Join(t.TempDir(), "file")
	testfiles.Write(t, noSocket, "")
	for _, tt := range []struct{ socket, variable, store string }{
		{server.Socket, "BACKEND_TYPE=", "redis"},
		{server.Socket, "BACKEND_TYPE=memory", "memory"},
		{server.Socket, "REDIS_URL=" + server.Addr, "redis"},
		{noSocket, "BACKEND_TYPE=", "memory"},
		{noSocket + "2", "BACKEND_TYPE=", "memory"},
	} {
		s := launch(t, redisRules, "socket="+tt.socket, tt.variable)
		s.until("ready", s.logged("store="+tt.store))
		said := s.logged("the counters are in the Redis at " + tt.socket)()
		if want := tt.store == "redis" && tt.variable == "BACKEND_TYPE="; said != want {
			t.Errorf("%+v: it says so: %v", tt, said)
		}
	}
}

// With a REDIS_TIMEOUT longer than HTTP's own timeouts, /json is answered before those end its connection.
func TestJSONIsAnsweredBeforeALongTimeout(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	replicas := make(map[string]*service)
	for _, mode := range []string{"error", "allow"} {
		replicas[mode] = launch(t, redisRules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=1m", "STORE_FAILURE_MODE="+mode)
		replicas[mode].until("ready", replicas[mode].healthy)
	}
	server.Pause()
	var all sync.WaitGroup
	for mode, want := range map[string]int{"error": 503, "allow": 200} {
		all.Go(func() {
			if code, err := replicas[mode].post("ip", "1"); err != nil || code != want {
				t.Errorf("%s: got %d, %v, want %d", mode, code, err, want)
			}
		})
	}
	all.Wait()
}

// tcp4 and tcp6 reach a Redis by addresses of their kind only.
func TestRedisSocketTypes(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	for _, tt := range []struct{ kind, url, problem string }{
		{"tcp4", server.Addr, ""},
		{"tcp4", "redis://" + server.Addr, ""},
		{"tcp6", server.Addr, "no suitable address"},
		{"tcp6", "redis://" + server.Addr, "no suitable address"},
		{"tcp4", "[::1]:6379", "no suitable address"},
	} {
		s := launch(t, redisRules, "REDIS_SOCKET_TYPE="+tt.kind, "REDIS_URL="+tt.url, "REDIS_TIMEOUT=5s")
		if tt.problem == "" {
			s.until("ready", s.healthy)
			continue
		}
		s.until("it says why", func() bool {
			_, body := s.get("debug", "/readyz")
			return strings.Contains(body, tt.problem)
		})
	}
}

// Replicas that share a Redis admit together as much as one alone.
func TestReplicasShareARedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	var replicas []*service
	for range 3 {
		s := launch(t, redisRules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=5s")
		s.until("ready", s.healthy)
		replicas = append(replicas, s)
	}
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for c := range 12 {
		wg.Go(func() {
			for range 75 { // 900 calls at a limit of 500
				code, err := replicas[c%3].post("many", "x")
				if err != nil {
					t.Error(err)
				} else if code == 200 {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if got := admitted.Load(); got != 500 {
		t.Errorf("%d admitted, want 500", got)
	}
}

// The ports are open before Redis answers, and say so.
func TestRedisComesLate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	server.Stop()
	s := launch(t, redisRules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=500ms", "REDIS_STARTUP_INITIAL_INTERVAL=50ms",
		"REDIS_STARTUP_MAX_INTERVAL=100ms")
	s.until("not ready, and why", func() bool {
		code, body := s.get("http", "/healthcheck")
		return code == 500 && strings.Contains(body, "Redis does not answer")
	})
	s.until("rules", func() bool {
		_, body := s.get("debug", "/rlconfig")
		return strings.Contains(body, "d.ip: ")
	})
	if s.logged("msg=ready")() {
		t.Error("it says that it is ready")
	}
	if got := s.ask("1"); got != 503 {
		t.Errorf("without Redis: %d, want 503", got)
	}
	server.Restart(t)
	s.until("ready", s.healthy)
	s.until("saying so", s.logged("msg=ready"))
	s.until("an answer", func() bool { return s.ask("1") == 200 })
	// A later loss of Redis leaves the service healthy...
	server.Stop()
	s.until("refused for want of a store", func() bool { return s.ask("1") == 503 })
	if !s.healthy() {
		t.Error("unhealthy without having been asked to")
	}
	if _, stats := s.get("debug", "/stats"); !strings.Contains(stats,
		"ratelimit.service.call.should_rate_limit.redis_error: ") ||
		strings.Contains(stats, "ratelimit.service.call.should_rate_limit.redis_error: 0\n") {
		t.Errorf("no redis_error counted:\n%s", stats)
	}
}

// ... unless REDIS_HEALTH_CHECK_ACTIVE_CONNECTION is set.
func TestRedisHealthCheck(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := launch(t, redisRules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=500ms",
		"REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true")
	s.until("ready", s.healthy)
	server.Stop()
	s.until("unhealthy", func() bool { return !s.healthy() })
	server.Restart(t)
	s.until("healthy again", s.healthy)
}

// The log has one line when a server stops answering and one when it answers again, at
// the default level. Without the breaker it has none.
func TestRedisBreaker(t *testing.T) {
	t.Parallel()
	for _, failures := range []string{"2", "0"} {
		server := redistest.Start(t, redistest.Options{})
		s := launch(t, redisRules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=2s", "STORE_BREAKER_FAILURES="+failures)
		s.until("an answer", func() bool { return s.ask("1") == 200 })
		server.Stop()
		begun := s.logged("Redis at " + server.Addr + " is only probed until it answers: ")
		if failures == "0" {
			for range 50 {
				if got := s.ask("1"); got != 503 {
					t.Errorf("got %d, want 503", got)
				}
			}
			if begun() {
				t.Error("without a breaker: it has opened")
			}
			continue
		}
		s.until("a word of it", func() bool { s.ask("1"); return begun() })
		if got := s.ask("1"); got != 503 {
			t.Errorf("got %d, want 503", got)
		}
		server.Restart(t)
		s.until("a word of its return", s.logged("Redis at "+server.Addr+" answers again"))
		if got := s.ask("2"); got != 200 {
			t.Errorf("got %d, want 200", got)
		}
	}
}

func TestRedisStartupLimit(t *testing.T) {
	t.Parallel()
	l := harness.Listen(t)
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s := launch(t, redisRules, "REDIS_URL="+addr, "REDIS_STARTUP_INITIAL_INTERVAL=10ms",
		"REDIS_STARTUP_MAX_ELAPSED_TIME=500ms")
	if err := s.wait(); err == nil || !strings.Contains(err.Error(), "REDIS_STARTUP_MAX_ELAPSED_TIME has passed") {
		t.Errorf("got %v", err)
	}
}

func TestPerSecondRedis(t *testing.T) {
	t.Parallel()
	rest, perSecond := redistest.Start(t, redistest.Options{}), redistest.Start(t, redistest.Options{UnixSocket: true})
	s := launch(t, redisRules, "REDIS_URL=redis://"+rest.Addr+"/3", "REDIS_PERSECOND=true",
		"REDIS_PERSECOND_URL="+perSecond.Socket,
		"REDIS_TIMEOUT=2s", "REDIS_PERSECOND_TIMEOUT=2s")
	s.until("ready", s.healthy)
	s.ask("1")
	if _, err := s.post("fast", "x"); err != nil {
		t.Error(err)
	}
	client := rest.Client(t)
	if _, err := client.Do("SELECT", "3"); err != nil {
		t.Fatal(err)
	}
	keys, err := client.Do("KEYS", "*")
	if err != nil || !strings.Contains(fmt.Sprint(keys), "d_ip_1_") || strings.Contains(fmt.Sprint(keys), "fast") {
		t.Errorf("database 3 of the first has %v, %v", keys, err)
	}
	if keys := fmt.Sprint(perSecond.Do(t, "KEYS", "*")); !strings.Contains(keys, "d_fast_x_") {
		t.Errorf("the second has %s", keys)
	}
}

// CACHE_KEY_FORMAT=v2 changes the keys in both stores.
func TestCacheKeyFormat(t *testing.T) {
	rest, perSecond := redistest.Start(t, redistest.Options{}), redistest.Start(t, redistest.Options{})
	s := launch(t, redisRules, "CACHE_KEY_FORMAT=v2", "CACHE_KEY_PREFIX=p:", "REDIS_URL="+rest.Addr, "REDIS_TIMEOUT=2s",
		"REDIS_PERSECOND=true", "REDIS_PERSECOND_URL="+perSecond.Addr, "REDIS_PERSECOND_TIMEOUT=2s")
	s.until("ready", s.healthy)
	for _, key := range []string{"many", "fast"} {
		if code, err := s.post(key, "a_b"); code != 200 {
			t.Errorf("%s: %d, %v", key, code, err)
		}
	}
	for server, want := range map[*redistest.Server]string{
		rest:      "[{p:d_many_a%5Fb_}|fw:31536000:",
		perSecond: "[{p:d_fast_a%5Fb_}|fw:1:",
	} {
		if keys := fmt.Sprint(server.Do(t, "KEYS", "*:d_*")); !strings.HasPrefix(keys, want) {
			t.Errorf("keys %s, want %s…", keys, want)
		}
	}
}

// The log reports requests that cannot be decided, but not each of them.
func TestStoreTroubleIsLogged(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	s := launch(t, redisRules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=2s")
	s.until("ready", s.healthy)
	server.Kill()
	for range 20 {
		if got := s.ask("1"); got != 503 {
			t.Errorf("got %d", got)
		}
	}
	// 2 on a machine that takes 10 s for this
	if n := strings.Count(s.log.String(), "could not be decided"); n < 1 || n > 2 {
		t.Errorf("it is said %d times", n)
	}
}

// Sentinel and Cluster, the second for limits per second.
func TestRedisSentinelAndCluster(t *testing.T) {
	t.Parallel()
	set := redistest.StartSentinel(t,
		redistest.SentinelOptions{Password: "watch", Server: redistest.Options{Password: "secret"}})
	nodes := redistest.StartCluster(t, redistest.ClusterOptions{})
	s := launch(t, redisRules, "REDIS_TYPE=sentinel",
		"REDIS_URL="+strings.Join(append([]string{set.PrimaryName}, set.SentinelAddrs...), ","),
		"REDIS_AUTH=secret", "REDIS_SENTINEL_AUTH=watch", "REDIS_TIMEOUT=2s", "REDIS_HEALTH_CHECK_ACTIVE_CONNECTION=true",
		"REDIS_PERSECOND=true", "REDIS_PERSECOND_TYPE=CLUSTER", "REDIS_PERSECOND_URL="+strings.Join(nodes.Addrs[:2], ","),
		"REDIS_PERSECOND_TIMEOUT=2s")
	s.until("ready", s.healthy)
	for i, want := range []int{200, 200, 429} {
		if got := s.ask("1"); got != want {
			t.Errorf("request %d: got %d, want %d", i+1, got, want)
		}
	}
	for i := range 20 {
		if code, err := s.post("fast", fmt.Sprint(i)); code != 200 || err != nil {
			t.Errorf("got %d, %v", code, err)
		}
	}
	if keys := fmt.Sprint(set.Primary(t).Do(t, "KEYS", "*")); !strings.Contains(keys, "d_ip_1_") ||
		strings.Contains(keys, "fast") {
		t.Errorf("the primary has %s", keys)
	}
	for _, node := range nodes.Primaries(t) {
		if keys := fmt.Sprint(node.Do(t, "KEYS", "*")); !strings.Contains(keys, "d_fast_") {
			t.Errorf("a node of the cluster has %s", keys)
		}
	}
	for _, node := range nodes.Nodes {
		node.Stop()
	}
	s.until("unhealthy", func() bool { return !s.healthy() })
	if _, body := s.get("http", "/healthcheck"); !strings.Contains(body,
		"the Redis of limits by the second does not answer") {
		t.Errorf("got %s", body)
	}
	if got := s.ask("1"); got != 429 {
		t.Errorf("got %d from the one that is there", got)
	}
	if log := s.log.String(); strings.Contains(log, "secret") || strings.Contains(log, "watch") {
		t.Errorf("a password is in the log:\n%s", log)
	}
}

// A limit that is used up is refused without Redis, until a reload changes the rule.
func TestOverLimitCache(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := launch(t, redisRules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=2s", "LOCAL_CACHE_SIZE_IN_BYTES=1000000")
	s.until("ready", s.healthy)
	for range 6 {
		s.ask("1")
	}
	_, stats := s.get("debug", "/stats")
	for _, want := range []string{
		"ratelimit.service.rate_limit.d.ip.over_limit_with_local_cache: 3\n",
		"ratelimit.service.rate_limit.d.ip.over_limit: 4\n", "ratelimit.localcache.hitCount: 3\n",
	} {
		if !strings.Contains(stats, want) {
			t.Errorf("no %s in\n%s", want, stats)
		}
	}
	s.write("rules.yaml", strings.Replace(redisRules, "requests_per_unit: 2}", "requests_per_unit: 9}", 1))
	s.until("the raised limit", func() bool { return s.ask("1") == 200 })
}

// Passwords and certificates are read again for each connection.
func TestRedisTLSAndPasswordFile(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	server := redistest.Start(t, redistest.Options{
		TLS: certs, User: "me", Password: "secret",
		Args: []string{"--tls-auth-clients", "yes"},
	})
	file := filepath.Join(t.TempDir(), "auth")
	testfiles.Write(t, file, "me:wrong\n")
	s := launch(t, redisRules, "REDIS_URL=rediss://"+server.Addr, "REDIS_AUTH_FILE="+file, "REDIS_TLS_CACERT="+certs.CA,
		"REDIS_TLS_CLIENT_CERT="+certs.Client.Cert, "REDIS_TLS_CLIENT_KEY="+certs.Client.Key, "REDIS_TIMEOUT=2s",
		"REDIS_STARTUP_INITIAL_INTERVAL=50ms", "REDIS_STARTUP_MAX_INTERVAL=100ms")
	s.until("refused by Redis", s.logged("WRONGPASS"))
	testfiles.Write(t, file, "me:secret\n")
	s.until("ready", s.healthy)
	s.until("an answer", func() bool { return s.ask("1") == 200 })
	if strings.Contains(s.log.String(), "secret") || strings.Contains(s.log.String(), "me:wrong") {
		t.Error("the log shows a password")
	}
	for _, tt := range []struct{ vars, want string }{
		{"REDIS_TLS_CACERT=/none", "REDIS_TLS_CACERT"},
		{"REDIS_TLS_CACERT=" + file, "no certificate in PEM form"},
		{"REDIS_TLS_CLIENT_CERT=/none REDIS_TLS_CLIENT_KEY=/none", "REDIS_TLS_CLIENT_CERT"},
	} {
		vars := append(strings.Fields(tt.vars), "REDIS_URL=rediss://"+server.Addr)
		if err := launch(t, redisRules, vars...).wait(); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", tt.vars, err)
		}
	}
}

// REDIS_TLS_SKIP_HOSTNAME_VERIFICATION ignores the name in a certificate, but not its
// authority.
func TestRedisSkipHostname(t *testing.T) {
	t.Parallel()
	certs := harness.NewCertificates(t)
	elsewhere := redistest.Start(t, redistest.Options{TLS: certs, Certificate: certs.WrongHost})
	other := redistest.Start(t, redistest.Options{TLS: certs, Certificate: certs.OtherServer})
	common := []string{
		"REDIS_TLS=true", "REDIS_TLS_CACERT=" + certs.CA, "REDIS_TIMEOUT=2s",
		"REDIS_STARTUP_INITIAL_INTERVAL=50ms",
	}
	s := launch(t, redisRules, append(common, "REDIS_URL="+elsewhere.Addr)...)
	s.until("refused for its name", s.logged("failed to verify certificate"))
	s = launch(t, redisRules, append(common, "REDIS_URL="+elsewhere.Addr, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true")...)
	s.until("ready", s.healthy)
	s = launch(t, redisRules, append(common, "REDIS_URL="+other.Addr, "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION=true")...)
	s.until("refused twice for its authority",
		func() bool { return strings.Count(s.log.String(), "unknown authority") > 1 })
	if s.healthy() {
		t.Error("a certificate of another authority was accepted")
	}
}
