package remote

import (
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func window(limit uint64, period time.Duration) *algorithm.Limit {
	return &algorithm.Limit{Max: limit, Period: period, CountBlocked: true}
}

func TestAppendKey(t *testing.T) {
	for _, tt := range []struct {
		key    string // the tag in braces
		period time.Duration
		tagged bool
		want   string
	}{
		// envoyproxy/ratelimit's windows have its keys.
		{"{d_a_1_}", time.Second, false, "d_a_1_1767225600"},
		{"{d_a_1_}b_2_", time.Minute, false, "d_a_1_b_2_1767225600"},
		{"{d_a_1_}b_2_", 365 * 24 * time.Hour, false, "d_a_1_b_2_1766016000"}, // 56 times 365 days after 1970
		{"{d_a_1_}", 5 * time.Minute, false, "{d_a_1_}|fw:300:1767225600"},
		{"{d_a_1_}b_2_", 5 * time.Minute, false, "{d_a_1_}b_2_|fw:300:1767225600"},
		{"{}k", 5 * time.Minute, false, "{k}|fw:300:1767225600"}, // no tag: all of it
		{"{p:d_a_1_}", time.Second, true, "{p:d_a_1_}|fw:1:1767225600"},
		{"{p:d_a_1%5F2_}b_2_", time.Minute, true, "{p:d_a_1%5F2_}b_2_|fw:60:1767225600"},
		{"{p:d_a_1_}b_2_", 5 * time.Minute, true, "{p:d_a_1_}b_2_|fw:300:1767225600"},
	} {
		tag, rest, _ := strings.Cut(tt.key[1:], "}")
		h := backend.Hit{Key: []byte(tag + rest), TagLength: len(tag), Limit: window(1, tt.period)}
		if got := string(AppendKey(nil, &h, epoch.UnixNano(), tt.tagged)); got != tt.want {
			t.Errorf("%s, %v, tagged %t:\n got %s\nwant %s", tt.key, tt.period, tt.tagged, got, tt.want)
		}
	}
}

// hashTag is what a cluster places a key by: what stands between the first `{`
// and the next `}`, or all of it if that is nothing.
//
// Source: Redis cluster specification, "Hash tags".
func hashTag(key string) string {
	if _, rest, found := strings.Cut(key, "{"); found {
		if tag, _, found := strings.Cut(rest, "}"); found && tag != "" {
			return tag
		}
	}
	return key
}

// The levels of one descriptor are on one server.
func TestLevelsShareASlot(t *testing.T) {
	for _, tt := range []struct{ first, want string }{
		{"d_a_1_", "d_a_1_"},
		{"{p}d_a_1_", "{p"},
		{"d_a_{1}_", "d_a_{1"}, // a value that was not escaped
		{"d}_a_1_", "d"},
	} {
		for _, rest := range []string{"", "b_2_", "b_}_", "b_2_c_{3}_"} {
			for _, period := range []time.Duration{time.Second, 5 * time.Minute, time.Hour} {
				h := backend.Hit{Key: []byte(tt.first + rest), TagLength: len(tt.first), Limit: window(1, period)}
				key := string(AppendKey(nil, &h, epoch.UnixNano(), true))
				if got := hashTag(key); got != tt.want {
					t.Errorf("%s is placed by %s, want %s", key, got, tt.want)
				}
			}
		}
	}
}
