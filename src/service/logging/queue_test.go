package logging

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
)

// closed closes w, and reports whether all lines were written.
func closed(w *queue, deadline time.Time) bool {
	w.close(deadline)
	return w.Stats().Waiting == 0
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// reader is the other end of a log. It takes a line for each value in ready, and
// fails as often as fail says.
type reader struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	fail  int           // guarded by mu
	ready chan struct{} // nil: it takes everything
}

func (r *reader) Write(p []byte) (int, error) {
	if r.ready != nil {
		<-r.ready
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail > 0 {
		r.fail--
		n := len(p) / 2
		r.buf.Write(p[:n])
		return n, errors.New("broken pipe")
	}
	return r.buf.Write(p)
}

func (r *reader) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.buf.String()
}

// A reader that does not read holds up no writer, and costs bounded memory. What is
// lost is counted, and said once the queue is empty.
func TestStalledReader(t *testing.T) {
	steps := []struct {
		what    string
		room    queueLimit // of ordinary lines; zero values are the default
		reserve queueLimit // of important lines, beyond it
		write   []string   // "!": important
		want    string
		dropped uint64
	}{
		{"all fit", queueLimit{}, queueLimit{}, []string{"a", "b", "c"}, "a b c", 0},
		{"bytes are used up", queueLimit{bytes: 4}, queueLimit{bytes: 2}, []string{"a", "b", "c", "d"}, "a b dropped:2", 2},
		{"lines are used up", queueLimit{lines: 3}, queueLimit{}, []string{"a", "b", "c", "d"}, "a b c dropped:1", 1},
		{
			"the reserve is for important lines",
			queueLimit{bytes: 4},
			queueLimit{bytes: 2},
			[]string{"a", "b", "c", "!d", "e"},
			"a b d dropped:2", 2,
		},
		{
			"the reserve ends, too",
			queueLimit{lines: 1},
			queueLimit{lines: 2},
			[]string{"a", "!b", "!c", "!d"},
			"a b c dropped:1", 1,
		},
		{"important lines keep their place", queueLimit{}, queueLimit{}, []string{"a", "!b", "c"}, "a b c", 0},
	}
	for _, step := range steps {
		t.Run(step.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &reader{ready: make(chan struct{})}
				w := newQueue(r)
				w.ordinaryLimit = queueLimit{
					cmp.Or(step.room.bytes, w.ordinaryLimit.bytes),
					cmp.Or(step.room.lines, w.ordinaryLimit.lines),
				}
				w.importantLimit = queueLimit{
					w.ordinaryLimit.bytes + step.reserve.bytes,
					w.ordinaryLimit.lines + step.reserve.lines,
				}
				w.onDrained(func(n uint64) { fmt.Fprintf(w.important(), "dropped:%d\n", n) })
				go w.run()
				for _, line := range step.write {
					if text, ok := strings.CutPrefix(line, "!"); ok {
						fmt.Fprintln(w.important(), text)
					} else {
						fmt.Fprintln(w, line)
					}
					synctest.Wait() // nothing is read meanwhile
				}
				if got := w.Stats().Dropped; got != step.dropped {
					t.Errorf("%d lines dropped, want %d", got, step.dropped)
				}
				close(r.ready)
				synctest.Wait()
				if got := strings.Join(strings.Fields(r.text()), " "); got != step.want {
					t.Errorf("written %q, want %q", got, step.want)
				}
				if !closed(w, time.Now().Add(time.Second)) {
					t.Error("Close did not write everything")
				}
				if st := w.Stats(); st.Waiting != 0 {
					t.Errorf("%d bytes wait in an empty queue", st.Waiting)
				}
			})
		})
	}
}

// A write that fails is tried again every second, from where it stopped, and
// ends nothing.
func TestFailedWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := &reader{fail: 2}
		w := newQueue(r)
		go w.run()
		fmt.Fprintln(w, "the first line")
		fmt.Fprintln(w, "the second line")
		synctest.Wait()
		if got := r.text(); got != "the fir" || w.Stats().Failed != 1 {
			t.Errorf("after one failure: %q, %d failed", got, w.Stats().Failed)
		}
		for w.Stats().Waiting > 0 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("written after %v, want 2s", took)
		}
		if got := r.text(); got != "the first line\nthe second line\n" {
			t.Errorf("written %q", got)
		}
		w.close(time.Now())
	})
}

// Close waits for a reader that reads, not for one that is stuck or gone.
func TestClose(t *testing.T) {
	tests := []struct {
		what  string
		fails int
		waits bool          // the reader takes no line unless it is told to
		every time.Duration // it is; 0: never
		done  bool
		took  time.Duration
	}{
		{what: "reads at once", done: true},
		{what: "slow", waits: true, every: 100 * time.Millisecond, done: true, took: 300 * time.Millisecond},
		{what: "stuck", waits: true, took: time.Second},
		{what: "gone", fails: 1 << 30},
	}
	for _, test := range tests {
		t.Run(test.what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &reader{fail: test.fails}
				if test.waits {
					r.ready = make(chan struct{})
				}
				w := newQueue(r)
				w.retryPause = time.Hour
				go w.run()
				for _, line := range []string{"one", "two", "last words"} {
					fmt.Fprintln(w, line)
				}
				if test.every > 0 {
					go func() {
						for range 3 {
							time.Sleep(test.every)
							r.ready <- struct{}{}
						}
					}()
				}
				start := time.Now()
				if done := closed(w, start.Add(time.Second)); done != test.done || time.Since(start) != test.took {
					t.Errorf("%v after %v, want %v after %v", done, time.Since(start), test.done, test.took)
				}
				if got := r.text(); test.done != strings.Contains(got, "last words\n") {
					t.Errorf("written %q", got)
				}
				if test.waits && test.every == 0 {
					close(r.ready) // the goroutine that was left behind ends
				}
			})
		})
	}
}

// Many write at once: each line arrives whole and those of one goroutine in order.
func TestConcurrentWriters(t *testing.T) {
	r := new(reader)
	w := newQueue(r)
	go w.run()
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 100 {
				fmt.Fprintf(w, "%d %02d\n", g, i)
			}
		})
	}
	all.Wait()
	if !closed(w, time.Now().Add(20*time.Second)) {
		t.Fatal("Close did not write everything")
	}
	lines := strings.Split(strings.TrimSpace(r.text()), "\n")
	if len(lines) != 800 {
		t.Fatalf("%d lines, want 800", len(lines))
	}
	slices.SortStableFunc(lines, func(a, b string) int { return int(a[0]) - int(b[0]) })
	if !slices.IsSorted(lines) {
		t.Error("the lines of one goroutine are out of order")
	}
}

func TestCut(t *testing.T) {
	tests := []struct {
		text string
		size int
		want string
	}{
		{"short", 5, "short"},
		{"", 0, ""},
		{strings.Repeat("a", 100), 45, strings.Repeat("a", 10) + "… (90 bytes cut)"},
		{strings.Repeat("ä", 50), 46, strings.Repeat("ä", 5) + "… (90 bytes cut)"},
		{"longer than that", 4, "… (16 bytes cut)"},
	}
	for _, test := range tests {
		if got := cutText(test.text, test.size); got != test.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", test.text, test.size, got, test.want)
		}
	}
	r := new(reader)
	w := newQueue(r)
	go w.run()
	fmt.Fprintln(w, strings.Repeat("€", 1<<20))
	w.close(time.Now().Add(20 * time.Second))
	got := r.text()
	if len(got) > maxLineBytes || !utf8.ValidString(got) || !strings.HasSuffix(got, " bytes cut)\n") {
		t.Errorf("a line of 3 MiB became %d bytes that end in %q", len(got), got[max(0, len(got)-40):])
	}
}

func BenchmarkWrite(b *testing.B) {
	w := newQueue(new(discard))
	go w.run()
	line := []byte(strings.Repeat("x", 200) + "\n")
	b.ReportAllocs()
	for b.Loop() {
		_, _ = w.Write(line)
	}
	w.close(time.Now().Add(time.Second))
}

type discard struct{}

func (*discard) Write(p []byte) (int, error) { return len(p), nil }
