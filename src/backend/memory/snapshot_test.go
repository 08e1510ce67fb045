package memory

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// snapshotOf returns a snapshot of s at an instant.
func snapshotOf(tb testing.TB, s *Store, at time.Time) []byte {
	tb.Helper()
	var b bytes.Buffer
	st, err := s.WriteSnapshot(&b, at)
	if err != nil || !st.SavedAt.Equal(at) {
		tb.Fatalf("%+v, %v", st, err)
	}
	return b.Bytes()
}

// restored returns a new store with the counters of a snapshot.
func restored(tb testing.TB, maxBytes int64, snapshot []byte, at time.Time) (*Store, SnapshotStats) {
	tb.Helper()
	s := open(tb, maxBytes)
	st, err := s.ReadSnapshot(bytes.NewReader(snapshot), at)
	if err != nil {
		tb.Fatal(err)
	}
	return s, st
}

// snapshotLimits are limits of all kinds, with states in slots and in overflows.
var snapshotLimits = []*algorithm.Limit{
	{Kind: algorithm.FixedWindow, Max: 20, Period: time.Minute, CountBlocked: true},
	{Kind: algorithm.FirstHitWindow, Max: 20, Period: time.Minute},
	{Kind: algorithm.SlidingWindow, Max: 20, Period: time.Minute},
	{Kind: algorithm.SlidingWindow, Max: 20, Period: 10 * time.Second, MinInterval: time.Second, CountBlocked: true},
	{Kind: algorithm.SlidingWindowCounter, Max: 20, Period: time.Minute},
	{Kind: algorithm.SlidingWindowCounter, Max: 1 << 40, Period: 24 * time.Hour},
	{Kind: algorithm.GCRA, Max: 20, Burst: 9, Period: time.Minute},
	{Kind: algorithm.GCRA, Max: 20, Burst: 9, Period: time.Minute, MinInterval: 2 * time.Second},
	{Kind: algorithm.FixedWindow, Max: 20, Period: time.Minute, Hold: 20 * time.Second},
	{Kind: algorithm.SlidingWindow, Max: 20, Period: time.Minute, Hold: 20 * time.Second, ReleaseUnsettled: true},
	{Kind: algorithm.GCRA, Max: 20, Burst: 9, Period: time.Minute, Hold: 10 * time.Second},
	{Kind: algorithm.Concurrency, Max: 20, Period: 30 * time.Second, Hold: 30 * time.Second},
	// A fixed window that shares the counters of the first one, whose limit is lower.
	{Kind: algorithm.FixedWindow, Max: 40, Period: time.Minute, CountBlocked: true},
	{Kind: algorithm.FixedWindow, Max: algorithm.MaxCapacity, Period: 24 * time.Hour, CountBlocked: true},
	{Kind: algorithm.FirstHitWindow, Max: 1e11, Period: 24 * time.Hour},
	{Kind: algorithm.GCRA, Max: 1e11, Burst: 1e11 - 1, Period: 24 * time.Hour, Hold: 10 * time.Second},
}

// randomBatch returns a batch of hits on some of 300 counters.
func randomBatch(rnd *rand.Rand, at time.Time) *backend.Batch {
	b := &backend.Batch{Now: at, Verdicts: make([]backend.Verdict, 1+rnd.IntN(5))}
	for range b.Verdicts {
		b.Hits = append(b.Hits, backend.Hit{
			Key: fmt.Append(nil, "user_", rnd.IntN(300)), Limit: snapshotLimits[rnd.IntN(len(snapshotLimits))],
			Op: algorithm.Op(rnd.IntN(4)), Amount: rnd.Uint64() >> (30 + rnd.IntN(34)), GroupID: uint16(rnd.IntN(2)),
			Atomic: rnd.IntN(3) == 0,
		})
		if h := &b.Hits[len(b.Hits)-1]; h.Limit.Hold > 0 {
			h.Amount, h.HoldID[0] = h.Amount%8, byte(rnd.IntN(20))
		}
	}
	return b
}

// Another expiry grace, and another number of shards, change no answer.
func TestSnapshotOfAnotherConfig(t *testing.T) {
	t.Parallel()
	from, err := New(Config{MaxBytes: 100 << 20, ExpiryGrace: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for k := range uint64(1000) {
		for range 3 {
			hit(from, k, snapshotLimits[k%uint64(len(snapshotLimits))], epoch)
		}
	}
	to, st := restored(t, 0, snapshotOf(t, from, epoch), epoch)
	if st != (SnapshotStats{SavedAt: epoch, Counters: 1000}) {
		t.Errorf("%+v", st)
	}
	for k := range uint64(1000) {
		limit := snapshotLimits[k%uint64(len(snapshotLimits))]
		if got, want := hit(to, k, limit, epoch.Add(time.Second)), hit(from, k, limit, epoch.Add(time.Second)); got != want {
			t.Fatalf("%v: %+v, want %+v", limit.Kind, got, want)
		}
	}
}

func TestExpiredCountersAreNotRestored(t *testing.T) {
	t.Parallel()
	s := open(t, 0)
	minute, day := snapshotLimits[0], snapshotLimits[5]
	for k := range uint64(100) {
		hit(s, k, minute, epoch)
		hit(s, k, day, epoch)
	}
	_, st := restored(t, 0, snapshotOf(t, s, epoch.Add(30*time.Second)), epoch.Add(time.Hour))
	if want := (SnapshotStats{SavedAt: epoch.Add(30 * time.Second), Counters: 100, Expired: 100}); st != want {
		t.Errorf("%+v, want %+v", st, want)
	}
	if st, err := s.WriteSnapshot(io.Discard, epoch.Add(time.Hour)); err != nil || st.Counters != 100 {
		t.Errorf("%+v, %v: expired counters were written", st, err)
	}
}

// A log that takes more than half of the memory is left out.
func TestSnapshotWithAGiantLog(t *testing.T) {
	t.Parallel()
	s := open(t, 64<<20)
	giant := &algorithm.Limit{Kind: algorithm.SlidingWindow, Max: algorithm.MaxLoggedHits, Period: time.Hour}
	for i := range 100_000 {
		hit(s, 1, giant, epoch.Add(time.Duration(i)*time.Microsecond))
	}
	at := epoch.Add(time.Second)
	snapshot := snapshotOf(t, s, at)
	if large, st := restored(t, 0, snapshot, at); st.Counters != 1 || hit(large, 1, giant, at).Before != 100_000 {
		t.Errorf("%+v", st)
	}
	if small, st := restored(t, 1<<20, snapshot, at); st.Counters != 0 || st.Evicted != 1 ||
		hit(small, 1, giant, at).Before != 0 {
		t.Errorf("%+v", st)
	}
}

// A snapshot that is changed or cut at any byte is refused, and leaves an empty store that works.
func TestSnapshotsThatAreRefused(t *testing.T) {
	t.Parallel()
	s := open(t, 0)
	for k := range uint64(500) {
		hit(s, k, snapshotLimits[k%uint64(len(snapshotLimits))], epoch)
	}
	good := snapshotOf(t, s, epoch)
	refused := func(name string, snapshot []byte, at time.Time, want string) {
		t.Helper()
		into := open(t, MinBytes)
		_, err := into.ReadSnapshot(bytes.NewReader(snapshot), at)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if st := into.Stats(); st != (Stats{}) {
			t.Errorf("%s: %+v", name, st)
		}
		if v := hit(into, 0, snapshotLimits[0], epoch); v.Before != 0 {
			t.Errorf("%s: %+v", name, v)
		}
	}
	for i := 0; i < len(good); i += 1 + i/50 {
		damaged := append([]byte(nil), good...)
		damaged[i] ^= 0x10
		refused(fmt.Sprintf("byte %d is changed", i), damaged, epoch, "it ")
		refused(fmt.Sprintf("cut at byte %d", i), good[:i], epoch, "it ")
	}
	refused("empty", nil, epoch, "no snapshot")
	refused("foreign", []byte(strings.Repeat("domain: rl\n", 100)), epoch, "no snapshot")
	refused("more behind it", append(append([]byte(nil), good...), 'x'), epoch, "goes on after its end")
	refused("of tomorrow", good, epoch.Add(-24*time.Hour), "it is of 2026-01-01T00:00:00Z, 24h0m0s ahead of the clock")
	newer := append([]byte(nil), good...)
	newer[len(magic)]++
	refused("newer", newer, epoch, "version 4 of the format, and this program reads versions 1 to 3")
}

// rawSnapshot returns a snapshot with that stream, whatever it is.
func rawSnapshot(stream []byte) []byte {
	var b bytes.Buffer
	w := newChunkWriter(&b)
	w.add(stream)
	_ = w.close() // A buffer returns no error.
	return b.Bytes()
}

// Whole chunks with a stream that no store writes are refused, too.
func TestMalformedStreams(t *testing.T) {
	t.Parallel()
	s := open(t, 0)
	hit(s, 1, snapshotLimits[0], epoch)
	in, err := newChunkReader(bytes.NewReader(snapshotOf(t, s, epoch)))
	if err != nil {
		t.Fatal(err)
	}
	good, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	counter, end := good[headerBytes:headerBytes+slotRecordBytes], good[headerBytes+slotRecordBytes:]
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	withLong := func(kind byte, length uint32, state ...byte) []byte {
		record := append([]byte{kind}, counter[1:]...)
		return append(binary.LittleEndian.AppendUint32(record, length), state...)
	}
	badForm := append([]byte(nil), counter...)
	badForm[9] |= wideForm
	for name, stream := range map[string][]byte{
		"nothing":              nil,
		"half a header":        good[:20],
		"no end":               good[:len(good)-len(end)],
		"half a counter":       good[:len(good)-len(end)-5],
		"more behind the end":  join(good, counter),
		"twice":                join(good[:headerBytes], counter, counter, end),
		"a wrong number":       join(good[:headerBytes], end),
		"an unknown record":    join(good[:headerBytes], []byte{'?'}, end),
		"a form in the slot":   join(good[:headerBytes], badForm, end),
		"an empty log":         join(good[:headerBytes], withLong(logRecord, 8, make([]byte, 8)...), end),
		"a long log":           join(good[:headerBytes], withLong(logRecord, 1<<31), end),
		"a log that is cut":    join(good[:headerBytes], withLong(logRecord, 1<<20, make([]byte, 100)...)),
		"too few holds":        join(good[:headerBytes], withLong(heldRecord, 100, make([]byte, 100)...), end),
		"too many holds":       join(good[:headerBytes], withLong(heldRecord, 1<<31), end),
		"holds that are cut":   join(good[:headerBytes], withLong(heldRecord, 1<<20, make([]byte, 100)...)),
		"a grace of a century": join(good[:8], bytes.Repeat([]byte{0x7f}, 8), good[16:]),
	} {
		into := open(t, 0)
		if _, err := into.ReadSnapshot(bytes.NewReader(rawSnapshot(stream)), epoch); !errors.Is(err, errMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := open(t, 0).ReadSnapshot(bytes.NewReader(rawSnapshot(good)), epoch); err != nil {
		t.Error(err)
	}
}

// Snapshots are written while many callers hit the store.
func TestSnapshotOfABusyStore(t *testing.T) {
	t.Parallel()
	s := open(t, 4<<20)
	var wg sync.WaitGroup
	for c := range uint64(4) {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(c, 1))
			for i := range 3000 {
				if err := s.Take(t.Context(), randomBatch(rnd, epoch.Add(time.Duration(i)*time.Millisecond))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 20 {
		restored(t, 0, snapshotOf(t, s, epoch), epoch)
	}
	wg.Wait()
}

// limitedWriter fails after some bytes.
type limitedWriter struct{ left int }

func (w *limitedWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errors.New("no space left on device")
	}
	return len(p), nil
}

func TestSnapshotToAFullDisk(t *testing.T) {
	t.Parallel()
	s := open(t, 0)
	for k := range uint64(10_000) {
		hit(s, k, snapshotLimits[0], epoch)
	}
	for _, room := range []int{0, 100, 100_000} {
		if _, err := s.WriteSnapshot(&limitedWriter{room}, epoch); err == nil {
			t.Errorf("room for %d bytes: no error", room)
		}
	}
}

// FuzzReadSnapshot reads anything, as a file and as the stream in a file. No input may panic, hang, or take much more
// memory than its size.
func FuzzReadSnapshot(f *testing.F) {
	s := open(f, MinBytes)
	for k := range uint64(2 * len(snapshotLimits)) {
		hit(s, k, snapshotLimits[k%uint64(len(snapshotLimits))], epoch)
	}
	good := snapshotOf(f, s, epoch)
	f.Add(good, false)
	in, err := newChunkReader(bytes.NewReader(good))
	if err != nil {
		f.Fatal(err)
	}
	stream, err := io.ReadAll(in)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(stream, true)
	f.Fuzz(func(t *testing.T, data []byte, isStream bool) {
		if isStream {
			data = rawSnapshot(data)
		}
		into := open(t, MinBytes)
		st, err := into.ReadSnapshot(bytes.NewReader(data), epoch)
		n := into.Stats()
		if err != nil && n != (Stats{}) || n.Bytes > MinBytes ||
			st.Counters+st.Expired+st.Evicted > int64(len(data)/slotBytes) {
			t.Errorf("%+v, %v, %+v", st, err, n)
		}
		if cap(snapshotOf(t, into, epoch)) > 4*len(data)+maxChunkBytes {
			t.Error("a snapshot that was read and written is larger")
		}
	})
}

// A chunk is checked with all chunks before it.
func TestChunksThatAreMissing(t *testing.T) {
	t.Parallel()
	s := open(t, 0)
	for k := range uint64(10_000) {
		hit(s, k, snapshotLimits[5], epoch)
	}
	good := snapshotOf(t, s, epoch)
	missing := append(append([]byte(nil), good[:snapshotStartBytes+maxChunkBytes]...),
		good[snapshotStartBytes+2*maxChunkBytes:]...)
	if _, err := open(t, 0).ReadSnapshot(bytes.NewReader(missing), epoch); err == nil ||
		!strings.Contains(err.Error(), "checksum") {
		t.Error(err)
	}
	if crc32.Checksum([]byte("123456789"), castagnoli) != 0xe3069283 {
		t.Error("the checksum is not CRC-32C")
	}
}

// BenchmarkSnapshot writes and reads the counters of 1 million callers. The memory of a read is that of the store.
func BenchmarkSnapshot(b *testing.B) {
	const counters = 1_000_000
	s := open(b, 1<<30)
	limit := &algorithm.Limit{Kind: algorithm.FixedWindow, Max: 100, Period: 24 * time.Hour}
	for k := range uint64(counters) {
		hit(s, k, limit, epoch)
	}
	snapshot := snapshotOf(b, s, epoch)
	b.Run("write", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.WriteSnapshot(io.Discard, epoch); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(snapshot))/counters, "bytes/counter")
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			into, err := New(Config{MaxBytes: 1 << 30})
			if err != nil {
				b.Fatal(err)
			}
			if _, err := into.ReadSnapshot(bytes.NewReader(snapshot), epoch); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A snapshot of version 1, which another build wrote for 32 callers with 3 hits each, is read with all names. Its ids
// have one more bit.
func TestSnapshotOfVersion1(t *testing.T) {
	t.Parallel()
	encoded, err := os.ReadFile("testdata/snapshot-v1.base64")
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := io.ReadAll(base64.NewDecoder(base64.StdEncoding, bytes.NewReader(encoded)))
	if err != nil {
		t.Fatal(err)
	}
	s := openWith(t, Config{KeepNames: true})
	if _, err := s.ReadSnapshot(bytes.NewReader(snapshot), epoch); err != nil {
		t.Fatal(err)
	}
	for k := range 32 {
		h := backend.Hit{Key: fmt.Append(nil, "user_", k), Limit: snapshotLimits[k%8], Op: algorithm.Look}
		want := uint64(3)
		if h.Limit.MinInterval > 0 && !h.Limit.CountBlocked {
			want = 1 // The second hit came too soon.
		}
		if v := send(t, s, epoch, h); v.Before != want {
			t.Errorf("%s, %v: %d, want %d", h.Key, h.Limit.Kind, v.Before, want)
		}
	}
	if names := found(t, s, true, "user_"); len(names) != 32 || strings.Contains(strings.Join(names, ""), "holds") {
		t.Errorf("%q", names)
	}
}
