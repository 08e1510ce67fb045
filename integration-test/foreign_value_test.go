package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"ratelimit/testbed/redistest"
)

// Where another program has written under the key of a counter, the log says so once, with the algorithm and without the key. Callers are
// told nothing of it, and other limits work.
func TestForeignValueInRedis(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", `domain: d
descriptors:
- {key: fixed, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: log, rate_limit: {algorithm: sliding_window, unit: year, requests_per_unit: 9}}
`)
	for _, test := range []struct {
		ask, kind string
		write     func(key string) []any
	}{
		{"fixed=" + valueMark, "fixed_window", func(key string) []any { return []any{"LPUSH", key, "x"} }},
		{"fixed=" + valueMark + " [hits 0]", "fixed_window", func(key string) []any { return []any{"LPUSH", key, "x"} }},
		{"fixed=" + valueMark, "fixed_window", func(key string) []any { return []any{"SET", key, "text"} }},
		{"fixed=" + valueMark + " [hits 0]", "fixed_window", func(key string) []any { return []any{"SET", key, "text"} }},
		{"log=" + valueMark, "sliding_window", func(key string) []any { return []any{"SET", key, "text"} }},
	} {
		t.Run(test.ask, func(t *testing.T) {
			server.Do(t, "FLUSHALL")
			u := startWith(t, rules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=5s", "LOG_LEVEL=trace")
			r := u.send(t, "json", "d", step{ask: strings.TrimSuffix(test.ask, " [hits 0]")})
			keys := server.Do(t, "KEYS", "*"+valueMark+"*").([]any)
			if r.code != codes.OK || len(keys) != 1 {
				t.Fatalf("%v, keys %v at %v", r.code, keys, time.Now())
			}
			key := fmt.Sprint(keys[0])
			server.Do(t, "DEL", key)
			server.Do(t, test.write(key)...)
			for range 20 {
				if r = u.send(t, "json", "d", step{ask: test.ask}); r.code != codes.Unavailable || strings.Contains(r.text, valueMark) || strings.Contains(r.text, "WRONGTYPE") {
					t.Errorf("%v %q", r.code, r.text)
				}
			}
			want := "holds what is no counter under the key of a " + test.kind + " limit"
			u.logs(t, 0, want)
			if log := u.log(t); strings.Count(log, want) != 1 || strings.Contains(log, valueMark) {
				t.Errorf("%d lines, or lines with a key", strings.Count(log, want))
			}
			if r = u.send(t, "json", "d", step{ask: "fixed=another"}); r.code != codes.OK {
				t.Errorf("another counter: %v", r.code)
			}
		})
	}
}
