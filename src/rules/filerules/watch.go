package filerules

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"ratelimit/src/files"
	"ratelimit/src/rules"
	"ratelimit/src/rules/loading"
	"ratelimit/src/rules/reload"
)

// Config configures a Watcher.
type Config struct {
	// Root, Subdirectory and AppDirectory joined are the directory of the rules. Each part may be empty, may be a link, and may
	// be missing at first; all empty is the current directory.
	Root, Subdirectory, AppDirectory string
	// File says that the path is that of one file, which is read whatever its name.
	File bool
	// AllowFile allows the path to be that of one file.
	AllowFile bool
	// Elsewhere says how to name another directory, in the message about a missing one. Defaults to the three RUNTIME_ variables.
	Elsewhere string
	// IgnoreDotFiles skips files and directories whose names begin with a dot. Names that begin with two dots are always skipped.
	IgnoreDotFiles bool
	// Options are what the rules are compiled with.
	Options rules.Options
	// Debounce is how long the directory must be quiet after a change before it is read. If it never is, the directory is read
	// after 10 times Debounce. Defaults to 100ms.
	Debounce time.Duration
	// Poll is how often the directory is read without any event, for file systems that send none. Defaults to 30s; negative is
	// never.
	Poll time.Duration
	// ReadTimeout bounds one scan of the directory. A longer one counts as refused, and the next change is read all the same.
	// Defaults to 10s.
	ReadTimeout time.Duration
	// AllOrNothing refuses all changes while one file has a problem. Otherwise files that share no domain with a bad file take
	// effect, once there are rules.
	AllOrNothing bool
	// OnLoad is called in Run's goroutine after each load, accepted or refused.
	OnLoad func(reload.Result)
	// OnWarn, if not nil, is called in Run's goroutine when changes may cause no event from now on, so that only the next Poll
	// finds them. It is called again for the same reason only if events have worked in between.
	OnWarn func(error)
}

// Dir returns the directory of the rules.
func (c Config) Dir() string {
	return filepath.Clean(filepath.Join(c.Root, c.Subdirectory, c.AppDirectory))
}

// Watcher loads a directory of rules whenever it changes.
type Watcher struct {
	cfg         Config
	limits      limits
	open        func() (*fsnotify.Watcher, error)
	reader      func(*os.File) io.Reader
	maxWatched  int // directories
	reloadAsked reload.Signal
	returned    reload.Signal // sent when a scan returns
	reads       files.Reads

	// Run owns what follows.
	loader   reload.Loader
	events   *events           // of the last scan
	late     []*scan           // scans that exceeded ReadTimeout
	warned   string            // the last warning, while it holds
	lastSeen [sha256.Size]byte // identifies what the last load read
	force    bool              // load the next contents even if they are lastSeen
	deadline time.Time         // read by then although changes continue; zero: no change is pending
}

// maxQuiet times Debounce is the longest wait for a directory that keeps changing.
const maxQuiet = 10

// New returns a Watcher, which does nothing before Run.
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
		cfg:         cfg,
		limits:      defaultLimits,
		open:        fsnotify.NewWatcher,
		reader:      plainReader,
		maxWatched:  maxWatched,
		reloadAsked: reload.NewSignal(),
		returned:    reload.NewSignal(),
		reads:       files.Reads{Timeout: cfg.ReadTimeout},
		loader:      newLoader(cfg),
	}
}

func newLoader(cfg Config) reload.Loader {
	return reload.Loader{
		AllOrNothing: cfg.AllOrNothing,
		Compile: func(parts []reload.Part) (*rules.Set, rules.Problems, error) {
			return loading.Load(filesOf(parts), cfg.Options)
		},
		Identify: func(parts []reload.Part) (all []reload.Identity) {
			for _, f := range filesOf(parts) {
				all = append(all, reload.Identity{Name: f.Name, Domain: loading.DomainOf(f)})
			}
			return all
		},
		Whole: cfg.Dir(),
	}
}

// Hanging returns how many scans exceeded ReadTimeout and have not returned yet, 4 at most.
func (w *Watcher) Hanging() int { return w.reads.Hanging() }

// Reload makes Run load the directory now, even if nothing changed. It never blocks. Calls that come before Run handles the first
// count as one.
func (w *Watcher) Reload() { w.reloadAsked.Send() }

// Run loads the directory at once, and again whenever its contents change. It returns nil when ctx ends, and is called once. A
// read that hangs may outlive it.
func (w *Watcher) Run(ctx context.Context) error {
	defer func() { w.closeEvents() }()
	w.reloadAsked.Clear() // the first load answers it
	w.force = true
	for ctx.Err() == nil {
		s := w.scan(ctx)
		if ctx.Err() != nil { // s is incomplete
			break
		}
		w.loadUnlessChanging(s)
		w.waitForChange(ctx)
	}
	return nil
}

// scan reads the directory. If it takes longer than ReadTimeout, the result is a scan with that one problem.
func (w *Watcher) scan(ctx context.Context) *scan {
	if w.Hanging() == files.MaxHanging {
		s := new(scan)
		s.problem(w.cfg.Dir(), "check its file system (NFS, FUSE), or start the service again", "is not read: %d earlier reads have not returned", files.MaxHanging)
		return s
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w.late = slices.DeleteFunc(w.late, func(s *scan) bool { return s.ended.Load() })
	w.closeEvents()
	w.events = newEvents(w.open, w.maxWatched)
	s := w.newScan(ctx)
	_, err := files.Read(ctx, &w.reads, func() (any, error) {
		s.run(w.cfg.Dir())
		s.ended.Store(true)
		w.returned.Send()
		return nil, nil
	})
	if err == nil {
		w.returned.Clear()
		w.warnOfMissingEvents()
		return s
	}
	w.late = append(w.late, s)
	return &scan{problems: rules.Problems{s.where.Load().hangs(w.cfg.ReadTimeout)}}
}

// newScan returns a scan that watches each name before it reads it, so every later change causes an event.
func (w *Watcher) newScan(ctx context.Context) *scan {
	s := &scan{
		ctx:            ctx,
		reader:         w.reader,
		ignoreDotFiles: w.cfg.IgnoreDotFiles,
		allowFile:      w.cfg.File || w.cfg.AllowFile,
		elsewhere:      cmp.Or(w.cfg.Elsewhere, "set RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY to the directory of the rules"),
		limits:         w.limits,
		watch:          w.events.watch,
		timeout:        w.cfg.ReadTimeout,
	}
	if w.cfg.File {
		s.onlyFile, s.elsewhere = true, "name another file"
	}
	if !w.force { // a requested reload tries again
		for _, l := range w.late {
			s.avoid = append(s.avoid, l.where.Load())
		}
	}
	s.where.Store(&place{path: w.cfg.Dir()})
	return s
}

// closeEvents does not wait while a scan hangs: fsnotify may hold a lock then.
func (w *Watcher) closeEvents() {
	if len(w.late) > 0 {
		go w.events.close()
	} else {
		w.events.close()
	}
}

// warnOfMissingEvents calls OnWarn if changes may cause no event.
func (w *Watcher) warnOfMissingEvents() {
	err := w.events.failure
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

// loadUnlessChanging loads what s read. If something changed during the scan, s may be half old and half new, so the load is left
// to a later scan, but not beyond the deadline.
func (w *Watcher) loadUnlessChanging(s *scan) {
	now := time.Now()
	changing := w.events.happened.Clear()
	if !changing || !w.deadline.IsZero() && !now.Before(w.deadline) {
		w.deadline = time.Time{}
		w.loadIfNew(s, now)
	}
	if changing && w.deadline.IsZero() {
		w.deadline = now.Add(maxQuiet * w.cfg.Debounce)
	}
}

// waitForChange returns when the directory is to be read.
func (w *Watcher) waitForChange(ctx context.Context) {
	var quiet, poll <-chan time.Time
	if !w.deadline.IsZero() {
		quiet = time.After(w.cfg.Debounce)
	}
	if w.cfg.Poll > 0 {
		poll = time.After(w.cfg.Poll)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.reloadAsked:
			w.force = true
			return
		case <-w.returned: // the place that hung may answer again
			if w.deadline.IsZero() {
				quiet = time.After(w.cfg.ReadTimeout)
			}
		case <-quiet:
			return
		case <-poll:
			if w.deadline.IsZero() { // otherwise quiet fires soon
				return
			}
		case <-w.events.happened:
			now := time.Now()
			if w.deadline.IsZero() {
				w.deadline = now.Add(maxQuiet * w.cfg.Debounce)
			}
			quiet = time.After(min(w.cfg.Debounce, w.deadline.Sub(now)))
		}
	}
}

// loadIfNew loads what s read, unless the last load read the same.
func (w *Watcher) loadIfNew(s *scan, at time.Time) {
	read := slices.Clone(s.files)
	for _, p := range s.problems {
		read = append(read, reload.Part{Type: p.String()})
	}
	if len(s.files) == 0 {
		for _, name := range s.ignored { // a warning names them
			read = append(read, reload.Part{Type: name})
		}
	}
	seen := reload.Sum(read)
	if seen == w.lastSeen && !w.force {
		return
	}
	w.lastSeen, w.force = seen, false
	out := reload.Result{At: at}
	w.loader.Load(s.files, s.problems, &out)
	if out.Set != nil {
		out.Warnings = append(s.warnings(), out.Warnings...)
	}
	if w.cfg.OnLoad != nil {
		w.cfg.OnLoad(out)
	}
}
