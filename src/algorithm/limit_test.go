package algorithm

import (
	"math"
	"slices"
	"testing"
	"time"
)

type validateCase struct {
	limit Limit
	want  string // empty: it is fine
}

func TestLimitValidate(t *testing.T) {
	for _, test := range validateCases() {
		if got := words(test.limit.Validate()); got != test.want {
			t.Errorf("%+v: %q, want %q", test.limit, got, test.want)
		}
	}
}

func validateCases() []validateCase {
	const us, s = time.Microsecond, time.Second
	return []validateCase{
		{Limit{Max: 1, Period: s}, ""},
		{Limit{Period: s, CountBlocked: true}, ""}, // lets nothing pass, which is legal
		{Limit{Max: math.MaxUint64, Period: s}, ""},
		{Limit{Max: 1, Period: MaxPeriod}, ""},
		{Limit{Kind: FirstHitWindow, Max: 1, Period: us}, ""},
		{Limit{Kind: SlidingWindow, Max: 1, Period: us}, ""},
		{Limit{Kind: SlidingWindowCounter, Max: 1, Period: us}, ""},
		{Limit{Kind: GCRA, Max: 1, Period: us}, ""},
		{Limit{Kind: FirstHitWindow, Period: MaxPeriod}, ""},
		{Limit{Kind: SlidingWindow, Period: MaxPeriod}, ""},
		{Limit{Kind: SlidingWindowCounter, Period: MaxPeriod}, ""},
		{Limit{Kind: GCRA, Period: MaxPeriod}, ""},

		{Limit{Kind: numKinds, Max: 1, Period: s}, "algorithm: kind 6 is not known"},
		{Limit{Kind: 200, Max: 1, Period: s}, "algorithm: kind 200 is not known"},

		{Limit{Max: 1}, "algorithm: the window must be longer than 0s"},
		{Limit{Max: 1, Period: -s}, "algorithm: the window must be longer than 0s"},
		{Limit{Kind: GCRA, Max: 1}, "algorithm: the window must be longer than 0s"},
		{Limit{Max: 1, Period: MaxPeriod + s}, "algorithm: the window is longer than 100 years"},
		{Limit{Kind: SlidingWindow, Max: 1, Period: MaxPeriod + us}, "algorithm: the window is longer than 100 years"},
		{Limit{Kind: SlidingWindow, Max: 1, Period: math.MaxInt64}, "algorithm: the window is longer than 100 years"},
		{Limit{Max: 1, Period: 1500 * time.Millisecond}, "algorithm: fixed_window needs a window of whole seconds, got 1.5s"},
		{
			Limit{Kind: FirstHitWindow, Max: 1, Period: us + 1},
			"algorithm: first_hit_window needs a window of whole microseconds, got 1.001µs",
		},
		{
			Limit{Kind: SlidingWindow, Max: 1, Period: us - 1},
			"algorithm: sliding_window needs a window of whole microseconds, got 999ns",
		},
		{
			Limit{Kind: SlidingWindowCounter, Max: 1, Period: 1},
			"algorithm: sliding_window_counter needs a window of whole microseconds, got 1ns",
		},
		{Limit{Kind: GCRA, Max: 1, Period: s + 1}, "algorithm: gcra needs a window of whole microseconds, got 1.000000001s"},

		{Limit{Max: 1, Period: s, Calendar: &Calendar{}}, ""},
		{
			Limit{Kind: FirstHitWindow, Max: 1, Period: s, Calendar: &Calendar{}},
			"algorithm: first_hit_window has no calendar",
		},
		{Limit{Kind: GCRA, Max: 1, Period: s, Calendar: &Calendar{}}, "algorithm: gcra has no calendar"},

		{Limit{Kind: GCRA, Max: 1, Period: MaxPeriod, Emission: 1, Burst: 1}, ""},
		{Limit{Kind: GCRA, Period: s, Emission: 1}, "algorithm: gcra of 0 has no emission interval of 1ns"},
		{Limit{Max: 1, Period: s, Emission: s}, "algorithm: fixed_window of 1 has no emission interval of 1s"},
		{
			Limit{Kind: GCRA, Max: 1, Period: s, Emission: s, Burst: 1 << 40},
			"algorithm: the burst takes longer than 100 years to fill",
		},

		{Limit{Max: 1, Period: s, Burst: 1}, "algorithm: fixed_window has no burst"},
		{Limit{Kind: FirstHitWindow, Max: 1, Period: s, Burst: 1}, "algorithm: first_hit_window has no burst"},
		{Limit{Kind: SlidingWindow, Max: 1, Period: s, Burst: 1}, "algorithm: sliding_window has no burst"},
		{Limit{Kind: SlidingWindowCounter, Max: 1, Period: s, Burst: 1}, "algorithm: sliding_window_counter has no burst"},

		{Limit{Kind: SlidingWindow, Max: 1, Period: s, MinInterval: us}, ""},
		{Limit{Kind: SlidingWindow, Max: 1, Period: s, MinInterval: MaxPeriod}, ""}, // longer than the window
		{Limit{Kind: GCRA, Max: 1, Period: s, MinInterval: us}, ""},
		{Limit{Kind: GCRA, Max: 1, Period: s, MinInterval: MaxPeriod}, ""},
		{Limit{Max: 1, Period: s, MinInterval: s}, "algorithm: fixed_window has no minimum interval"},
		{
			Limit{Kind: FirstHitWindow, Max: 1, Period: s, MinInterval: s},
			"algorithm: first_hit_window has no minimum interval",
		},
		{
			Limit{Kind: SlidingWindowCounter, Max: 1, Period: s, MinInterval: -s},
			"algorithm: sliding_window_counter has no minimum interval",
		},
		{
			Limit{Kind: SlidingWindow, Max: 1, Period: s, MinInterval: -us},
			"algorithm: the minimum interval must be between 0s and 100 years",
		},
		{
			Limit{Kind: GCRA, Max: 1, Period: s, MinInterval: MaxPeriod + us},
			"algorithm: the minimum interval must be between 0s and 100 years",
		},
		{
			Limit{Kind: GCRA, Max: 1, Period: s, MinInterval: us / 2},
			"algorithm: the minimum interval must be whole microseconds, got 500ns",
		},

		{Limit{Kind: SlidingWindow, Max: MaxLoggedHits, Period: s}, ""},
		{
			Limit{Kind: SlidingWindow, Max: MaxLoggedHits + 1, Period: s},
			"algorithm: sliding_window remembers each hit, so its limit is at most 1000000; sliding_window_counter has no " +
				"such bound",
		},

		// The largest limit of a rule file, by the second.
		{Limit{Max: 1<<32 - 1, Period: s}, ""},
		{Limit{Kind: FirstHitWindow, Max: 1<<32 - 1, Period: s}, ""},
		{
			Limit{Kind: SlidingWindow, Max: 1<<32 - 1, Period: s},
			"algorithm: sliding_window remembers each hit, so its limit is at most 1000000; sliding_window_counter has no " +
				"such bound",
		},
		{Limit{Kind: SlidingWindowCounter, Max: 1<<32 - 1, Period: s}, ""},
		{
			Limit{Kind: GCRA, Max: 1<<32 - 1, Period: s},
			"algorithm: gcra lets at most one unit pass in a nanosecond, which 4294967295 in 1s exceed",
		},
		{Limit{Kind: GCRA, Max: 2_500_000_000, Period: 5 * s, Burst: 1<<32 - 2}, ""},
		{Limit{Kind: GCRA, Max: 1_000_000_000, Period: s, Burst: 999_999_999}, ""}, // one in a nanosecond
		{
			Limit{Kind: GCRA, Max: 1_000_000_001, Period: s},
			"algorithm: gcra lets at most one unit pass in a nanosecond, which 1000000001 in 1s exceed",
		},

		// Whole nanoseconds are right within 0.1 %, or refused.
		{Limit{Kind: GCRA, Max: 999_999, Period: s}, ""},
		{Limit{Kind: GCRA, Max: 1_998_002, Period: s}, ""}, // 500 ns, and 0.1 % faster
		{
			Limit{Kind: GCRA, Max: 7, Period: time.Microsecond},
			"algorithm: gcra counts in whole nanoseconds, which cannot be 7 in 1µs; the nearest rates are 6 and 7",
		},
		{Limit{Kind: GCRA, Max: 50_000_000, Period: s}, ""},
		{
			Limit{Kind: GCRA, Max: 70_000_000, Period: s},
			"algorithm: gcra counts in whole nanoseconds, which cannot be 70000000 in 1s; the nearest rates are 66666666 and " +
				"71428571",
		},
		{Limit{Kind: GCRA, Max: 66_666_666, Period: s}, ""},
		{Limit{Kind: GCRA, Max: 71_428_571, Period: s}, ""},
		{
			Limit{Kind: GCRA, Max: 600_000_000, Period: s},
			"algorithm: gcra counts in whole nanoseconds, which cannot be 600000000 in 1s; the nearest rates are 500000000 " +
				"and 1000000000",
		},

		// Buckets that take 100 years to fill, and a nanosecond more.
		{Limit{Kind: GCRA, Max: 1, Period: MaxPeriod}, ""},
		{Limit{Kind: GCRA, Max: 1, Period: MaxPeriod, Burst: 1}, "algorithm: the burst takes longer than 100 years to fill"},
		{Limit{Kind: GCRA, Max: 1<<32 - 1, Period: MaxPeriod, Burst: 1<<32 - 2}, ""},
		{Limit{Kind: GCRA, Max: 1_000_000_000, Period: s, Burst: uint64(MaxPeriod) - 1}, ""},
		{
			Limit{Kind: GCRA, Max: 1_000_000_000, Period: s, Burst: uint64(MaxPeriod)},
			"algorithm: the burst takes longer than 100 years to fill",
		},
		{
			Limit{Kind: GCRA, Max: 1, Period: s, Burst: math.MaxUint64},
			"algorithm: the burst takes longer than 100 years to fill",
		},
		{
			Limit{Kind: GCRA, Max: 1, Period: s, Burst: math.MaxUint64 - 1},
			"algorithm: the burst takes longer than 100 years to fill",
		},
		{Limit{Kind: GCRA, Period: s, Burst: math.MaxUint64}, ""}, // what lets nothing pass has no bucket
	}
}

func TestCapacity(t *testing.T) {
	for want, limit := range map[uint64]Limit{
		0: {Kind: GCRA, Burst: 5, Period: time.Second},
		1: {Kind: GCRA, Max: 100, Period: time.Second},
		6: {Kind: GCRA, Max: 1, Burst: 5, Period: time.Second},
		7: {Kind: SlidingWindow, Max: 7, Period: time.Second},
	} {
		if got := limit.Capacity(); got != want {
			t.Errorf("%+v: %d, want %d", limit, got, want)
		}
	}
}

func TestKindNames(t *testing.T) {
	want := []string{"fixed_window", "first_hit_window", "sliding_window", "sliding_window_counter", "gcra", "concurrency"}
	if got := KindNames(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	clear(KindNames()) // the caller's own
	for i, name := range want {
		if k, ok := ParseKind(name); !ok || int(k) != i || k.String() != name {
			t.Errorf("%q is %d, %t, which is called %q", name, k, ok, k)
		}
	}
	for _, name := range []string{"", "GCRA", "sliding", "kind 6"} {
		if k, ok := ParseKind(name); ok {
			t.Errorf("%q is known as %v", name, k)
		}
	}
	if got := numKinds.String(); got != "kind 6" {
		t.Errorf("%q", got)
	}
}

// The emission interval is redis-cell's, which divides floating point numbers,
// wherever those are exact: up to 2^53 ns, 104 days.
func TestEmission(t *testing.T) {
	if got := (&Limit{Kind: GCRA, Period: time.Second}).EmissionInterval(); got != 0 {
		t.Errorf("without a limit: %d", got)
	}
	for _, period := range []time.Duration{
		time.Microsecond, time.Second, time.Minute, time.Hour, 24 * time.Hour,
		30 * 24 * time.Hour, 104 * 24 * time.Hour,
	} {
		for _, most := range []uint64{1, 2, 3, 7, 9, 30, 999, 1000, 99_999, 1_000_003, 1<<32 - 1} {
			l := Limit{Kind: GCRA, Max: most, Period: period}
			if got, want := l.EmissionInterval(), int64(float64(period)/float64(most)); got != want {
				t.Errorf("%d in %v: %d, want %d", most, period, got, want)
			}
		}
	}
}

func words(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
