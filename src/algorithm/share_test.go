package algorithm

import (
	"math"
	"testing"
	"testing/quick"
	"time"
)

func TestShare(t *testing.T) {
	for _, tt := range []struct {
		name     string
		of       Limit
		replicas uint64
		want     Limit
	}{
		{"one replica has it all", Limit{Max: 10, Period: time.Minute}, 1, Limit{Max: 10, Period: time.Minute}},
		{"an unknown number is one", Limit{Max: 10, Period: time.Minute}, 0, Limit{Max: 10, Period: time.Minute}},
		{"rounded up", Limit{Max: 10, Period: time.Minute}, 4, Limit{Max: 3, Period: time.Minute}},
		{"more replicas than hits", Limit{Max: 2, Period: time.Minute}, 5, Limit{Max: 1, Period: time.Minute}},
		{"nothing stays nothing", Limit{Period: time.Minute}, 3, Limit{Period: time.Minute}},
		{
			"the distance is longer",
			Limit{Kind: SlidingWindow, Max: 9, Period: time.Minute, MinInterval: time.Second},
			3,
			Limit{Kind: SlidingWindow, Max: 3, Period: time.Minute, MinInterval: 3 * time.Second},
		},
		{
			"but not too long",
			Limit{Kind: SlidingWindow, Max: 9, Period: time.Minute, MinInterval: MaxPeriod / 2},
			3,
			Limit{Kind: SlidingWindow, Max: 3, Period: time.Minute, MinInterval: MaxPeriod},
		},
		{
			"a bucket fills slower and holds less",
			Limit{Kind: GCRA, Max: 30, Burst: 14, Period: time.Minute},
			4,
			Limit{Kind: GCRA, Max: 8, Burst: 3, Period: time.Minute},
		},
		{"a bucket of one", Limit{Kind: GCRA, Max: 1, Period: time.Second}, 7, Limit{Kind: GCRA, Max: 1, Period: time.Second}},
		{"a bucket of nothing", Limit{Kind: GCRA, Period: time.Second}, 7, Limit{Kind: GCRA, Period: time.Second}},
	} {
		if got := tt.of.Share(tt.replicas); got != tt.want {
			t.Errorf("%s: %+v of %d: got %+v, want %+v", tt.name, tt.of, tt.replicas, got, tt.want)
		}
	}
}

// All shares of a good limit are good, and together no less than the limit and at
// most one for each replica but one more.
func TestSharesAddUp(t *testing.T) {
	check := func(kind uint8, most, burst uint32, period uint32, interval uint16, replicas uint16) bool {
		l := Limit{Kind: Kind(kind % uint8(kinds)), Max: uint64(most), Period: time.Duration(1+period) * time.Second}
		switch l.Kind {
		case GCRA:
			l.Burst, l.MinInterval = uint64(burst), time.Duration(interval)*time.Hour
		case SlidingWindow:
			l.Max %= MaxLogged
			l.MinInterval = time.Duration(interval) * time.Hour
		}
		if l.Max == 0 {
			l.Burst = 0
		}
		if l.Validate() != nil {
			return true
		}
		n := uint64(replicas)
		s := l.Share(n)
		if err := s.Validate(); err != nil {
			t.Logf("%+v of %d: %v", l, n, err)
			return false
		}
		n = max(n, 1)
		slow := l.Kind == GCRA && l.Max > 0 && s.Capacity()*n < l.Capacity() // what takes 100 years to fill
		return s.Max*n >= l.Max && s.Max*n <= l.Max+n-1 && (l.MinInterval == 0 || s.MinInterval >= l.MinInterval) &&
			(slow && s.Tolerance() > int64(MaxPeriod)-s.Emission() || s.Capacity()*n >= l.Capacity() && s.Capacity()*n <= max(l.Capacity(), n)+n-1)
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 20_000}); err != nil {
		t.Error(err)
	}
	huge := Limit{Max: math.MaxUint64, Period: time.Second}
	if got := huge.Share(2).Max; got != 1<<63 {
		t.Errorf("half of 2^64 - 1 is %d", got)
	}
}
