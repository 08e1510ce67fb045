package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"ratelimit/testbed/redistest"
)

// Where another program has written under the key of a counter or of its holds, the log says so once, with the
// algorithm and without the key. Callers are told nothing of it, other limits work, and what the program wrote stays.
func TestForeignValueInRedis(t *testing.T) {
	server := redistest.Start(t, redistest.Options{})
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", `domain: d
descriptors:
- {key: fixed, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: unblocked, rate_limit: {unit: year, requests_per_unit: 9, count_blocked: false}}
- {key: log, rate_limit: {algorithm: sliding_window, unit: year, requests_per_unit: 9}}
- {key: first, rate_limit: {algorithm: first_hit_window, unit: year, requests_per_unit: 9}}
- {key: slide, rate_limit: {algorithm: sliding_window_counter, unit: year, requests_per_unit: 9}}
- {key: bucket, rate_limit: {algorithm: gcra, unit: year, requests_per_unit: 9}}
- {key: held, rate_limit: {algorithm: gcra, unit: year, requests_per_unit: 9, hold: 1h, hold_id: id}}
- {key: places, rate_limit: {algorithm: concurrency, requests_per_unit: 9, hold: 1h, hold_id: id}}
`)
	list := func(key string) []any { return []any{"LPUSH", key, "x"} }
	text := func(key string) []any { return []any{"SET", key, "text"} }
	for _, test := range []struct {
		ask, kind string
		write     func(key string) []any
	}{
		{"fixed=" + valueMark, "fixed_window", list},
		{"fixed=" + valueMark + " [hits 0]", "fixed_window", list},
		{"fixed=" + valueMark, "fixed_window", text},
		{"fixed=" + valueMark + " [hits 0]", "fixed_window", text},
		{"unblocked=" + valueMark, "fixed_window", text},
		{"log=" + valueMark, "sliding_window", text},
		{"first=" + valueMark, "first_hit_window", text},
		{"slide=" + valueMark, "sliding_window_counter", text},
		{"bucket=" + valueMark, "gcra", text},
		{"held=" + valueMark + ", id=1", "gcra with hold", text},
		{"places=" + valueMark + ", id=1", "concurrency", text},
	} {
		t.Run(test.ask, func(t *testing.T) {
			server.Do(t, "FLUSHALL")
			u := startWith(t, rules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=5s", "LOG_LEVEL=trace")
			r := u.send(t, "json", "d", step{ask: strings.TrimSuffix(test.ask, " [hits 0]")})
			keys := server.Do(t, "KEYS", "*"+valueMark+"*").([]any)
			key := fmt.Sprint(keys[0])
			for _, other := range keys { // The holds of a limit are a hash, beside its counter.
				if server.Do(t, "TYPE", other) == "hash" {
					key = fmt.Sprint(other)
				}
			}
			if r.code != codes.OK || len(keys) > 2 {
				t.Fatalf("%v, keys %v at %v", r.code, keys, time.Now())
			}
			server.Do(t, "DEL", key)
			server.Do(t, test.write(key)...)
			foreign := fmt.Sprint(server.Do(t, "DUMP", key))
			for range 20 {
				if r = u.send(t, "json", "d", step{ask: test.ask}); r.code != codes.Unavailable ||
					strings.Contains(r.text, valueMark) || strings.Contains(r.text, "WRONGTYPE") {
					t.Errorf("%v %q", r.code, r.text)
				}
			}
			want := "holds what is no counter under the key of a " + test.kind + " limit"
			u.logs(t, 0, want)
			if log := u.log(t); strings.Count(log, want) != 1 || strings.Contains(log, valueMark) {
				t.Errorf("%d lines, or lines with a key", strings.Count(log, want))
			}
			if now := fmt.Sprint(server.Do(t, "DUMP", key)); now != foreign {
				t.Errorf("what the other program wrote was changed: %q to %q", foreign, now)
			}
			if r = u.send(t, "json", "d", step{ask: "fixed=another"}); r.code != codes.OK {
				t.Errorf("another counter: %v", r.code)
			}
		})
	}
}
