package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var minute = &algorithm.Limit{Max: 3, Period: time.Minute, CountBlocked: true}

// newStore returns an empty store.
func newStore(tb testing.TB) *memory.Store {
	tb.Helper()
	return limitertest.Store(tb, memory.Config{MaxBytes: 1 << 20})
}

// count charges one unit to a counter, and returns its count.
func count(tb testing.TB, s *memory.Store, key string, at time.Time) uint64 {
	tb.Helper()
	b := backend.Batch{
		Now: at, Hits: []backend.Hit{{Key: []byte(key), Limit: minute, Amount: 1}},
		Verdicts: make([]backend.Verdict, 1),
	}
	if err := s.Take(tb.Context(), &b); err != nil {
		tb.Fatal(err)
	}
	return b.Verdicts[0].After
}

// open opens a file with a new store.
func open(tb testing.TB, path string) (*File, Start, error) {
	tb.Helper()
	f, start, err := Open(Config{Path: path, Store: newStore(tb)})
	if err == nil {
		tb.Cleanup(func() { _ = f.Close() }) // Some tests have closed it.
	}
	return f, start, err
}

// reopen closes f and opens its file with a new store.
func reopen(tb testing.TB, f *File) (*File, Start) {
	tb.Helper()
	if err := f.Close(); err != nil {
		tb.Fatal(err)
	}
	next, start, err := open(tb, f.Path)
	if err != nil {
		tb.Fatal(err)
	}
	return next, start
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "counters")
	f, start, err := open(t, path)
	if err != nil || start != (Start{}) || f.Stats() != (Stats{LastSuccess: f.Stats().LastSuccess}) ||
		f.Stats().LastSuccess.IsZero() {
		t.Fatalf("%+v, %v", start, err)
	}
	now := time.Now()
	for range 2 {
		count(t, f.Store, "a", now)
	}
	if err := f.Write(t.Context()); err != nil {
		t.Fatal(err)
	}
	count(t, f.Store, "a", now)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st := f.Stats(); st.Bytes != info.Size() || st.Counters != 1 || st.Duration <= 0 ||
		st.LastSuccess.Before(now) || info.Mode() != 0o600 {
		t.Errorf("%+v, %v", st, info.Mode())
	}
	f, start = reopen(t, f)
	if !start.Found || start.Counters != 1 || start.Refused != nil || f.Stats().Counters != 1 ||
		f.Stats().LastSuccess.IsZero() {
		t.Errorf("%+v, %+v", start, f.Stats())
	}
	if n := count(t, f.Store, "a", now); n != 3 {
		t.Errorf("%d, want the third hit", n)
	}
	if names, _ := filepath.Glob(path + "*"); fmt.Sprint(names) != fmt.Sprint([]string{path, path + ".lock"}) {
		t.Errorf("%v is left", names)
	}
}

// A file that is refused is kept under another name, as often as that happens.
func TestRefusedFilesAreKept(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "counters")
	for i := range 3 {
		testfiles.Write(t, path, fmt.Append(nil, "foreign ", i))
		f, start, err := open(t, path)
		if err != nil || start.Found || start.Refused == nil || !strings.HasPrefix(start.RefusedPath, path+".refused-2") {
			t.Fatalf("%+v, %v", start, err)
		}
		kept, err := os.ReadFile(start.RefusedPath)
		if err != nil || string(kept) != fmt.Sprint("foreign ", i) {
			t.Errorf("%q, %v", kept, err)
		}
		if err := errors.Join(f.Write(t.Context()), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, _, err := open(t, filepath.Join(dir, "used")); err != nil {
		t.Fatal(err)
	}
	readOnly := filepath.Join(dir, "read-only")
	if err := os.Mkdir(readOnly, 0o500); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"used":             fmt.Sprintf("process %d uses the file and holds the lock", os.Getpid()),
		"missing/counters": "create the directory",
		"read-only/file":   "let this process write to it",
		"directory":        "is no file",
	} {
		if path == "read-only/file" && os.Getuid() == 0 {
			continue // root may write to any directory
		}
		_, _, err := open(t, filepath.Join(dir, path))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
}

// A temporary file of a process that crashed is replaced.
func TestAfterACrash(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "counters")
	f, _, err := open(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Write(t.Context()); err != nil {
		t.Fatal(err)
	}
	testfiles.Write(t, path+".tmp", "half")
	f, start := reopen(t, f)
	if !start.Found {
		t.Errorf("%+v", start)
	}
	if err := f.Write(t.Context()); err != nil {
		t.Error(err)
	}
}

// A write that fails or is stopped leaves the file as it was.
func TestFailedWrites(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "counters")
	f, _, err := open(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Write(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := f.Stats()
	count(t, f.Store, "a", time.Now())
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := f.Write(stopped); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := os.MkdirAll(filepath.Join(path+".tmp", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := f.Write(t.Context()); err == nil {
		t.Error("no error, although the temporary file cannot be made")
	}
	before.Failures = 2
	if st := f.Stats(); st != before {
		t.Errorf("%+v, want %+v", st, before)
	}
	if err := os.RemoveAll(path + ".tmp"); err != nil {
		t.Fatal(err)
	}
	if f, start := reopen(t, f); !start.Found || f.Stats().Counters != 0 {
		t.Errorf("%+v: the file is not what it was before", start)
	}
}

// Run writes each interval, reports failures, and goes on.
func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters")
	synctest.Test(t, func(t *testing.T) {
		started, failures := time.Now(), 0
		f, _, err := Open(Config{
			Path: path, Interval: time.Minute, Store: newStore(t),
			OnFailure: func(error) { failures++ },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- f.Run(ctx) }()
		after := func(d time.Duration, want Stats) {
			t.Helper()
			time.Sleep(time.Until(started.Add(d)))
			synctest.Wait()
			got := f.Stats()
			got.Bytes, got.Duration = 0, 0
			if got != want {
				t.Errorf("after %v: %+v, want %+v", d, got, want)
			}
		}
		after(59*time.Second, Stats{LastSuccess: started})
		after(60*time.Second, Stats{LastSuccess: started.Add(time.Minute)})
		if err := os.MkdirAll(filepath.Join(path+".tmp", "in the way"), 0o700); err != nil {
			t.Fatal(err)
		}
		after(121*time.Second, Stats{LastSuccess: started.Add(time.Minute), Failures: 1})
		if err := os.RemoveAll(path + ".tmp"); err != nil {
			t.Fatal(err)
		}
		after(181*time.Second, Stats{LastSuccess: started.Add(3 * time.Minute), Failures: 1})
		stop()
		if err := errors.Join(<-done, f.Close()); err != nil || failures != 1 {
			t.Errorf("%v, %d failures", err, failures)
		}
	})
}

// Without an interval Run only waits.
func TestRunWithoutInterval(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters")
	synctest.Test(t, func(t *testing.T) {
		f, _, err := Open(Config{Path: path, Store: newStore(t)})
		if err != nil {
			t.Fatal(err)
		}
		opened := f.Stats()
		ctx, stop := context.WithTimeout(t.Context(), 24*time.Hour)
		defer stop()
		if err := errors.Join(f.Run(ctx), f.Close()); err != nil || f.Stats() != opened {
			t.Errorf("%v, %+v", err, f.Stats())
		}
	})
}

// BenchmarkFile writes 10 million counters to a file, and reads them. It reports how much the memory of the process
// grew meanwhile.
//
//	go test ./src/backend/snapshot -run '^$' -bench File -benchtime 1x
func BenchmarkFile(b *testing.B) {
	const counters = 10_000_000
	newLarge := func() *memory.Store {
		s := limitertest.Store(b, memory.Config{MaxBytes: 1 << 30})
		return s
	}
	s, limit := newLarge(), &algorithm.Limit{Max: 100, Period: 24 * time.Hour}
	batch := backend.Batch{Hits: make([]backend.Hit, 100), Verdicts: make([]backend.Verdict, 100)}
	for k := 0; k < counters; k += len(batch.Hits) {
		for i := range batch.Hits {
			batch.Hits[i] = backend.Hit{
				Key: fmt.Append(batch.Hits[i].Key[:0], "rl_user_", k+i, "_"), Limit: limit,
				Amount: 1, GroupID: uint16(i),
			}
		}
		if err := s.Take(b.Context(), &batch); err != nil {
			b.Fatal(err)
		}
	}
	path := filepath.Join(b.TempDir(), "counters")
	f, _, err := Open(Config{Path: path, Store: s})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("write", func(b *testing.B) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for b.Loop() {
			if err := f.Write(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(f.Stats().Bytes)/counters, "bytes/counter")
		b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(b.N), "allocated-bytes")
	})
	if err := f.Close(); err != nil {
		b.Fatal(err)
	}
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			f, start, err := Open(Config{Path: path, Store: newLarge()})
			if err != nil || start.Counters != counters || f.Close() != nil {
				b.Fatalf("%+v, %v", start, err)
			}
		}
	})
}
