//go:build !race

package memory

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// Few counters with names of any length are never evicted while there is room.
func TestFewNamesEvictNothing(t *testing.T) {
	t.Parallel()
	for keyBytes := 1; keyBytes <= 300; keyBytes += 42 {
		s := openWith(t, Config{MaxBytes: 64 * MinBytes, KeepNames: true})
		for k := range 4000 {
			key := append(bytes.Repeat([]byte("k"), keyBytes), byte(k), byte(k>>8))
			send(t, s, epoch, backend.Hit{Key: key, Limit: snapshotLimits[0], Amount: 1})
		}
		if st := s.Stats(); st.Keys != 4000 || st.EvictedKeys != 0 {
			t.Fatalf("%d bytes: %+v", keyBytes, st)
		}
	}
}

// Names that start like others of their window take what differs. Each is found as it was, whatever the windows and the
// names before it, and after other names were removed.
func TestNamesThatShareBytes(t *testing.T) {
	t.Parallel()
	s := openWith(t, Config{MaxBytes: 8 << 20, KeepNames: true})
	rnd := rand.New(rand.NewPCG(1, 2))
	short := &algorithm.Limit{Kind: algorithm.FixedWindow, Max: 9, Period: time.Second}
	want := make(map[string]bool)
	for n := range 20_000 {
		l := algorithm.Limit{Kind: algorithm.Kind(n % 2), Max: 9, Period: time.Duration(1+n%17) * time.Hour}
		key := fmt.Appendf(nil, "api_%.*s_%d_", rnd.IntN(20), "user_of_a_long_name_", n)
		if n%50 == 0 {
			key = append(key, bytes.Repeat([]byte("x"), 300)...)
		}
		send(t, s, epoch, backend.Hit{Key: key, Limit: &l, Amount: 1})
		want[fmt.Sprintf("%.255s (%v %v)", key, l.Period, l.Kind)] = true
		send(t, s, epoch.Add(-time.Hour), backend.Hit{Key: append(key, 'x'), Limit: short, Amount: 1}) // It has expired.
	}
	if st := s.Stats(); st.EvictedKeys > 0 {
		t.Fatalf("%+v", st)
	}
	for _, name := range found(t, s, true, "api_") {
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("%d names are not found, such as %q", len(want), slices.Collect(maps.Keys(want))[0])
	}
}

// The memory of counters is what docs/operations.md says.
func TestBytesOfACounter(t *testing.T) {
	t.Parallel()
	for _, keepNames := range []bool{false, true} {
		s := openWith(t, Config{KeepNames: keepNames})
		for n := range 1_000_000 {
			key := fmt.Appendf(nil, "api_user_%d_", n)
			send(t, s, epoch, backend.Hit{Key: key, Limit: snapshotLimits[1], Amount: 1})
		}
		want := map[bool]int64{false: 47, true: 60}[keepNames]
		if each := s.Stats().Bytes / 1_000_000; each < want-4 || each > want+4 {
			t.Errorf("names %t: %d bytes per counter, not %d", keepNames, each, want)
		}
	}
}
