package filerules

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"

	"ratelimit/src/rules"
	"ratelimit/src/rules/loading"
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
	// AllowFile says that the path may be that of one file, too.
	AllowFile bool
	// Elsewhere says how to name another directory, in the message about one that
	// is missing. Defaults to the three RUNTIME_ variables.
	Elsewhere string
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
	// ReadTimeout is how long one reading of the directory may take. One that
	// takes longer counts as refused, and the next change is read all the same,
	// even if a file system never answers the first. Defaults to 10s.
	ReadTimeout time.Duration
	// AllOrNothing refuses all changes as long as one file has a problem. Else files
	// whose domains touch none of a bad file take effect, once there are rules.
	AllOrNothing bool
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
	// Set is nil when the load is refused, or changes nothing that may change. With
	// an Err it has the bad files, and those whose domains they touch, as they were
	// before.
	Set *rules.Set
	// Warnings are what is legal but odd.
	Warnings rules.Problems
	// Err is nil or [rules.Problems]: all that is wrong with the directory
	// and with its files.
	Err error
	// Files is how many rule files were read.
	Files int
	// Hash is 16 hex digits that tell the names and contents of the files in
	// Set, or of those that were read if there is none, from other ones: servers
	// with the same directory, files and Options have the same rules.
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
	reader func(*os.File) io.Reader
	most   int // directories watched

	ended chan *reading // scans that are over; has room for all there can be
	hung  atomic.Int64  // len(hangs)

	// What is below belongs to Run.
	events *events           // of the last scan
	hangs  []*reading        // were not over in time, and are not over yet
	warned string            // what OnWarn was last told, while it holds
	last   [sha256.Size]byte // tells what was last loaded
	kept   []accepted        // the files in force; empty with AllOrNothing
	force  bool              // the next contents are loaded even if they are the last ones
	latest time.Time         // a burst of events is answered by then; zero: there is none
}

// reading is a scan in a goroutine of its own, and the events that it asks for.
type reading struct {
	scan
	events *events
}

// maxHanging bounds how many scans hang at a time. A goroutine that hangs costs a
// thread, the watches of its directories, and the files that it has read.
const maxHanging = 4

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
	if cfg.ReadTimeout <= 0 {
		cfg.ReadTimeout = 10 * time.Second
	}
	return &Watcher{
		cfg:    cfg,
		reload: make(chan struct{}, 1),
		limits: defaultLimits,
		open:   fsnotify.NewWatcher,
		reader: contents,
		most:   maxWatched,
		ended:  make(chan *reading, maxHanging+1),
	}
}

// Hanging is how many reads were given up and have not returned yet, 4 at most.
func (w *Watcher) Hanging() int { return int(w.hung.Load()) }

// Reload has Run load the directory now, even if nothing changed. It never
// blocks. Calls that come before Run gets to it are one.
func (w *Watcher) Reload() {
	select {
	case w.reload <- struct{}{}:
	default:
	}
}

// Run loads the directory at once, and again whenever its contents change. It
// returns nil when ctx ends, and is called once. A read that hangs may outlive it.
func (w *Watcher) Run(ctx context.Context) error {
	defer w.leave()
	select {
	case <-w.reload: // the first load will do
	default:
	}
	w.force = true
	for ctx.Err() == nil {
		s := w.read(ctx)
		if ctx.Err() != nil { // s is not whole
			break
		}
		w.settle(s)
		w.wait(ctx)
	}
	return nil
}

// read reads the directory. What is not read in time is a scan with one problem.
func (w *Watcher) read(ctx context.Context) *scan {
	if len(w.hangs) == maxHanging {
		s := new(scan)
		s.problem(w.cfg.Dir(), "check its file system (NFS, FUSE), or start the service again", "is not read: %d earlier reads have not returned", maxHanging)
		return s
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := w.start(ctx)
	late := time.NewTimer(w.cfg.ReadTimeout)
	defer late.Stop()
	for {
		select {
		case over := <-w.ended:
			if over != r {
				w.forget(over)
				continue
			}
			w.warn()
			return &r.scan
		case <-late.C:
		case <-ctx.Done():
		}
		w.hangs = append(w.hangs, r)
		w.hung.Store(int64(len(w.hangs)))
		return &scan{problems: rules.Problems{r.where.Load().hangs(w.cfg.ReadTimeout)}}
	}
}

// start begins a scan. The watches are in place before the reading, name by name:
// what changes later is told, what changed before is read.
func (w *Watcher) start(ctx context.Context) *reading {
	if !slices.ContainsFunc(w.hangs, func(r *reading) bool { return r.events == w.events }) {
		w.events.close()
	}
	w.events = newEvents(w.open, w.most)
	r := &reading{events: w.events, scan: scan{
		ctx:            ctx,
		reader:         w.reader,
		ignoreDotFiles: w.cfg.IgnoreDotFiles,
		fileToo:        w.cfg.File || w.cfg.AllowFile,
		elsewhere:      cmp.Or(w.cfg.Elsewhere, "set RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY to the directory of the rules"),
		limits:         w.limits,
		need:           w.events.need,
		timeout:        w.cfg.ReadTimeout,
	}}
	if w.cfg.File {
		r.onlyFile, r.elsewhere = true, "name another file"
	}
	if !w.force { // a reload that was asked for tries again
		for _, h := range w.hangs {
			r.avoid = append(r.avoid, h.where.Load())
		}
	}
	r.where.Store(&place{path: w.cfg.Dir()})
	go func() {
		r.run(w.cfg.Dir())
		w.ended <- r
	}()
	return r
}

// forget drops a scan that hung and is over.
func (w *Watcher) forget(r *reading) {
	w.hangs = slices.DeleteFunc(w.hangs, func(h *reading) bool { return h == r })
	w.hung.Store(int64(len(w.hangs)))
	if r.events != w.events {
		r.events.close()
	}
}

// leave closes all events: those of a scan that is not over yet, when it is.
func (w *Watcher) leave() {
	if len(w.hangs) == 0 {
		w.events.close()
		return
	}
	go func() {
		for range len(w.hangs) {
			(<-w.ended).events.close()
		}
		w.events.close()
	}()
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
		case r := <-w.ended: // what hung may answer again, or was only slow
			w.forget(r)
			if w.latest.IsZero() {
				quiet.Reset(w.cfg.ReadTimeout)
			}
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
	sum := hashOf(s.files)
	l := Load{Files: len(s.files), Hash: hex.EncodeToString(sum.Sum(nil)[:8]), At: at}
	for _, p := range s.problems { // what cannot be read is news as well
		part(sum, []byte(p.String()))
	}
	if len(s.files) == 0 {
		for _, name := range s.ignored { // they may be what was meant
			part(sum, []byte(name))
		}
	}
	state := [sha256.Size]byte(sum.Sum(nil))
	if state == w.last && !w.force {
		return
	}
	w.last, w.force = state, false

	set, warnings, err := loading.Load(s.files, w.cfg.Options)
	var wrong rules.Problems
	switch errors.As(err, &wrong); {
	case len(s.problems) > 0:
		l.Err = append(s.problems, wrong...)
	case err != nil:
		l.Err = err
	default:
		l.Set, l.Warnings = set, append(s.warnings(), warnings...)
		w.keep(s.files)
	}
	if errors.As(l.Err, &wrong) && !s.stopped {
		w.loadInPart(s, wrong, &l)
	}
	if w.cfg.OnLoad != nil {
		w.cfg.OnLoad(l)
	}
}

// loadInPart compiles what may change although there are problems.
func (w *Watcher) loadInPart(s *scan, problems rules.Problems, l *Load) {
	files, changed := inPart(s.files, w.kept, s.root, problems)
	if !changed {
		return
	}
	set, warnings, err := loading.Load(files, w.cfg.Options)
	if err != nil {
		return // the load is refused for reasons enough
	}
	w.keep(files)
	l.Set, l.Warnings = set, append(s.warnings(), warnings...)
	l.Hash = hex.EncodeToString(hashOf(files).Sum(nil)[:8])
}

func (w *Watcher) keep(files []loading.File) {
	if !w.cfg.AllOrNothing {
		w.kept = pack(files)
	}
}

func hashOf(files []loading.File) hash.Hash {
	sum := sha256.New()
	for _, f := range files {
		part(sum, []byte(f.Name))
		part(sum, f.Data)
	}
	return sum
}

// part adds b to a hash such that it cannot run into the next part.
func part(h hash.Hash, b []byte) {
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(b))))
	h.Write(b)
}
