package filerules

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"

	"ratelimit/src/rules"
)

// Config says what a Watcher watches.
type Config struct {
	// Root, Subdirectory and AppDirectory joined are the directory of the
	// rules. Each part may be empty, may be a link, and may be missing for
	// now; all empty is the current directory.
	Root, Subdirectory, AppDirectory string
	// File says that the path is that of one file, which alone is read, whatever
	// its name.
	File bool
	// IgnoreDotFiles passes over files and directories whose names begin with
	// a dot. Those that begin with two dots are always passed over.
	IgnoreDotFiles bool
	// Options are what the rules are compiled with.
	Options rules.Options
	// Debounce is how long nothing must happen, after something did, before
	// the directory is read: whoever writes ten files should be done. If it
	// never gets quiet, the directory is read after 10 times as long.
	// Defaults to 100ms.
	Debounce time.Duration
	// Poll is how often the directory is read without any event, for file
	// systems that have none. Defaults to 30s; negative is never.
	Poll time.Duration
	// OnLoad is called in Run's goroutine after each load, good or refused.
	OnLoad func(Load)
	// OnWarn, if not nil, is called in Run's goroutine when changes may go
	// without an event from now on, and are found at the next Poll. It is not
	// called again for the same reason until events have worked meanwhile.
	OnWarn func(error)
}

// Dir is the directory of the rules.
func (c Config) Dir() string {
	return filepath.Clean(filepath.Join(c.Root, c.Subdirectory, c.AppDirectory))
}

// Load is the outcome of reading and compiling the directory.
type Load struct {
	// Set is nil when the load is refused.
	Set *rules.Set
	// Warnings are what is legal but odd.
	Warnings rules.Problems
	// Err is nil or [rules.Problems]: all that is wrong with the directory
	// and with its files.
	Err error
	// Files is how many rule files were read.
	Files int
	// Hash is 16 hex digits that tell the names and contents of the files
	// from other ones: servers with the same directory, files and Options
	// have the same rules.
	Hash string
	// At is when the directory was read.
	At time.Time
}

// Watcher loads a directory of rules whenever it changes.
type Watcher struct {
	cfg    Config
	reload chan struct{}
	limits limits
	open   func() (*fsnotify.Watcher, error)
	most   int // directories watched

	// What is below belongs to Run.
	events *events           // of the last scan
	warned string            // what OnWarn was last told, while it holds
	last   [sha256.Size]byte // tells what was last loaded
	force  bool              // the next contents are loaded even if they are the last ones
	latest time.Time         // a burst of events is answered by then; zero: there is none
}

// burst is how many times Debounce a directory that never gets quiet waits.
const burst = 10

// New makes a Watcher, which does nothing before Run.
func New(cfg Config) *Watcher {
	if cfg.Debounce <= 0 {
		cfg.Debounce = 100 * time.Millisecond
	}
	if cfg.Poll == 0 {
		cfg.Poll = 30 * time.Second
	}
	return &Watcher{
		cfg:    cfg,
		reload: make(chan struct{}, 1),
		limits: defaultLimits,
		open:   fsnotify.NewWatcher,
		most:   maxWatched,
	}
}

// Reload has Run load the directory now, even if nothing changed. It never
// blocks. Calls that come before Run gets to it are one.
func (w *Watcher) Reload() {
	select {
	case w.reload <- struct{}{}:
	default:
	}
}

// Run loads the directory at once, and again whenever its contents change. It
// returns nil when ctx ends, and is called once.
func (w *Watcher) Run(ctx context.Context) error {
	defer func() { w.events.close() }()
	select {
	case <-w.reload: // the first load will do
	default:
	}
	w.force = true
	for ctx.Err() == nil {
		// The watches are in place before the reading, name by name: what
		// changes later is told, what changed before is read.
		w.events.close()
		w.events = newEvents(w.open, w.most)
		s := w.scan(ctx)
		if ctx.Err() != nil { // s is not whole
			break
		}
		w.warn()
		w.settle(s)
		w.wait(ctx)
	}
	return nil
}

func (w *Watcher) scan(ctx context.Context) *scan {
	s := &scan{
		ctx:            ctx,
		ignoreDotFiles: w.cfg.IgnoreDotFiles,
		fileToo:        w.cfg.File,
		elsewhere:      "set RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY to the directory of the rules",
		limits:         w.limits,
		need:           w.events.need,
	}
	if w.cfg.File {
		s.onlyFile, s.elsewhere = true, "name another file"
	}
	s.run(w.cfg.Dir())
	return s
}

// warn says when changes may go untold, once.
func (w *Watcher) warn() {
	err := w.events.trouble
	if err == nil {
		w.warned = ""
		return
	}
	if w.cfg.OnWarn == nil || w.warned == err.Error() {
		return
	}
	w.warned = err.Error()
	found := "are found by a reload only"
	if w.cfg.Poll > 0 {
		found = fmt.Sprintf("are found every %v", w.cfg.Poll)
	}
	w.cfg.OnWarn(fmt.Errorf("filerules: %s: changes %s: %w", w.cfg.Dir(), found, err))
}

// settle loads what s read, if it is new. What changed during the reading may
// be half old and half new; it is left to the next scan, within limits.
func (w *Watcher) settle(s *scan) {
	now := time.Now()
	torn := w.events.take()
	if !torn || !w.latest.IsZero() && !now.Before(w.latest) {
		w.latest = time.Time{}
		w.load(s, now)
	}
	if torn && w.latest.IsZero() {
		w.latest = now.Add(burst * w.cfg.Debounce)
	}
}

// wait returns when the directory is to be read.
func (w *Watcher) wait(ctx context.Context) {
	quiet := time.NewTimer(w.cfg.Debounce)
	defer quiet.Stop()
	if w.latest.IsZero() {
		quiet.Stop()
	}
	var poll <-chan time.Time
	if w.cfg.Poll > 0 {
		t := time.NewTimer(w.cfg.Poll)
		defer t.Stop()
		poll = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.reload:
			w.force = true
			return
		case <-quiet.C:
			return
		case <-poll:
			if w.latest.IsZero() { // else quiet comes soon
				return
			}
		case <-w.events.happened:
			now := time.Now()
			if w.latest.IsZero() {
				w.latest = now.Add(burst * w.cfg.Debounce)
			}
			quiet.Reset(min(w.cfg.Debounce, w.latest.Sub(now)))
		}
	}
}

// load compiles what s read, unless that is what was last loaded.
func (w *Watcher) load(s *scan, at time.Time) {
	sum := sha256.New()
	for _, f := range s.files {
		part(sum, []byte(f.Name))
		part(sum, f.Data)
	}
	l := Load{Files: len(s.files), Hash: hex.EncodeToString(sum.Sum(nil)[:8]), At: at}
	for _, p := range s.problems { // what cannot be read is news as well
		part(sum, []byte(p.String()))
	}
	state := [sha256.Size]byte(sum.Sum(nil))
	if state == w.last && !w.force {
		return
	}
	w.last, w.force = state, false

	set, warnings, err := rules.Load(s.files, w.cfg.Options)
	var wrong rules.Problems
	switch errors.As(err, &wrong); {
	case len(s.problems) > 0:
		l.Err = append(s.problems, wrong...)
	case err != nil:
		l.Err = err
	default:
		l.Set, l.Warnings = set, append(s.warnings(), warnings...)
	}
	if w.cfg.OnLoad != nil {
		w.cfg.OnLoad(l)
	}
}

// part adds b to a hash such that it cannot run into the next part.
func part(h hash.Hash, b []byte) {
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
	h.Write(b)
}
