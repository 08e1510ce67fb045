package memcached

import (
	"fmt"
	"math"
	"strconv"
	"sync"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/memcachedtest"
)

const hotKey = "hot_1767225600"

// Counters stop where those of other stores do, and do not begin anew at 2^64.
func TestCountersAreFull(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}})
	h := hot(0)
	for _, tt := range []struct {
		name          string
		stored        uint64
		amount        uint64
		before, after uint64
		left          uint64 // in the server
	}{
		{"32 bits are nothing", 1 << 40, 1, 1 << 40, 1<<40 + 1, 1<<40 + 1},
		{"almost full", math.MaxInt64 - 1, 1, math.MaxInt64 - 1, math.MaxInt64, math.MaxInt64},
		{"full", math.MaxInt64, 5, math.MaxInt64, math.MaxInt64, math.MaxInt64},
		{
			"filled by a large hit", math.MaxInt64 - 10, algorithm.MaxAmount, math.MaxInt64 - 10, math.MaxInt64,
			math.MaxInt64,
		},
		{"beyond", math.MaxInt64 + 100, 1, math.MaxInt64, math.MaxInt64, math.MaxInt64},
		{"about to begin anew", math.MaxUint64, 3, math.MaxInt64, math.MaxInt64, math.MaxInt64},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server.Set(t, hotKey, strconv.FormatUint(tt.stored, 10))
			h.Amount = tt.amount
			v := send(t, s, h)
			if v.Before != tt.before || v.After != tt.after || v.Over != (tt.after > h.Limit.Max) || v.Err != nil {
				t.Errorf("got %+v", v)
			}
			if got := server.Get(t, hotKey); got != strconv.FormatUint(tt.left, 10) {
				t.Errorf("the server has %s, want %d", got, tt.left)
			}
		})
	}
	// Those of sliding windows stop earlier.
	const key = "{hot_}|sc:3600:1767225600"
	server.Set(t, key, strconv.Itoa(algorithm.MaxScriptCount-1))
	h.Limit = sliding(10, time.Hour)
	if v := send(t, s, h); v.Before != algorithm.MaxScriptCount-1 || v.After != algorithm.MaxScriptCount || !v.Over {
		t.Errorf("got %+v", v)
	}
	if got := server.Get(t, key); got != strconv.Itoa(algorithm.MaxScriptCount) {
		t.Errorf("the server has %s", got)
	}
}

// Refunds never make a counter, never go below 0, and leave numbers that are
// read again.
func TestRefunds(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}})
	refund, charge := hot(0), hot(0)
	refund.Op = algorithm.Refund
	for i, st := range []struct {
		hit           backend.Hit
		amount        uint64
		before, after uint64
		left          string
	}{
		{refund, 3, 0, 0, ""},
		{charge, 1000, 0, 1000, "1000"},
		{refund, 1, 1000, 999, "999"}, // Memcached keeps it as "999 "
		{refund, 0, 999, 999, "999"},
		{charge, 2, 999, 1001, "1001"},
		{refund, 1001, 1001, 0, "0"},
		{refund, 1, 0, 0, "0"},
		{charge, 7, 0, 7, "7"},
		{refund, 100, 7, 0, "0"},
	} {
		st.hit.Amount = st.amount
		if v := send(t, s, st.hit); v.Before != st.before || v.After != st.after || v.Over || v.Err != nil {
			t.Errorf("step %d: %+v", i, v)
		}
		if got := server.Get(t, hotKey); got != st.left {
			t.Errorf("step %d: the server has %q, want %q", i, got, st.left)
		}
	}
}

// Charges, refunds and looks at one key in one batch are in order, whichever call made
// them, and each hit has a count of its own.
func TestEachHasItsOwnCount(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}})
	const calls = 2000
	seen := make([]int, calls)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range calls {
		wg.Go(func() {
			v := send(t, s, hot(0))
			mu.Lock()
			defer mu.Unlock()
			if v.Err != nil || v.After != v.Before+1 || v.Before >= calls {
				t.Errorf("got %+v", v)
				return
			}
			seen[v.Before]++
		})
	}
	wg.Wait()
	for before, n := range seen {
		if n != 1 {
			t.Fatalf("%d hits found the count at %d", n, before)
		}
	}
	if st := s.Stats(); st.Commands >= calls || s.Counts.Adds.Done.Load() != 1 {
		t.Errorf("%d calls were %d commands and %d adds", calls, st.Commands, s.Counts.Adds.Done.Load())
	}
}

// A counter that goes away comes back from 0; that of others, which is no
// number, is an error and stays as it is.
func TestLostAndForeign(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}, Config: remote.Config{Connections: 1}})
	send(t, s, hot(0))
	server.Delete(t, hotKey)
	if v := send(t, s, hot(0)); v.Before != 0 || v.Err != nil {
		t.Errorf("got %+v", v)
	}
	server.Set(t, hotKey, "yours")
	dials := s.Stats().Dials
	for range 3 {
		if v := send(t, s, hot(0)); causeOf(v.Err) != causeReply {
			t.Errorf("got %+v", v)
		}
	}
	if got := server.Get(t, hotKey); got != "yours" {
		t.Errorf("the other's value became %q", got)
	}
	if st := s.Stats(); st.Dials != dials || st.ErrorsByCause["reply"] != 3 || s.Counts.Increments.Failed.Load() != 3 {
		t.Errorf("an error reply cost a connection: %+v", st)
	}
}

// The client that adds a counter second increments it: of many processes that begin
// together one adds.
func TestAddIsContested(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	var stores []*Store
	for range 8 {
		stores = append(stores, open(t, Config{Servers: []string{server.Addr}}))
	}
	contested := int64(0)
	for round := range 50 {
		var wg sync.WaitGroup
		for _, s := range stores {
			wg.Go(func() {
				if v := send(t, s, spread(round)); v.Err != nil {
					t.Error(v.Err)
				}
			})
		}
		wg.Wait()
		if got := server.Get(t, fmt.Sprintf("spread_%d_1767225600", round)); got != "8" {
			t.Fatalf("round %d: the count is %s, want 8", round, got)
		}
	}
	added := int64(0)
	for _, s := range stores {
		contested += s.Counts.Adds.Missed.Load()
		added += s.Counts.Adds.Done.Load()
	}
	if added != 50 {
		t.Errorf("%d adds, want 50", added)
	}
	t.Logf("%d adds came second", contested)
}

func TestExpiryIsTold(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	const day = 24 * time.Hour
	for _, tt := range []struct {
		life time.Duration
		want int32
	}{
		{3 * time.Second, 3},
		{3*time.Second + 1, 4},
		{30 * day, 30 * 24 * 3600},
		{30*day + time.Second, 1_800_000_000 + 30*24*3600 + 1 + serverClockSlack},
		{365 * day, 1_800_000_000 + 365*24*3600 + serverClockSlack},
		{20 * 365 * day, 0}, // Memcached's dates end in 2038
		{algorithm.MaxPeriod * 2, 0},
	} {
		var hit remote.Hit
		hit.SetTTL(tt.life, 0, false)
		if got := expiration(now, hit.TTL); got != tt.want {
			t.Errorf("%v: %d, want %d", tt.life, got, tt.want)
		}
	}
}

// TestCalendarExpiry checks that a counter of a calendar expires soon after its border.
func TestCalendarExpiry(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}})
	calendar, err := algorithm.NewCalendar(algorithm.CalendarSpec{Units: 3, Location: time.UTC})
	if err != nil {
		t.Fatal(err)
	}
	limit := window(1, 3*24*time.Hour)
	limit.Calendar = calendar
	b := backend.Batch{
		Hits:     []backend.Hit{{Key: []byte("k_"), Limit: limit, Amount: 1}},
		Verdicts: make([]backend.Verdict, 1),
	}
	now := time.Now()
	_, end := limit.WindowBounds(now.UnixNano())
	if err := s.Take(t.Context(), &b); err != nil || b.Verdicts[0].Err != nil {
		t.Fatal(err, b.Verdicts[0].Err)
	}
	key := string(appendKey(nil, &b.Hits[0], now.UnixNano(), false, 0))
	want := time.Unix(0, end).Sub(now) + time.Minute
	if life := server.TTL(t, key); want > 2*time.Minute && (life < want-10*time.Second || life > want+10*time.Second) {
		t.Errorf("%s lives for %v, want %v", key, life, want)
	}
}

// A batch that is decided ahead counts in the next window, whose counter lives until its end.
func TestCountsAhead(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}})
	next := time.Now().Truncate(time.Hour).Add(time.Hour)
	b := backend.Batch{
		Hits:     []backend.Hit{{Key: []byte("k_"), Limit: window(10, time.Hour), Amount: 3}},
		Verdicts: make([]backend.Verdict, 1), Ahead: time.Until(next) + time.Second,
	}
	if err := s.Take(t.Context(), &b); err != nil || b.Verdicts[0].Err != nil {
		t.Fatal(err, b.Verdicts[0].Err)
	}
	key := string(appendKey(nil, &b.Hits[0], next.UnixNano(), false, 0))
	if got := server.Get(t, key); got != "3" {
		t.Errorf("the count of %s is %q, want 3", key, got)
	}
	life, want := server.TTL(t, key), time.Until(next.Add(time.Hour))
	if life < want-3*time.Second || life > want+2*time.Hour {
		t.Errorf("%s lives for %v, want %v", key, life, want)
	}
}

// Counters outlive their windows, those of months and years too, which upstream
// loses at once.
func TestExpiry(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	const day = 24 * time.Hour
	for _, jitter := range []time.Duration{0, 300 * time.Second} {
		s := open(t, Config{Servers: []string{server.Addr}, Config: remote.Config{ExpirationJitter: jitter}})
		for i, limit := range []*algorithm.Limit{
			window(1, time.Second), window(1, time.Hour), window(1, 30*day), window(1, 365*day),
			sliding(1, time.Second), sliding(1, 30*day), sliding(1, 365*day),
		} {
			h := backend.Hit{Key: fmt.Appendf(nil, "e%v%d_", jitter, i), Limit: limit, Amount: 1}
			var now time.Time
			var v [2]backend.Verdict
			for j := range v {
				b := backend.Batch{Hits: []backend.Hit{h}, Verdicts: v[j : j+1]}
				now = time.Now()
				if err := s.Take(t.Context(), &b); err != nil || v[j].Err != nil {
					t.Fatal(err, v[j].Err)
				}
			}
			if limit.Period > time.Second && (v[0].Over || !v[1].Over) { // the window may end in between
				t.Errorf("limit of 1 in %v: over %t, %t", limit.Period, v[0].Over, v[1].Over)
			}
			key := string(appendKey(nil, &h, now.UnixNano(), false, 0))
			if server.Get(t, key) == "" {
				continue // the window ended in between
			}
			least := limit.Period
			if limit.Kind == algorithm.SlidingWindowCounter {
				least *= 2
			}
			if life := server.TTL(t, key); life < least-3*time.Second || life > least+jitter+2*time.Hour {
				t.Errorf("%v of %v lives for %v", limit.Kind, limit.Period, life)
			}
		}
	}
}

// What Memcached cannot do is an error, never a pass.
func TestUnsupported(t *testing.T) {
	t.Parallel()
	server := memcachedtest.Start(t, memcachedtest.Options{})
	s := open(t, Config{Servers: []string{server.Addr}})
	polite := *window(1, time.Hour)
	polite.CountBlocked = false
	bad := []backend.Hit{
		{Key: []byte("k"), Limit: &polite, Amount: 1},
		{Key: []byte("k"), Limit: window(1, time.Hour), Amount: 1, Atomic: true},
	}
	for kind := range algorithm.Kind(5) {
		if kind != algorithm.FixedWindow && kind != algorithm.SlidingWindowCounter {
			bad = append(bad, backend.Hit{
				Key:   []byte("k"),
				Limit: &algorithm.Limit{Kind: kind, Max: 1, Period: time.Hour, CountBlocked: true}, Amount: 1,
			})
		}
	}
	for _, h := range bad {
		b := backend.Batch{Hits: []backend.Hit{hot(0), h}, Verdicts: make([]backend.Verdict, 2), Now: epoch}
		if err := s.Take(t.Context(), &b); err != nil {
			t.Error(err)
		}
		for _, v := range b.Verdicts {
			if causeOf(v.Err) != causeUnsupported {
				t.Errorf("%+v: %+v", h, v)
			}
		}
	}
	if got := server.Get(t, hotKey); got != "" {
		t.Errorf("counted all the same: %s", got)
	}
}
