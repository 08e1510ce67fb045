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

// monthFrom15 is a limit in months of Berlin that begin on the 15th.
func monthFrom15(t *testing.T) *algorithm.Limit {
	t.Helper()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	calendar, err := algorithm.NewCalendar(algorithm.CalendarSpec{
		Unit: algorithm.CalendarMonth, Units: 1,
		AnchorDay: 15, Location: zone,
	})
	if err != nil {
		t.Fatal(err)
	}
	l := window(1, 30*24*time.Hour)
	l.Calendar = calendar
	return l
}

// TestAppendCalendarKey checks that the key of a calendar window has the calendar and the border, also where windows of
// equal length have envoyproxy/ratelimit's keys.
func TestAppendCalendarKey(t *testing.T) {
	h := backend.Hit{Key: []byte("d_a_1_b_2_"), TagLength: len("d_a_1_"), Limit: monthFrom15(t)}
	for _, tt := range []struct {
		at   string
		want string
	}{
		{"2026-01-14T22:59:59Z", "{d_a_1_}b_2_|fw:1month/15/Europe/Berlin:1765753200"},
		{"2026-01-14T23:00:00Z", "{d_a_1_}b_2_|fw:1month/15/Europe/Berlin:1768431600"},
		{"2026-02-14T22:59:59Z", "{d_a_1_}b_2_|fw:1month/15/Europe/Berlin:1768431600"},
	} {
		at, err := time.Parse(time.RFC3339, tt.at)
		if err != nil {
			t.Fatal(err)
		}
		for _, tagged := range []bool{false, true} {
			if got := string(AppendKey(nil, &h, at.UnixNano(), tagged)); got != tt.want {
				t.Errorf("%s, tagged %t:\n got %s\nwant %s", tt.at, tagged, got, tt.want)
			}
		}
	}
	var key []byte
	if n := testing.AllocsPerRun(100, func() { key = AppendKey(key[:0], &h, epoch.UnixNano(), false) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestWindowTTL checks that the counter of a calendar window expires a minute after its border, and others after their
// period.
func TestWindowTTL(t *testing.T) {
	at := time.Date(2026, 1, 14, 22, 59, 58, 0, time.UTC) // two seconds before the border
	for _, tt := range []struct {
		limit *algorithm.Limit
		at    time.Time
		want  time.Duration
	}{
		{monthFrom15(t), at, 2*time.Second + time.Minute},
		{monthFrom15(t), at.Add(2 * time.Second), 31*24*time.Hour + time.Minute},
		{window(1, 30*24*time.Hour), at, 30 * 24 * time.Hour},
	} {
		if got := WindowTTL(tt.limit, tt.at.UnixNano()); got != tt.want {
			t.Errorf("%v at %v: %v, want %v", tt.limit.Calendar, tt.at, got, tt.want)
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
		{"}d_a_1_", "%7Dd_a_1_"},
		{"}", "%7D"},
		{"}}_a_1_", "%7D"},
	} {
		for _, rest := range []string{"", "b_2_", "b_}_", "b_2_c_{3}_"} {
			for _, period := range []time.Duration{time.Second, 5 * time.Minute, time.Hour} {
				h := backend.Hit{Key: []byte(tt.first + rest), TagLength: len(tt.first), Limit: window(1, period)}
				key := string(AppendKey(nil, &h, epoch.UnixNano(), true))
				if got := hashTag(key); got != tt.want {
					t.Errorf("%s is placed by %s, want %s", key, got, tt.want)
				}
				found := searchedPrefixes([]backend.KeyPrefix{
					{Text: h.Key, TagLength: h.TagLength},
					{Text: h.Key[:len(tt.first)]},
				})
				if !HasAnyPrefix([]byte(key), found[1:2]) || !HasAnyPrefix([]byte(key), found[3:]) {
					t.Errorf("%s is not found by %q", key, found)
				}
			}
		}
	}
}

// All keys of a limit with holds have the same hash tag, and only the counter of a fixed window has its start.
func TestKeysOfHolds(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 15, 12, 0, 30, 0, time.UTC)
	month, err := algorithm.NewCalendar(algorithm.CalendarSpec{
		Unit: algorithm.CalendarMonth, Units: 1, AnchorDay: 1,
		Location: time.UTC,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		limit       algorithm.Limit
		shares      bool
		base, holds string
	}{
		{
			algorithm.Limit{Period: time.Minute, Hold: time.Second},
			false, "{d_a_}b_|fw:60|held:1768478400",
			"{d_a_}b_|fw:60|holds",
		},
		{
			algorithm.Limit{Period: time.Second, Hold: time.Second},
			true, "{d_a_}b_|fw:1|held:1768478430",
			"{d_a_}b_|fw:1|holds",
		},
		{
			algorithm.Limit{Period: 30 * day, Calendar: month, Hold: time.Second},
			false,
			"{d_a_}b_|fw:1month/1/UTC|held:1767225600", "{d_a_}b_|fw:1month/1/UTC|holds",
		},
		{
			algorithm.Limit{Kind: algorithm.GCRA, Period: 1500 * time.Millisecond, Hold: time.Second},
			false,
			"{d_a_}b_|gc:1.5|held", "{d_a_}b_|gc:1.5|holds",
		},
		{algorithm.Limit{Kind: algorithm.Concurrency, Period: time.Second, Hold: time.Second}, true, "{d_a_}b_|co", ""},
		{algorithm.Limit{Kind: algorithm.GCRA, Period: time.Minute}, false, "{d_a_}b_|gc:60", ""},
	} {
		h := backend.Hit{Key: []byte("d_a_b_"), TagLength: 4, Limit: &tt.limit, SharesKey: tt.shares}
		base, holds := string(AppendKey(nil, &h, now.UnixNano(), false)), string(AppendHoldsKey(nil, &h))
		if base != tt.base || holds != tt.holds {
			t.Errorf("%+v: %q and %q, want %q and %q", tt.limit, base, holds, tt.base, tt.holds)
		}
	}
}
