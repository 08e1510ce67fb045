package integration

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ratelimit/testbed/redistest"
)

const sizingPage = "docs/sizing.md"

// sizingRules has a rule for each algorithm, with windows that no test meets the end of.
const sizingRules = `domain: shop
descriptors:
- {key: fixed_window, rate_limit: {unit: hour, requests_per_unit: 100}}
- {key: first_hit_window, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: first_hit_window}}
- {key: sliding_window, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding_window}}
- {key: sliding_window_counter, rate_limit: {unit: hour, requests_per_unit: 100, algorithm: sliding_window_counter}}
- {key: gcra, rate_limit: {unit: day, requests_per_unit: 100, algorithm: gcra}}
- {key: concurrency, rate_limit: {requests_per_unit: 100, algorithm: concurrency, hold: 1h, hold_id: id}}
`

// sizingUsers returns descriptors of the users from first on, for the rule of an algorithm. A hold is named by id.
func sizingUsers(algorithm string, first, count int, id string) (descriptors []string) {
	for user := first; user < first+count; user++ {
		d := fmt.Sprintf("%s=user-%07d", algorithm, user)
		if algorithm == "concurrency" {
			d += ",id=" + id
		}
		descriptors = append(descriptors, d)
	}
	return descriptors
}

// sizingRow returns the cells of the row of an algorithm in docs/sizing.md behind the first.
func sizingRow(t *testing.T, algorithm string) []string {
	t.Helper()
	m := regexp.MustCompile("(?m)^\\| `" + algorithm + "` \\|(.*)\\|$").FindStringSubmatch(read(t, sizingPage))
	if m == nil {
		t.Fatalf("%s has no row of %s", sizingPage, algorithm)
	}
	return strings.Split(strings.ReplaceAll(m[1], " ", ""), "|")
}

// commandsOf returns how many commands a Redis ran for each of count requests, without the PING at the end of each
// batch, and which ones the service sent.
func commandsOf(t *testing.T, server *redistest.Server, count int, ask func(i int)) (ran int, sent string) {
	t.Helper()
	server.Do(t, "CONFIG", "RESETSTAT")
	for i := range count {
		ask(i)
	}
	times := make(map[string]int)
	for name, value := range server.Info(t, "commandstats") {
		var calls int
		if _, err := fmt.Sscanf(value, "calls=%d,", &calls); err != nil {
			t.Fatalf("%s: %q", name, value)
		}
		name = strings.ToUpper(strings.TrimPrefix(name, "cmdstat_"))
		times[name] = int(math.Round(float64(calls) / float64(count))) // 0: what the service asks now and then
		ran += times[name]
	}
	if times["PING"] != 1 {
		t.Errorf("%d PINGs for a batch, want 1", times["PING"])
	}
	var names []string
	for _, name := range []string{"EVALSHA", "INCRBY", "EXPIRE"} {
		if times[name] > 0 && (times["EVALSHA"] == 0 || name == "EVALSHA") {
			names = append(names, "`"+name+"`")
		}
	}
	return ran - 1, strings.Join(names, ",")
}

// near reports whether a measured figure differs from that of a cell by at most a fifth: tables have room to grow.
func near(cell string, got int) bool {
	want, err := strconv.Atoi(cell)
	return err == nil && math.Abs(float64(got-want)) <= float64(want)/5
}

var sizingAlgorithms = []string{
	"fixed_window", "first_hit_window", "sliding_window", "sliding_window_counter", "gcra", "concurrency",
}

// The figures of Redis in docs/sizing.md are those of a real one: the commands that the service sends for a new counter
// and for a known one, those that Redis runs, and the bytes of a counter.
func TestSizingRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	rules := newRuleDir(t)
	rules.put(t, "shop.yaml", sizingRules)
	s := startService(t, append(rules.env(), "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=5s")...)
	const requests, users = 50, 16_000
	for _, algorithm := range sizingAlgorithms {
		s.ask(t, "shop", sizingUsers(algorithm, users, 1, "1")...) // loads the script
		ask := func(id string) func(int) {
			return func(i int) { s.ask(t, "shop", sizingUsers(algorithm, i, 1, id)...) }
		}
		ranNew, sentNew := commandsOf(t, server, requests, ask("1"))
		ranKnown, sentKnown := commandsOf(t, server, requests, ask("2"))

		server.Do(t, "FLUSHALL")
		before := usedMemory(t, server)
		for first := 0; first < users; first += 1000 {
			s.ask(t, "shop", sizingUsers(algorithm, first, 1000, "1")...)
		}
		size := (usedMemory(t, server) - before) / users

		row := sizingRow(t, algorithm)
		got := []string{sentNew, sentKnown, fmt.Sprintf("%d/%d", ranNew, ranKnown)}
		if !slices.Equal(row[:3], got) || !near(row[3], size) {
			t.Errorf("%s: %v and %d bytes, the page says %v", algorithm, got, size, row)
		}
	}
	server.Do(t, "FLUSHALL")
	s.ask(t, "shop", sizingUsers("fixed_window", 0, 1000, "")...)
	var most int64
	for range 100 {
		most = max(most, server.Do(t, "TTL", server.Do(t, "RANDOMKEY")).(int64))
	}
	if most < 3600+150 || most > 3600+300 {
		t.Errorf("keys of an hour live for %d s at most, want up to 300 more than the window", most)
	}
}

func usedMemory(t *testing.T, server *redistest.Server) int {
	t.Helper()
	n, err := strconv.Atoi(server.Info(t, "memory")["used_memory"])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// The bytes of a counter in memory in docs/sizing.md are those that the service counts, without its name.
func TestSizingMemory(t *testing.T) {
	t.Parallel()
	rules := newRuleDir(t)
	rules.put(t, "shop.yaml", sizingRules)
	for algorithm, users := range map[string]int{
		"fixed_window": 100_000, "sliding_window": 50_000, "concurrency": 20_000,
	} {
		s := startService(t, append(rules.env(), "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0",
			"MEMORY_MAX_BYTES=1073741824", "MEMORY_COUNTER_NAMES=false")...)
		for first := 0; first < users; first += 1000 {
			s.ask(t, "shop", sizingUsers(algorithm, first, 1000, "1")...)
		}
		size := int(s.storeBytes(t)) / users
		if cell := sizingRow(t, algorithm)[4]; !near(cell, size) {
			t.Errorf("%s: %d bytes, the page says %s", algorithm, size, cell)
		}
		s.stop(t)
	}
}

// storeBytes returns the bytes of all counters in memory.
func (s *service) storeBytes(t *testing.T) float64 {
	t.Helper()
	text, err := get("http://" + s.prometheus + "/metrics")
	m := regexp.MustCompile(`(?m)^ratelimit_store_bytes(?:\{.*\})? (\S+)$`).FindSubmatch(text)
	if err != nil || m == nil {
		t.Fatalf("no ratelimit_store_bytes: %v", err)
	}
	bytes, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return bytes
}
