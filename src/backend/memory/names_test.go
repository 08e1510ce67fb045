package memory

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/testbed/backendtest"
)

// auditNames checks that each counter of shard i has its name, and returns the memory of the names.
func auditNames(tb testing.TB, i int, sh *shard) int64 {
	tb.Helper()
	l := sh.names
	if l == nil {
		return 0
	}
	starts, numEntries := make(map[nameRef]bool), 0
	for start := 0; start < len(l.entries); start += l.entrySize(refAt(start)) {
		starts[refAt(start)] = true
		numEntries++
	}
	if numEntries != int(l.numEntries) || len(l.refs) != len(sh.slots) {
		tb.Errorf("shard %d: %d names, %d are counted; %d references for %d slots", i, numEntries, l.numEntries, len(l.refs),
			len(sh.slots))
	}
	for _, ref := range l.bases {
		if ref != 0 && (!starts[ref] || l.entries[ref.start()] != 0) {
			tb.Errorf("shard %d: the base at %d is no whole entry", i, ref)
		}
	}
	for j, ref := range l.refs {
		if isTaken := sh.slots[j].tagFormRank != 0; isTaken != (ref != 0) || isTaken && !starts[ref] {
			tb.Errorf("shard %d: the name of slot %d is at %d", i, j, ref)
		}
	}
	return int64(cap(l.entries)) + int64(cap(l.refs))*nameRefBytes
}

// found returns the sorted names of the counters with a prefix. It drops them unless dryRun is set.
func found(tb testing.TB, s *Store, dryRun bool, prefixes ...string) (names []string) {
	tb.Helper()
	var list []backend.KeyPrefix
	for _, p := range prefixes {
		list = append(list, backend.KeyPrefix{Text: []byte(p)})
	}
	err := s.ResetPrefixes(tb.Context(), list, dryRun, func(found [][]byte) {
		for _, name := range found {
			names = append(names, string(name))
		}
	})
	if err != nil {
		tb.Fatal(err)
	}
	slices.Sort(names)
	return names
}

func TestSuiteWithNames(t *testing.T) {
	t.Parallel()
	backendtest.Suite{Brief: true}.Run(t,
		func(t *testing.T) backend.Backend { return openWith(t, Config{KeepNames: true}) })
}

// Counters are found and reset by the start of their keys, whatever their kind.
func TestResetPrefixes(t *testing.T) {
	t.Parallel()
	s := openWith(t, Config{KeepNames: true})
	for _, limit := range snapshotLimits {
		for k := range 100 {
			send(t, s, epoch, backend.Hit{Key: fmt.Appendf(nil, "user_%02d_", k), Limit: limit, Amount: 1})
		}
	}
	counters := len(snapshotLimits) - 2 // The two fixed windows of a minute are one counter, and so are the two gcra.
	all := found(t, s, true, "user_")
	if len(all) != 100*counters || all[0] != "user_00_ (10s sliding_window)" {
		t.Fatalf("%d names, the first is %q", len(all), all[0])
	}
	if again := found(t, s, true, "user_", "user_1"); !slices.Equal(again, all) {
		t.Errorf("%d names, then %d", len(all), len(again))
	}
	if names := found(t, s, false, "user_1", "user_42_", "other"); len(names) != 11*counters {
		t.Errorf("%q", names)
	}
	if left := found(t, s, true, "user_"); len(left) != 89*counters || len(found(t, s, true, "user_1")) != 0 {
		t.Errorf("%d are left", len(left))
	}
	for _, limit := range snapshotLimits {
		for k, isReset := range map[int]bool{42: true, 43: false} {
			v := send(t, s, epoch, backend.Hit{Key: fmt.Appendf(nil, "user_%02d_", k), Limit: limit, Op: algorithm.Look})
			if (v.Before == 0) != isReset {
				t.Errorf("%v of user %d: %d", limit.Kind, k, v.Before)
			}
		}
	}
}

func TestResetPrefixesRefuses(t *testing.T) {
	t.Parallel()
	prefixes := []backend.KeyPrefix{{Text: []byte("u")}}
	if err := open(t, 0).ResetPrefixes(t.Context(), prefixes, true, nil); !errors.Is(err, backend.ErrNoNames) {
		t.Errorf("without names: %v", err)
	}
	s := openWith(t, Config{KeepNames: true})
	long := strings.Repeat("k", maxNameBytes+1)
	send(t, s, epoch, backend.Hit{Key: []byte(long), Limit: snapshotLimits[0], Amount: 1})
	if names := found(t, s, true, long[1:]); len(names) != 1 {
		t.Errorf("%q", names)
	}
	prefixes[0].Text = []byte(long)
	if err := s.ResetPrefixes(t.Context(), prefixes, true, nil); err == nil ||
		!strings.Contains(err.Error(), "has 256 bytes") {
		t.Errorf("a long prefix: %v", err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	prefixes[0].Text = []byte("k")
	if err := s.ResetPrefixes(canceled, prefixes, true, func([][]byte) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// Names are in snapshots. A store without names can read them, and one with names those of a store without.
func TestNamesInSnapshots(t *testing.T) {
	t.Parallel()
	with, without := openWith(t, Config{KeepNames: true}), open(t, 0)
	for k := range uint64(1000) {
		limit := snapshotLimits[k%uint64(len(snapshotLimits))]
		hit(with, k, limit, epoch)
		hit(without, k, limit, epoch)
	}
	all := found(t, with, true, "\x00")
	if len(all) != 1000 {
		t.Fatalf("%d names", len(all))
	}
	snapshot := snapshotOf(t, with, epoch)
	again := openWith(t, Config{KeepNames: true})
	if _, err := again.ReadSnapshot(bytes.NewReader(snapshot), epoch); err != nil {
		t.Fatal(err)
	}
	if names := found(t, again, false, "\x00"); !slices.Equal(names, all) {
		t.Errorf("%d names, want %d", len(names), len(all))
	}
	if nameless, st := restored(t, 0, snapshot, epoch); st.Counters != 1000 || nameless.Bytes() >= with.Bytes() {
		t.Errorf("%+v", st)
	}
	unnamed, err := New(Config{KeepNames: true})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := unnamed.ReadSnapshot(bytes.NewReader(snapshotOf(t, without, epoch)), epoch); err != nil ||
		st.Counters != 1000 {
		t.Errorf("%+v, %v", st, err)
	}
	hit(unnamed, 5000, snapshotLimits[0], epoch)
	if names := found(t, unnamed, true, "\x00"); len(names) != 1 {
		t.Errorf("%q", names)
	}
}

// BenchmarkNewCounters creates counters without end, in a store that is full soon.
func BenchmarkNewCounters(b *testing.B) {
	for _, keepNames := range []bool{false, true} {
		b.Run(fmt.Sprintf("names=%t", keepNames), func(b *testing.B) {
			s := openWith(b, Config{MaxBytes: 16 << 20, KeepNames: keepNames})
			limit := &algorithm.Limit{Max: 100, Period: 24 * time.Hour}
			key := []byte("bench_user_________")
			batch := backend.Batch{
				Now: epoch, Hits: []backend.Hit{{Key: key, Limit: limit, Amount: 1}},
				Verdicts: make([]backend.Verdict, 1),
			}
			b.ReportAllocs()
			for n := uint64(0); b.Loop(); n++ {
				binary.BigEndian.PutUint64(key[11:], n)
				if err := s.Take(b.Context(), &batch); err != nil {
					b.Fatal(err)
				}
			}
			st := s.Stats()
			b.ReportMetric(float64(st.Bytes)/float64(st.Keys), "bytes/counter")
		})
	}
}
