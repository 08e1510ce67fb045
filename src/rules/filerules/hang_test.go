//go:build unix

package filerules

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/rules/reload"
	"ratelimit/testbed/harness"
)

// hanging makes reads of one file never return, until release.
type hanging struct {
	file     os.FileInfo
	released chan struct{}
}

// hang makes reads of the file that is at path now hang.
func hang(t *testing.T, path string) *hanging {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return &hanging{info, make(chan struct{})}
}

// reader is a Watcher's.
func (h *hanging) reader(f *os.File) io.Reader {
	if info, err := f.Stat(); err != nil || !os.SameFile(info, h.file) {
		return f
	}
	return &blocked{f, h.released}
}

type blocked struct {
	io.Reader
	released chan struct{}
}

func (b *blocked) Read(p []byte) (int, error) {
	<-b.released
	return b.Reader.Read(p)
}

const (
	hangs = "was still being read after 10s; check its file system (NFS, FUSE), replace it, or raise " +
		"RUNTIME_READ_TIMEOUT"
	fullOfHangs = "refused:%: is not read: 4 earlier reads have not returned; check its file system (NFS, FUSE), or " +
		"start the service again"
	pollAndRead = 31 * time.Second // the Poll, and the reads of the step
)

type hangingStep struct {
	do      string
	reloads int
	release bool
	wait    time.Duration
	want    []string // loads since the last step
	hanging int
}

var hangingReads = []struct {
	name  string
	steps []hangingStep
}{
	{"replaced", []hangingStep{
		{wait: 11 * time.Second, want: []string{"refused:%/a.yaml: " + hangs}, hanging: 1},
		{wait: 100 * pollAndRead, hanging: 1},
		{do: "write b.yaml b", wait: pollAndRead, hanging: 1},
		{do: "put a.yaml c", wait: pollAndRead, want: []string{"b c z"}, hanging: 1},
		{do: "put a.yaml d", wait: pollAndRead, want: []string{"b d z"}, hanging: 1},
		{release: true, wait: 11 * time.Second},
		{do: "rm a.yaml", wait: pollAndRead, want: []string{"b z"}},
	}},
	{"answers again", []hangingStep{
		{wait: 11 * time.Second, want: []string{"refused:%/a.yaml: " + hangs}, hanging: 1},
		{release: true, wait: 11 * time.Second, want: []string{"a z"}},
	}},
	{"the directory is replaced", []hangingStep{
		{wait: 11 * time.Second, want: []string{"refused:%/a.yaml: " + hangs}, hanging: 1},
		{
			do: "mkdir ../other\nwrite ../other/a.yaml b\nmv ../rules ../old\nmv ../other ../rules", wait: pollAndRead,
			want: []string{"b"}, hanging: 1,
		},
		{release: true, wait: pollAndRead},
	}},
	{"reloads", []hangingStep{
		{wait: 11 * time.Second, want: []string{"refused:%/a.yaml: " + hangs}, hanging: 1},
		{reloads: 1, wait: 11 * time.Second, want: []string{"refused:%/a.yaml: " + hangs}, hanging: 2},
		{reloads: 2, wait: time.Second, want: slices.Repeat([]string{"refused:%/a.yaml: " + hangs}, 2), hanging: 4},
		{reloads: 5, wait: time.Second, want: slices.Repeat([]string{fullOfHangs}, 5), hanging: 4},
		{do: "put a.yaml b", wait: pollAndRead, hanging: 4},
		{release: true, wait: 11 * time.Second, want: []string{"b z"}},
	}},
}

// A place that hangs is reported once, and all other changes are found as before. Time is that
// of the bubble; files are real.
func TestHangingRead(t *testing.T) {
	for _, tt := range hangingReads {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(realDir(t), "rules")
			play(t, dir, "mkdir .\nwrite 0.yaml z\nwrite a.yaml a")
			synctest.Test(t, func(t *testing.T) {
				h := hang(t, filepath.Join(dir, "a.yaml"))
				loads := make(chan string, 100)
				w := New(Config{
					Config: reload.Config{OnLoad: func(l reload.Result) { loads <- outcome(l) }}, OnMissingEvents: func(error) {},
					Path: dir, Debounce: 100 * time.Millisecond, PollInterval: 30 * time.Second,
				})
				w.newEventWatcher, w.contentReader = noEvents, h.reader
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error)
				go func() { ended <- w.Run(ctx) }()
				for i, s := range tt.steps {
					synctest.Wait()
					play(t, dir, s.do)
					for range s.reloads {
						w.Reload()
						time.Sleep(10*time.Second + time.Millisecond)
					}
					if s.release {
						close(h.released)
					}
					time.Sleep(s.wait)
					synctest.Wait()
					var got []string
					for len(loads) > 0 {
						got = append(got, strings.ReplaceAll(<-loads, dir, "%"))
					}
					if !slices.Equal(got, s.want) {
						t.Errorf("step %d: loaded %q, want %q", i+1, got, s.want)
					}
					if got := w.HangingScans(); got != s.hanging {
						t.Errorf("step %d: %d hang, want %d", i+1, got, s.hanging)
					}
				}
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A change is told by an event although a read hangs, and Run ends although one
// does.
func TestHangingReadAndEvents(t *testing.T) {
	t.Parallel()
	dir := realDir(t)
	play(t, dir, "mkdir data/config/rules\nwrite data/config/rules/a.yaml a\nwrite data/config/rules/b.yaml b")
	h := hang(t, filepath.Join(dir, "data/config/rules/a.yaml"))
	defer close(h.released)
	r := run(t, dir, Config{ReadTimeout: 500 * time.Millisecond}, func(w *Watcher) { w.contentReader = h.reader })
	r.until(t, "refused:a.yaml: was still being read after 500ms")
	play(t, dir, "put data/config/rules/a.yaml c")
	r.until(t, "b c")
	play(t, dir, "put data/config/rules/b.yaml d")
	r.until(t, "c d")
	harness.Until(t, "one read hangs", func() bool { return r.HangingScans() == 1 })
	r.stop()
}
