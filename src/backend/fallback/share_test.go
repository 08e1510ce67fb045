package fallback

import (
	"fmt"
	"math"
	"testing"
	"testing/quick"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// A share follows the number of replicas, which changes while the store is away.
func TestShareFollowsReplicas(t *testing.T) {
	t.Parallel()
	replicas := 0
	next := inMemory(t)
	next.down.Store(true)
	s, err := New(next, Config{Replicas: func() int { return replicas }})
	if err != nil {
		t.Fatal(err)
	}
	only, err := New(next, Config{})
	if err != nil {
		t.Fatal(err)
	}
	limit := fixed(10, time.Hour)
	for i, tt := range []struct {
		store        *Store
		replicas     int
		amount       uint64
		over         bool
		before, left uint64
	}{
		{s, 4, 3, false, 0, 0},
		{s, 4, 1, true, 3, 0},
		{s, 2, 1, false, 3, 1}, // What was refused under 3 of 10 does not count under 5 of 10.
		{s, 0, 5, false, 4, 1},
		{only, 0, 9, false, 0, 1},
	} {
		replicas = tt.replicas
		v := send(t, tt.store, 0, local("k", limit, tt.amount))[0]
		if v.Over != tt.over || v.Before != tt.before || v.Remaining != tt.left ||
			v.Fallback != backend.FallbackLocal {
			t.Errorf("hit %d of %d with %d replicas: %+v", i, tt.amount, tt.replicas, v)
		}
	}
}

func TestShare(t *testing.T) {
	for _, tt := range []struct {
		name     string
		of       algorithm.Limit
		replicas uint64
		want     algorithm.Limit
	}{
		{
			"one replica has it all",
			algorithm.Limit{Max: 10, Period: time.Minute},
			1,
			algorithm.Limit{Max: 10, Period: time.Minute},
		},
		{
			"an unknown number is one",
			algorithm.Limit{Max: 10, Period: time.Minute},
			0,
			algorithm.Limit{Max: 10, Period: time.Minute},
		},
		{"rounded up", algorithm.Limit{Max: 10, Period: time.Minute}, 4, algorithm.Limit{Max: 3, Period: time.Minute}},
		{
			"more replicas than hits",
			algorithm.Limit{Max: 2, Period: time.Minute},
			5,
			algorithm.Limit{Max: 1, Period: time.Minute},
		},
		{"nothing stays nothing", algorithm.Limit{Period: time.Minute}, 3, algorithm.Limit{Period: time.Minute}},
		{
			"the distance is longer",
			algorithm.Limit{Kind: algorithm.SlidingWindow, Max: 9, Period: time.Minute, MinInterval: time.Second},
			3,
			algorithm.Limit{Kind: algorithm.SlidingWindow, Max: 3, Period: time.Minute, MinInterval: 3 * time.Second},
		},
		{
			"but not too long",
			algorithm.Limit{
				Kind: algorithm.SlidingWindow, Max: 9, Period: time.Minute,
				MinInterval: algorithm.MaxPeriod / 2,
			},
			3,
			algorithm.Limit{
				Kind: algorithm.SlidingWindow, Max: 3, Period: time.Minute,
				MinInterval: algorithm.MaxPeriod,
			},
		},
		{
			"a bucket fills slower and holds less",
			algorithm.Limit{Kind: algorithm.GCRA, Max: 30, Burst: 14, Period: time.Minute},
			4,
			algorithm.Limit{Kind: algorithm.GCRA, Max: 8, Burst: 3, Period: time.Minute},
		},
		{
			"so does one with an emission interval",
			algorithm.Limit{
				Kind: algorithm.GCRA, Max: 1, Burst: 14, Period: algorithm.MaxPeriod,
				Emission: 2 * time.Second,
			},
			4,
			algorithm.Limit{
				Kind: algorithm.GCRA, Max: 1, Burst: 3, Period: algorithm.MaxPeriod,
				Emission: 8 * time.Second,
			},
		},
		{
			"holds at a time are divided, and their time is not",
			algorithm.Limit{Kind: algorithm.Concurrency, Max: 10, Period: time.Minute, Hold: time.Minute},
			4,
			algorithm.Limit{Kind: algorithm.Concurrency, Max: 3, Period: time.Minute, Hold: time.Minute},
		},
		{
			"a bucket of one",
			algorithm.Limit{Kind: algorithm.GCRA, Max: 1, Period: time.Second},
			7,
			algorithm.Limit{Kind: algorithm.GCRA, Max: 1, Period: time.Second},
		},
		{
			"a bucket of nothing",
			algorithm.Limit{Kind: algorithm.GCRA, Period: time.Second},
			7,
			algorithm.Limit{Kind: algorithm.GCRA, Period: time.Second},
		},
	} {
		if got := limitShare(&tt.of, tt.replicas); got != tt.want {
			t.Errorf("%s: %+v of %d: got %+v, want %+v", tt.name, tt.of, tt.replicas, got, tt.want)
		}
	}
}

// The shares of a valid limit are valid. Together they allow at least the limit, and at most
// n - 1 more.
func TestSharesSum(t *testing.T) {
	check := func(kind uint8, most, burst uint32, period uint32, interval uint16, replicas uint16) bool {
		l := algorithm.Limit{
			Kind: algorithm.Kind(int(kind) % len(algorithm.KindNames())), Max: uint64(most),
			Period: time.Duration(1+period) * time.Second,
		}
		switch l.Kind {
		case algorithm.GCRA:
			l.Burst, l.MinInterval = uint64(burst), time.Duration(interval)*time.Hour
		case algorithm.SlidingWindow:
			l.Max %= algorithm.MaxLoggedHits
			l.MinInterval = time.Duration(interval) * time.Hour
		case algorithm.Concurrency:
			l.Max %= algorithm.MaxOpenHolds
			l.Period = time.Duration(1+period%3600) * time.Second
			l.Hold = l.Period
		}
		if l.Max == 0 {
			l.Burst = 0
		}
		if l.Validate() != nil {
			return true
		}
		n := uint64(replicas)
		s := limitShare(&l, n)
		if err := s.Validate(); err != nil {
			t.Logf("%+v of %d: %v", l, n, err)
			return false
		}
		n = max(n, 1)
		slow := l.Kind == algorithm.GCRA && l.Max > 0 && s.Capacity()*n < l.Capacity() // what takes 100 years to fill
		return s.Max*n >= l.Max && s.Max*n <= l.Max+n-1 && (l.MinInterval == 0 || s.MinInterval >= l.MinInterval) &&
			(slow && s.BurstTolerance() > int64(algorithm.MaxPeriod)-s.EmissionInterval() ||
				s.Capacity()*n >= l.Capacity() && s.Capacity()*n <= max(l.Capacity(), n)+n-1)
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 20_000}); err != nil {
		t.Error(err)
	}
	huge := algorithm.Limit{Max: math.MaxUint64, Period: time.Second}
	if got := limitShare(&huge, 2).Max; got != 1<<63 {
		t.Errorf("half of 2^64 - 1 is %d", got)
	}
}

// Each of 4 replicas enforces a share of 10 a minute while the store does not answer.
func Example_share() {
	limit := algorithm.Limit{Max: 10, Period: time.Minute}
	fmt.Println(limitShare(&limit, 4).Max)
	// Output: 3
}
