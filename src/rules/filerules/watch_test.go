//go:build unix

package filerules

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/rules/reload"
	"ratelimit/testbed/harness"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"
)

// patience bounds the wait for something that must happen.
const patience = 20 * time.Second

// running is a Watcher that runs, and its callbacks' arguments.
type running struct {
	*Watcher
	loads chan reload.Result
	warns chan error
	scans atomic.Int64
	stop  func()
}

// run starts a Watcher of dir/data/config/rules; change may be nil.
func run(t *testing.T, dir string, cfg Config, change func(*Watcher)) *running {
	t.Helper()
	r := &running{loads: make(chan reload.Result, 1000), warns: make(chan error, 1000)}
	cfg.Path = filepath.Join(dir, "data/config/rules")
	cfg.ElsewhereAdvice = cmp.Or(cfg.ElsewhereAdvice, "set RUNTIME_ROOT")
	if cfg.Debounce == 0 {
		cfg.Debounce = 20 * time.Millisecond
	}
	cfg.OnLoad = func(l reload.Result) { r.loads <- l }
	cfg.OnMissingEvents = func(err error) { r.warns <- err }
	r.Watcher = New(cfg)
	if change != nil {
		change(r.Watcher)
	}
	open := r.newEventWatcher
	r.newEventWatcher = func() (*fsnotify.Watcher, error) { // is called once for each scan
		r.scans.Add(1)
		return open()
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	stopped := false
	r.stop = func() {
		t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Run returned %v", err)
			}
		case <-time.After(patience):
			t.Fatal("Run did not return after its context ended")
		}
	}
	t.Cleanup(r.stop)
	return r
}

// noEvents replaces fsnotify.NewWatcher where there are no events.
func noEvents() (*fsnotify.Watcher, error) { return nil, errors.New("none today") }

// next returns the next load.
func (r *running) next(t *testing.T) reload.Result {
	t.Helper()
	select {
	case l := <-r.loads:
		return l
	case <-time.After(patience):
		t.Fatal("nothing is loaded")
	}
	panic("unreachable")
}

// until waits for a load with that outcome.
func (r *running) until(t *testing.T, want string) reload.Result {
	t.Helper()
	last := "nothing"
	deadline := time.After(patience)
	for {
		select {
		case l := <-r.loads:
			last = outcome(l)
			domains, why, refused := strings.Cut(want, "refused:")
			if last == want || refused && strings.HasPrefix(last, domains+"refused:") && strings.Contains(last, why) {
				return l
			}
		case <-deadline:
			t.Fatalf("want %q, the last load was %q", want, last)
		}
	}
}

// rescanned calls touch until two more scans have started, so that one of them has ended.
func (r *running) rescanned(t *testing.T, touch func(i int)) {
	t.Helper()
	from := r.scans.Load()
	i := 0
	harness.Until(t, "the directory is read again", func() bool {
		if r.scans.Load() >= from+2 {
			return true
		}
		touch(i)
		i++
		return false
	})
}

// outcome returns the domains of a load, "a b", or "refused:" and the reason, or both.
func outcome(l reload.Result) string {
	switch {
	case l.Set == nil && l.Err == nil:
		return "nothing"
	case l.Set == nil:
		return "refused:" + l.Err.Error()
	case l.Err != nil:
		return outcome(reload.Result{Set: l.Set}) + ", " + outcome(reload.Result{Err: l.Err})
	}
	var domains []string
	for name := 'a'; name <= 'z'; name++ {
		if l.Set.Domain([]byte(string(name))) != nil {
			domains = append(domains, string(name))
		}
	}
	return strings.Join(domains, " ")
}

func TestLoadTellsWhatItRead(t *testing.T) {
	t.Parallel()
	dir := realDir(t)
	play(t, dir, "mkdir data/config/rules\nwrite data/config/rules/a.yaml a\nwrite data/config/rules/b.conf b")
	start := time.Now()
	r := run(t, dir, Config{}, nil)
	l := r.next(t)
	if l.PartCount != 1 || len(l.Hash) != 16 || l.ReadTime.Before(start) || l.ReadTime.After(time.Now()) {
		t.Errorf("%+v", l)
	}
	if want := "only *.yaml, *.yml, *.ini and *.json files"; !strings.Contains(l.Warnings.Error(), want) {
		t.Errorf("warnings: %v, want %s", l.Warnings, want)
	}
	play(t, dir, "put data/config/rules/a.yaml c")
	other := r.until(t, "c")
	if other.Hash == l.Hash {
		t.Error("other contents have the same hash")
	}
	play(t, dir, "put data/config/rules/a.yaml a")
	if again := r.until(t, "a"); again.Hash != l.Hash {
		t.Error("the same contents have another hash")
	}
	play(t, dir, "mkdir data/config/rules/moved\nmv data/config/rules/a.yaml data/config/rules/moved/z.yaml")
	if moved := r.until(t, "a"); moved.Hash != l.Hash {
		t.Error("the same contents in another file have another hash")
	}
	if want := filepath.Join(dir, "data/config/rules"); r.cfg.Path != want {
		t.Errorf("Path is %s, want %s", r.cfg.Path, want)
	}
}

func TestUnchangedContentsAreNotLoaded(t *testing.T) {
	dir := realDir(t)
	play(t, dir, "mkdir data/config/rules\nwrite data/config/rules/a.yaml a")
	r := run(t, dir, Config{}, nil)
	r.until(t, "a")
	r.rescanned(t, func(int) {
		play(t, dir, `put data/config/rules/a.yaml a
			text data/config/rules/README hello
			write data/config/rules/a.yaml~ b
			write data/config/rules/.#a.yaml b
			mkdir data/config/rules/..2026
			write data/config/rules/..2026/a.yaml b
			chmod data/config/rules/a.yaml 600`)
	})
	r.stop()
	goleak.VerifyNone(t)
	if len(r.loads) > 0 {
		t.Errorf("loaded again: %s", outcome(<-r.loads))
	}
}

// Changes outside the directory of the rules cause no scan: the root may be in /tmp or in a
// busy home directory.
func TestWhatMatters(t *testing.T) {
	t.Parallel()
	dir := realDir(t)
	play(t, dir, `mkdir v1/config/rules
		link data v1
		configmap v1/config/rules 1 a.yaml=a
		mkdir v1/config/rules/sub
		mkdir v1/config/rules/..far
		write v1/config/rules/..far/x b
		link v1/config/rules/b.yaml ..far/x`)
	w := New(Config{Path: filepath.Join(dir, "data/config/rules"), ReadSiblings: true})
	defer w.closeEvents()
	if s := w.scanDir(t.Context()); len(s.files) != 2 || len(s.problems) > 0 {
		t.Fatalf("%d files, %v", len(s.files), s.problems)
	}
	for name, want := range map[string]bool{
		"data":                                    true,
		"datum":                                   false,
		"v1/config/rules/..far":                   true,
		"v1/config/rules/..far/x":                 true,
		"v1/config/rules/..far/y":                 false,
		"v1":                                      true,
		"v1/config":                               true,
		"v1/configs":                              false,
		"v1/config.yaml":                          false,
		"v1/config/rules.yaml":                    true,
		"v1/config/rules.yaml~":                   false,
		"v1/config/rule":                          false,
		"v1/config/rules":                         true,
		"v1/config/rules/a.yaml":                  true,
		"v1/config/rules/new":                     true, // may be a directory
		"v1/config/rules/a.yaml~":                 false,
		"v1/config/rules/.#a.yaml":                false,
		"v1/config/rules/sub/new.yaml":            true,
		"v1/config/rules/..data":                  true,
		"v1/config/rules/..data_tmp":              false,
		"v1/config/rules/..2026_10_01_1":          true,
		"v1/config/rules/..2026_10_01_1/a.yaml":   true,
		"v1/config/rules/..2026_10_01_1/new.yaml": false,
		"v1/config/rules/..2026_10_01_2":          false,
	} {
		if got := w.events.isReadByScan(filepath.Join(dir, name)); got != want {
			t.Errorf("%s matters: %t, want %t", name, got, want)
		}
	}
}

func TestBurst(t *testing.T) {
	t.Parallel()
	dir := realDir(t)
	play(t, dir, "mkdir data/config/rules")
	r := run(t, dir, Config{Debounce: 300 * time.Millisecond}, nil)
	r.until(t, "")
	for i := range 200 {
		play(t, dir, fmt.Sprintf("write data/config/rules/%d.yaml %d", i, i))
	}
	for n := 1; ; n++ {
		if n > 5 {
			t.Fatal("200 writes are more than 5 loads")
		}
		if l := r.next(t); l.PartCount == 200 {
			break
		}
	}
}

// A directory that changes all the time is read all the same.
func TestNeverQuiet(t *testing.T) {
	t.Parallel()
	dir := realDir(t)
	play(t, dir, "mkdir data/config/rules\nwrite data/config/rules/a.yaml a")
	r := run(t, dir, Config{}, nil)
	r.until(t, "a")
	busy, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for busy.Err() == nil {
			_ = os.WriteFile(filepath.Join(dir, "data/config/rules/log"), []byte("x"), 0o600)
		}
	}()
	for _, domain := range []string{"b", "c", "d"} {
		play(t, dir, "put data/config/rules/a.yaml "+domain)
		r.until(t, domain)
	}
	stop()
	<-ended
}

func TestReload(t *testing.T) {
	dir := realDir(t)
	play(t, dir, "mkdir data/config/rules\nwrite data/config/rules/a.yaml a")
	r := run(t, dir, Config{}, (*Watcher).Reload) // before Run: the first load answers it
	first := r.next(t)
	for range 3 {
		r.Reload()
		if again := r.next(t); again.Hash != first.Hash || outcome(again) != "a" {
			t.Errorf("loaded %s", outcome(again))
		}
	}
	for range 1000 {
		r.Reload()
	}
	r.next(t)
	r.stop()
	goleak.VerifyNone(t)
	if len(r.loads) > 999 {
		t.Error("calls of Reload are not joined")
	}
	r.Reload() // after Run: nothing
	r.Reload()
}

func TestWithoutEvents(t *testing.T) {
	t.Parallel()
	dir := realDir(t)
	play(t, dir, "mkdir data/config/rules/b\nwrite data/config/rules/a.yaml a")
	var broken atomic.Bool
	broken.Store(true)
	r := run(t, dir, Config{PollInterval: 10 * time.Millisecond}, func(w *Watcher) {
		open := w.newEventWatcher
		w.newEventWatcher = func() (*fsnotify.Watcher, error) {
			if broken.Load() {
				return noEvents()
			}
			return open()
		}
	})
	want := "filerules: " + dir + "/data/config/rules: changes are found every 10ms: no file system events: none today"
	for _, domain := range []string{"b", "c"} { // told once a time
		warned := func() {
			t.Helper()
			select {
			case err := <-r.warns:
				if err.Error() != want {
					t.Errorf("warned of %v, want %s", err, want)
				}
			case <-time.After(patience):
				t.Fatal("there is no warning")
			}
		}
		warned()
		play(t, dir, "put data/config/rules/a.yaml "+domain)
		r.until(t, domain)
		r.rescanned(t, func(int) {})
		if len(r.warns) > 0 {
			t.Errorf("warned again: %v", <-r.warns)
		}
		broken.Store(false)
		r.rescanned(t, func(int) {})
		broken.Store(true)
	}
}

func TestTooManyDirectories(t *testing.T) {
	t.Parallel()
	dir := realDir(t)
	play(t, dir, "mkdir data/config/rules/b/c/d\nwrite data/config/rules/b/c/d/a.yaml a")
	most := strings.Count(dir, "/") + 4 // those above, and up to rules
	r := run(t, dir, Config{PollInterval: 10 * time.Millisecond}, func(w *Watcher) { w.maxWatchedDirs = most })
	r.until(t, "a")
	want := fmt.Sprintf("no file system events from some directories: there are more than %d", most)
	select {
	case err := <-r.warns:
		if !strings.HasSuffix(err.Error(), want) {
			t.Errorf("warned of %v, want %s", err, want)
		}
	case <-time.After(patience):
		t.Fatal("there is no warning")
	}
	play(t, dir, "write data/config/rules/b/c/d/a.yaml b")
	r.until(t, "b")
}

// When the context ends during a scan, Run returns and calls no callback.
func TestEndWhileReading(t *testing.T) {
	dir := realDir(t)
	play(t, dir, "mkdir data/config/rules\nwrite data/config/rules/a.yaml a")
	ctx, cancel := context.WithCancel(context.Background())
	w := New(Config{
		Path:            filepath.Join(dir, "data/config/rules"),
		Config:          reload.Config{OnLoad: func(l reload.Result) { t.Errorf("loaded %s", outcome(l)) }},
		OnMissingEvents: func(err error) { t.Error(err) },
	})
	open := w.newEventWatcher
	w.newEventWatcher = func() (*fsnotify.Watcher, error) {
		cancel()
		return open()
	}
	if err := w.Run(ctx); err != nil {
		t.Error(err)
	}
	goleak.VerifyNone(t)
}
