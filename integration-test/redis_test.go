package integration

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"

	"ratelimit/testbed/redistest"
)

// A start as envoyproxy/ratelimit documents it, with nothing said beyond that
// but free ports, leaves in Redis what envoyproxy/ratelimit would.
func TestRedisAsDocumentedUpstream(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	_, port, _ := strings.Cut(server.Addr, ":")
	// keys by the second may be gone too soon to look at
	units := []string{"minute", "hour", "day", "week", "month", "year"}
	rules := newRuleDir(t)
	text := "domain: d\ndescriptors:\n"
	for _, unit := range units {
		text += fmt.Sprintf("- {key: %s, rate_limit: {unit: %s, requests_per_unit: 2}, descriptors: [{key: path, "+
			"rate_limit: {unit: %s, requests_per_unit: 2}}]}\n", unit, unit, unit)
	}
	rules.put(t, "d.yaml", text)

	cmd := serviceCommand(t, append(rules.env(), "USE_STATSD=false", "LOG_LEVEL=debug", "REDIS_SOCKET_TYPE=tcp",
		"REDIS_URL=localhost:"+port)...)
	cmd.Args = cmd.Args[:1] // no subcommand
	u := &upstream{service: &service{process: start(t, "ratelimit", cmd)}, rules: rules}
	u.awaitReady(t)
	if status, text := u.healthcheck(t); status != 200 || text != "OK" {
		t.Errorf("/healthcheck: %d %q", status, text)
	}
	page, err := get("http://" + u.debug + "/rlconfig")
	if err != nil {
		t.Fatal(err)
	}
	if want := "d.hour.path: unit=HOUR requests_per_unit=2"; !strings.Contains(string(page), want) {
		t.Errorf("no %q in the rules:\n%s", want, page)
	}
	for _, unit := range units {
		for entries, key := range map[string]string{
			unit + "=%s":            "d_" + unit + "_%s_",
			unit + "=%s, path=/a_b": "d_" + unit + "_%s_path_/a_b_",
		} {
			value, count := u.countThree(t, entries, unitSeconds[strings.ToUpper(unit)])
			key = fmt.Sprintf(key, value) + fmt.Sprint(count.window)
			if got := server.Do(t, "GET", key); got != "3" {
				t.Errorf("%s is %v, want 3; there are %v", key, got, server.Do(t, "KEYS", "*"))
				continue
			}
			// Up to 299 s of jitter by default; Redis rounds to the second.
			least := count.length - int64(time.Since(count.begun)/time.Second) - 1
			if ttl := server.Do(t, "TTL", key).(int64); ttl < least || ttl > count.length+299 {
				t.Errorf("%s lives for %d s, want %d to %d", key, ttl, least, count.length+299)
			}
		}
	}
}

// counted is a window that was counted in.
type counted struct {
	window, length int64 // its start and its length, in seconds
	begun          time.Time
}

// countThree counts three hits at a limit of two, all in one window, and
// returns the value it put into entries. Another value is tried if a window
// ended meanwhile, or if the machine was too busy for REDIS_TIMEOUT, which is
// 50 ms: what was counted then is not known.
func (u *upstream) countThree(t *testing.T, entries string, length int64) (value string, c counted) {
	t.Helper()
	want := []string{"OK 1/2", "OK 0/2", "OVER_LIMIT 0/2"}
next:
	for n := range 100 {
		value, c = fmt.Sprintf("v%d", n), counted{length: length, begun: time.Now()}
		c.window = c.begun.Unix() / length * length
		for i := range want {
			r := u.send(t, "json", "d", step{ask: fmt.Sprintf(entries, value)})
			if r.code == codes.Unavailable || r.to.Unix() >= c.window+length {
				continue next
			}
			if got := answerText(r.answer); r.code != codes.OK || !strings.HasPrefix(got, want[i]+" ") {
				t.Fatalf("%s: request %d: %v %q, want %q", entries, i+1, r.code, got, want[i])
			}
		}
		return value, c
	}
	t.Fatalf("%s: no three requests were answered in one window", entries)
	return "", counted{}
}

// Processes that share a Redis admit together what one alone would, to the
// hit, whether all calls meet on one key or on many, whatever the algorithm. (A
// bucket gets a unit back in 9 hours at the soonest.)
func TestRedisSharedByThree(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", `
domain: d
descriptors:
- {key: hot, rate_limit: {unit: year, requests_per_unit: 1200}}
- {key: many, rate_limit: {unit: year, requests_per_unit: 30}}
- {key: log, rate_limit: {algorithm: sliding_window, unit: year, requests_per_unit: 1200}}
- {key: bucket, rate_limit: {algorithm: gcra, unit: year, requests_per_unit: 1000, burst: 1199}}
- {key: logs, rate_limit: {algorithm: sliding_window, unit: year, requests_per_unit: 30}}
- {key: buckets, rate_limit: {algorithm: gcra, unit: year, requests_per_unit: 30}}
- {key: both, on_reject: none, rate_limits: [{algorithm: gcra, unit: year, requests_per_unit: 100, burst: 149}, {algorithm: sliding_window, unit: year, requests_per_unit: 100}]}
`)
	var replicas []*upstream
	for range 3 {
		replicas = append(replicas, startWith(t, rules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=5s"))
	}
	for _, test := range []struct {
		name        string
		keys, limit int
		counted     bool // by a number, refused calls too
	}{
		{"hot", 1, 1200, true},
		{"many", 50, 30, true},
		{"log", 1, 1200, false},
		{"bucket", 1, 1200, false},
		{"logs", 50, 30, false},
		{"buckets", 50, 30, false},
		{"both", 10, 100, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var asks []string
			for k := range test.keys {
				asks = append(asks, fmt.Sprintf("%s=%d", test.name, k))
			}
			begun := time.Now()
			admitted := admit(t, replicas, asks, 2*test.limit)
			t.Logf("%d calls took %v", 2*test.limit*test.keys, time.Since(begun).Round(time.Millisecond))
			client := server.Client(t)
			for k, ask := range asks {
				if admitted[k] != test.limit {
					t.Errorf("%s: %d calls were admitted, want %d", ask, admitted[k], test.limit)
				}
				if !test.counted {
					continue
				}
				key := fmt.Sprintf("d_%s_%d_%d", test.name, k, begun.Unix()/year*year)
				if got, err := client.Do("GET", key); err != nil || got != fmt.Sprint(2*test.limit) {
					t.Errorf("%s is %v, %v, want %d", key, got, err, 2*test.limit)
				}
			}
		})
	}
}

// admit asks for everything in asks that many times, of all replicas in turn
// and from many callers at once, and returns how often each was admitted.
func admit(t *testing.T, replicas []*upstream, asks []string, times int) []int {
	t.Helper()
	const callers = 32 // of each replica
	requests := make([]*rlsv3.RateLimitRequest, len(asks))
	for i, ask := range asks {
		var err error
		if requests[i], err = newRequest("d", ask); err != nil {
			t.Fatal(err)
		}
	}
	admitted := make([]atomic.Int64, len(asks))
	var failures atomic.Int64
	var all sync.WaitGroup
	step := callers * len(replicas)
	for c := range step {
		all.Go(func() {
			for n := c; n < len(asks)*times; n += step {
				i := n % len(asks)
				answer, err := replicas[c%len(replicas)].call(t, requests[i])
				switch {
				case err != nil:
					if failures.Add(1) == 1 {
						t.Errorf("%s: %v", asks[i], err)
					}
				case answer.GetOverallCode() == rlsv3.RateLimitResponse_OK:
					admitted[i].Add(1)
				}
			}
		})
	}
	all.Wait()
	if n := failures.Load(); n > 0 {
		t.Errorf("%d calls failed", n)
	}
	counts := make([]int, len(asks))
	for i := range admitted {
		counts[i] = int(admitted[i].Load())
	}
	return counts
}
