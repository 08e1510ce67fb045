package integration

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// Behind a proxy that shards Redis, limits hold, and the servers are sent
// nothing that a proxy might not know.
func TestRedisProxy(t *testing.T) {
	harness.Envoy(t) // or skip, before Redis is started
	a, b := startCounted(t), startCounted(t)
	address := startRedisProxy(t, a.Server, b.Server)
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", `
domain: d
descriptors:
- {key: few, rate_limit: {unit: year, requests_per_unit: 2}}
- {key: many, rate_limit: {unit: year, requests_per_unit: 50}}
`)
	u := startWith(t, rules, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+address, "REDIS_TIMEOUT=5s",
		"REPLICAS=1",      // so that the service does not count them in the store
		"OVERRIDES_MAX=0") // so that it does not read limits changed at run time
	if status, text := u.healthcheck(t); status != 200 || text != "OK" {
		t.Errorf("/healthcheck: %d %q", status, text)
	}
	if got := commands(t, a, b); len(got) > 0 { // Envoy answers PING itself
		t.Errorf("at the start the servers were sent %v", got)
	}

	// A request's keys are on both servers.
	const keys = 40
	var few, many []string
	for k := range keys {
		few = append(few, fmt.Sprintf("few=%d", k))
		many = append(many, fmt.Sprintf("many=%d", k))
	}
	for i, want := range []string{"OK 1/2 YEAR", "OK 0/2 YEAR", "OVER_LIMIT 0/2 YEAR"} {
		if !u.runStep(t, protocols[i%2], "d", i+1, step{
			ask: strings.Join(few, " + "), want: strings.Join(slices.Repeat([]string{want}, keys), " + "),
		}) {
			break
		}
	}
	want := map[string]int{"incrby": 3 * keys, "expire": keys} // a time to live with the first hit only
	if got := commands(t, a, b); !maps.Equal(got, want) {
		t.Errorf("the servers were sent %v, want %v", got, want)
	}
	// Each has some of the keys; these are two of them.
	onA := askFor(t, a)
	onB := askFor(t, b)
	commands(t, a, b)

	// Batches of many callers' hits.
	for k, n := range admit(t, []*upstream{u}, many, 100) {
		if n != 50 {
			t.Errorf("%s: %d calls were admitted, want 50", many[k], n)
		}
	}
	got := commands(t, a, b)
	t.Logf("%d calls were %v", 100*keys, got)
	if len(got) != 2 || got["expire"] != keys || got["incrby"] > 100*keys {
		t.Errorf("the servers were sent %v, want %d expire and up to %d incrby", got, keys, 100*keys)
	}

	// Without one of the servers what is counted there is not answered. The
	// proxy answers for itself, so the service stays healthy.
	b.Stop()
	u.runStep(t, "json", "d", 1, step{ask: onA, want: "OVER_LIMIT 0/2 YEAR"})
	u.runStep(t, "json", "d", 1, step{ask: onB, fails: codes.Unavailable})
	if status, text := u.healthcheck(t); status != 200 || text != "OK" {
		t.Errorf("/healthcheck: %d %q", status, text)
	}
	b.Restart(t)
	u.until(t, "the server is asked again", func() error {
		if r := u.send(t, "json", "d", step{ask: onB}); r.code != codes.OK {
			return errors.New(r.text)
		}
		return nil
	})
}

// askFor is the descriptor of one of the server's keys, "d_few_1_1766016000".
func askFor(t *testing.T, s *countedServer) string {
	t.Helper()
	keys, _ := s.Do(t, "KEYS", "d_*").([]any)
	if len(keys) == 0 {
		t.Fatalf("all keys are elsewhere than at %s", s.Addr)
	}
	part := strings.Split(keys[0].(string), "_")
	return part[1] + "=" + part[2]
}

// Scripts go through such a proxy as well, to the server of their first key.
// That is the right one for a request of one descriptor; for more there must
// be one server only.
func TestRedisProxyScripts(t *testing.T) {
	harness.Envoy(t)
	const text = `
domain: d
descriptors:
- {key: a, rate_limit: {unit: year, requests_per_unit: 3}}
- {key: b, rate_limit: {unit: year, requests_per_unit: 5}}
`
	one, other := startCounted(t), startCounted(t)
	sharded := startRedisProxy(t, one.Server, other.Server)
	single := startRedisProxy(t, one.Server, one.Server)
	stop := []string{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"}
	tests := []struct {
		name, address string
		env           []string
		steps         []step
	}{
		{
			name: "refunds", address: sharded,
			steps: []step{
				{ask: "a", hits: 3, want: "OK 0/3 YEAR"},
				{ask: "a [refund, hits 2]", want: "OK 2/3 YEAR"},
				{ask: "a", hits: 3, want: "OVER_LIMIT 0/3 YEAR"},
				{
					ask:  "a=1 [refund, hits 9] + a=2 [refund, hits 9] + b=1 [refund, hits 9] + b=2 [refund, hits 9]",
					want: "OK 3/3 YEAR + OK 3/3 YEAR + OK 5/5 YEAR + OK 5/5 YEAR",
				},
			},
		},
		{
			name: "one descriptor", address: sharded, env: stop,
			steps: []step{
				{ask: "a", hits: 2, want: "OK 1/3 YEAR"},
				{ask: "a", hits: 2, want: "OVER_LIMIT 0/3 YEAR"},
				{ask: "a", want: "OK 0/3 YEAR"}, // what was refused is not counted
				{ask: "b", hits: 6, want: "OVER_LIMIT 0/5 YEAR"},
				{ask: "b", hits: 5, want: "OK 0/5 YEAR"},
			},
		},
		{
			name: "two descriptors on one server", address: single, env: stop,
			steps: []step{
				{ask: "a + b", hits: 2, want: "OK 1/3 YEAR + OK 3/5 YEAR"},
				{ask: "b + a", hits: 2, want: "OK 3/5 YEAR + OVER_LIMIT 0/3 YEAR"},
				{ask: "b", hits: 3, want: "OK 0/5 YEAR"},
				{ask: "a", want: "OK 0/3 YEAR"},
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			rules := newRuleDir(t)
			rules.put(t, "d.yaml", text)
			for _, s := range []*countedServer{one, other} { // begin with no counts, and without the script
				s.Do(t, "FLUSHALL")
				s.Do(t, "SCRIPT", "FLUSH")
			}
			commands(t, one, other)
			u := startWith(t, rules, append(test.env, "REDIS_URL="+test.address, "REDIS_TIMEOUT=5s")...)
			for i, st := range test.steps {
				if !u.runStep(t, "grpc", "d", i+1, st) {
					break
				}
			}
			t.Logf("the servers were sent %v", commands(t, one, other))
		})
	}
}

// startRedisProxy starts an Envoy that shards two servers, and returns where
// it listens.
func startRedisProxy(t *testing.T, a, b *redistest.Server) string {
	t.Helper()
	proxy := readYAML(t, "testdata/redis-proxy.yaml")
	proxy.move(t, map[string]string{"0.0.0.0:6379": anyPort, "redis-a:6379": a.Addr, "redis-b:6379": b.Addr})
	_, address := startEnvoy(t, "redis-proxy", proxy)
	return address
}

// countedServer is a Redis of which the test asks what it was sent.
type countedServer struct {
	*redistest.Server
	client *redistest.Client // kept, as each new one says AUTH
}

func startCounted(t *testing.T) *countedServer {
	t.Helper()
	s := &countedServer{Server: redistest.Start(t, redistest.Options{})}
	s.client = s.Client(t)
	commands(t, s)
	return s
}

// commands is how often the servers were sent each command since the last
// time, or since they were started. What tests say to servers is left out, and so is the mark that a service sets.
func commands(t *testing.T, servers ...*countedServer) map[string]int {
	t.Helper()
	sum := make(map[string]int)
	for _, s := range servers {
		reply, err := s.client.Do("INFO", "commandstats")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(reply.(string)) {
			name, figures, _ := strings.Cut(line, ":")
			name, ok := strings.CutPrefix(name, "cmdstat_")
			if !ok || name == "config|resetstat" || name == "set" || name == "keys" {
				continue
			}
			var calls int
			if _, err := fmt.Sscanf(figures, "calls=%d,", &calls); err != nil {
				t.Fatalf("%v in %q", err, line)
			}
			sum[name] += calls
		}
		if _, err := s.client.Do("CONFIG", "RESETSTAT"); err != nil {
			t.Fatal(err)
		}
	}
	return sum
}
