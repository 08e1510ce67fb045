package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
)

// A limit of 0 is a ban. A proxy that asks with 0 hits and charges at the end must hear of it, on each port, with each
// algorithm and store.
func TestBannedCallerIsRefusedWithoutHits(t *testing.T) {
	algorithms := []string{
		"", "algorithm: first_hit_window", "algorithm: sliding_window", "algorithm: sliding_window_counter",
		"algorithm: gcra",
		"algorithm: gcra, hold: 1m, hold_id: id", "count_blocked: false",
	}
	for store, open := range map[string]func(*testing.T) []string{
		"memory": func(*testing.T) []string { return nil },
		"redis": func(t *testing.T) []string {
			return []string{"REDIS_URL=" + redistest.Start(t, redistest.Options{}).Addr, "REDIS_TIMEOUT=5s"}
		},
		"redis behind the over-limit cache": func(t *testing.T) []string {
			return []string{
				"REDIS_URL=" + redistest.Start(t, redistest.Options{}).Addr, "REDIS_TIMEOUT=5s",
				"LOCAL_CACHE_SIZE_IN_BYTES=1000000",
			}
		},
		"memcached": func(t *testing.T) []string {
			return []string{
				"BACKEND_TYPE=memcache",
				"MEMCACHE_HOST_PORT=" + memcachedtest.Start(t, memcachedtest.Options{}).Addr, "MEMCACHE_TIMEOUT=5s",
			}
		},
	} {
		t.Run(store, func(t *testing.T) {
			text, quotas, kinds := "domain: d\ndescriptors:\n", "domain: q\nquota_buckets: true\ndescriptors:\n", algorithms
			if store == "memcached" {
				kinds = []string{"", "algorithm: sliding_window_counter, count_blocked: true"}
			}
			for i, algorithm := range kinds {
				rule := fmt.Sprintf("- {key: k%d, rate_limit: {unit: year, requests_per_unit: 0, %s}}\n", i, algorithm)
				if text += rule; dividesQuotas(algorithm) {
					quotas += rule
				}
			}
			rules := newRuleDir(t)
			rules.put(t, "d.yaml", text)
			if store != "memcached" {
				rules.put(t, "q.yaml", quotas)
			}
			rules.put(t, "list.yaml", "domain: list\nrules:\n- {match: {k: v}, rate_limit: {unit: year, requests_per_unit: 0}}\n")
			u := startWith(t, rules, append(open(t), "RESP_HOST=127.0.0.1", "RESP_PORT=0", "DIVVY_HOST=127.0.0.1",
				"DIVVY_PORT=0", "DIVVY_DOMAIN=list")...)
			for i, algorithm := range kinds {
				for _, hits := range []string{" [hits 0]", "", " [hits 0]"} {
					for _, protocol := range protocols {
						r := u.send(t, protocol, "d", step{ask: fmt.Sprintf("k%d=v%s", i, hits)})
						if got := answerText(r.answer); !strings.HasPrefix(got, "OVER_LIMIT 0/0") {
							t.Errorf("%s, %q, %q: %s %v %s, want OVER_LIMIT", protocol, algorithm, hits, got, r.code, r.text)
						}
					}
				}
				if got := say(t, u.resp, fmt.Sprintf("RATELIMIT d k%d v HITS 0", i), 2); !strings.HasSuffix(got, ":1") {
					t.Errorf("RESP, %q: %q, want the reply to a refused request", algorithm, got)
				}
				if store == "memcached" || !dividesQuotas(algorithm) {
					continue
				}
				for _, action := range reportQuota(t, u.grpc, "q",
					map[string]string{fmt.Sprintf("k%d", i): "v"}).GetBucketAction() {
					got := action.GetQuotaAssignmentAction().GetRateLimitStrategy().GetBlanketRule()
					if got != typev3.RateLimitStrategy_DENY_ALL {
						t.Errorf("RLQS, %q: %v, want DENY_ALL", algorithm, action)
					}
				}
			}
			if got := say(t, u.divvy, "HIT k=v", 1); !strings.HasPrefix(got, "OK false 0 ") {
				t.Errorf("divvy: %q", got)
			}
		})
	}
}

// dividesQuotas reports whether a limit may be in a domain with quota_buckets.
func dividesQuotas(algorithm string) bool { return !strings.Contains(algorithm, "hold:") }

// say sends a line to a port and returns the first lines of the reply, joined by a blank.
func say(t *testing.T, address, line string, lines int) string {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, patience)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, line+"\r\n"); err != nil {
		t.Fatal(err)
	}
	replies, r := make([]string, lines), bufio.NewReader(conn)
	for i := range replies {
		reply, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		replies[i] = strings.TrimSpace(reply)
	}
	return strings.Join(replies, " ")
}
