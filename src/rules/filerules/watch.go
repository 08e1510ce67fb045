package filerules

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"ratelimit/src/files"
	"ratelimit/src/rules"
	"ratelimit/src/rules/reload"
)

// Config configures a Watcher.
type Config struct {
	reload.Config // Run calls OnLoad in its goroutine.

	// Path is the directory of the rules. Each part of it may be a link, and may be missing at first. Empty is the current
	// directory.
	Path string
	// AllowFile allows that Path is a file. OnlyFile demands it. The file is read whatever its name.
	AllowFile, OnlyFile bool
	// AllowMissing allows that Path is missing, as if it were an empty directory.
	AllowMissing bool
	// ReadSiblings also reads what is beside Path and has a name that begins with that of Path and a dot: config.yaml and
	// config.d/ beside config. Path may be missing then.
	ReadSiblings bool
	// ElsewhereAdvice completes the advice of messages about a missing Path, such as "set RULES to another directory".
	ElsewhereAdvice string
	// IgnoreDotFiles skips files and directories whose names start with a dot. Names that start with two dots are always
	// skipped.
	IgnoreDotFiles bool
	// Debounce is how long the directory must be quiet after a change before it is read. If it never is, the directory is
	// read after 10 times Debounce.
	Debounce time.Duration
	// PollInterval is how often the directory is read without any event, for file systems that send none. Zero is never.
	PollInterval time.Duration
	// ReadTimeout bounds one scan of the directory. A scan that takes longer counts as refused, and the next change is
	// read all the same. Defaults to 10s.
	ReadTimeout time.Duration
	// OnMissingEvents is called in Run's goroutine when changes may cause no event from now on, so that only the next poll
	// finds them. It is called again for the same reason only if events have worked in between. Required.
	OnMissingEvents func(error)
}

// Watcher loads a directory of rules whenever it changes.
type Watcher struct {
	cfg                Config
	newEventWatcher    func() (*fsnotify.Watcher, error) // fsnotify.NewWatcher. Tests replace it
	contentReader      func(*os.File) io.Reader          // nil except in tests
	maxWatchedDirs     int
	reloadSignal       reload.Signal // sent by Reload
	scanReturnedSignal reload.Signal // sent when a scan returns
	fileReads          files.Reads

	// Only Run's goroutine uses the following fields.
	loader           reload.Loader
	events           *events    // the file system events since the last scan began
	hangingScans     []*dirScan // scans that exceeded ReadTimeout. They may have returned since
	lastWarning      string     // the warning that holds now; it is empty if events work
	knownData        dataCache  // what the last scan found out about data files
	lastContentsHash string
	loadEvenIfSame   bool      // set if the next contents are loaded even if they have not changed
	readDeadline     time.Time // when the directory is read although changes continue. It is zero if there was no change
}

// maxQuietFactor times Debounce is the longest wait for a directory that keeps changing.
const maxQuietFactor = 10

// New returns a Watcher, which does nothing before Run.
func New(cfg Config) *Watcher {
	cfg.Path = filepath.Clean(cfg.Path)
	cfg.ReadTimeout = cmp.Or(cfg.ReadTimeout, files.DefaultTimeout)
	return &Watcher{
		cfg:                cfg,
		newEventWatcher:    fsnotify.NewWatcher,
		maxWatchedDirs:     defaultMaxWatchedDirs,
		reloadSignal:       reload.NewSignal(),
		scanReturnedSignal: reload.NewSignal(),
		fileReads:          files.Reads{Timeout: cfg.ReadTimeout},
		loader: reload.Loader{
			Config: cfg.Config, Format: Format(), AllowPartialFirstLoad: cfg.Source != nil,
			WholePlace: cfg.Path,
		},
	}
}

// HangingScans returns how many scans exceeded ReadTimeout and have not returned yet, 4 at most.
func (w *Watcher) HangingScans() int { return w.fileReads.Hanging() }

// Reload makes Run load the directory now, even if nothing changed. It never blocks. Calls that come before Run handles
// the first count as one.
func (w *Watcher) Reload() { w.reloadSignal.Send() }

// Run loads the directory at once, and again whenever its contents change. It returns nil when ctx ends, and is called
// once. A read that hangs may outlive it.
func (w *Watcher) Run(ctx context.Context) error {
	defer func() { w.closeEvents() }()
	w.reloadSignal.Clear() // The first load answers an earlier Reload.
	w.loadEvenIfSame = true
	for ctx.Err() == nil {
		s := w.scanDir(ctx)
		if ctx.Err() != nil { // The scan is incomplete.
			break
		}
		w.loadUnlessChanging(s)
		w.waitForChange(ctx)
	}
	return nil
}

// scanDir reads the directory. It watches each name before it reads it, so that every later change causes an event. If
// this takes longer than ReadTimeout, the result is a scan with that one problem.
func (w *Watcher) scanDir(ctx context.Context) *dirScan {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := newDirScan(ctx, w.cfg)
	s.knownData = w.knownData
	s.pacer.Gentle = w.loader.HasRules()
	if w.HangingScans() == files.MaxHanging {
		s.addProblem(w.cfg.Path, "check its file system (NFS, FUSE), or start the service again",
			"is not read: %d earlier reads have not returned", files.MaxHanging)
		return s
	}
	w.hangingScans = slices.DeleteFunc(w.hangingScans, func(s *dirScan) bool { return s.hasReturned.Load() })
	w.closeEvents()
	w.events = newEvents(w.newEventWatcher, w.maxWatchedDirs)
	s.events = w.events
	if w.contentReader != nil {
		s.contentReader = w.contentReader
	}
	if !w.loadEvenIfSame { // A requested reload reads hanging places again.
		for _, h := range w.hangingScans {
			s.avoidedPlaces = append(s.avoidedPlaces, h.currentPlace.Load())
		}
	}
	s.currentPlace.Store(&scannedPlace{path: w.cfg.Path})
	_, err := files.Read(ctx, &w.fileReads, func() (any, error) {
		s.readAll()
		s.hasReturned.Store(true)
		w.scanReturnedSignal.Send()
		return nil, nil
	})
	if err == nil {
		w.scanReturnedSignal.Clear()
		w.warnOfMissingEvents()
		w.knownData = s.parseDataFiles()
		return s
	}
	w.hangingScans = append(w.hangingScans, s)
	return &dirScan{problems: rules.Problems{s.currentPlace.Load().timeoutProblem(w.cfg.ReadTimeout)}}
}

// closeEvents does not wait while a scan hangs: fsnotify may hold a lock then.
func (w *Watcher) closeEvents() {
	if len(w.hangingScans) > 0 {
		go w.events.close()
	} else {
		w.events.close()
	}
}

// warnOfMissingEvents calls OnMissingEvents if changes may cause no event.
func (w *Watcher) warnOfMissingEvents() {
	err := w.events.missingEventsReason
	if err == nil {
		w.lastWarning = ""
		return
	}
	if w.lastWarning == err.Error() {
		return
	}
	w.lastWarning = err.Error()
	found := "are found by a reload only"
	if w.cfg.PollInterval > 0 {
		found = fmt.Sprintf("are found every %v", w.cfg.PollInterval)
	}
	w.cfg.OnMissingEvents(fmt.Errorf("filerules: %s: changes %s: %w", w.cfg.Path, found, err))
}

// loadUnlessChanging loads what a scan read. If something changed during the scan, that may be half old and half new,
// so a later scan is loaded instead, but not after readDeadline.
func (w *Watcher) loadUnlessChanging(s *dirScan) {
	now := time.Now()
	changing := w.events.changeSignal.Clear()
	if !changing || !w.readDeadline.IsZero() && !now.Before(w.readDeadline) {
		w.readDeadline = time.Time{}
		w.loadIfChanged(s, now)
	}
	if changing && w.readDeadline.IsZero() {
		w.readDeadline = now.Add(maxQuietFactor * w.cfg.Debounce)
	}
}

// waitForChange returns when the directory is to be read.
func (w *Watcher) waitForChange(ctx context.Context) {
	var quiet, poll <-chan time.Time
	if !w.readDeadline.IsZero() {
		quiet = time.After(w.cfg.Debounce)
	}
	if w.cfg.PollInterval > 0 {
		poll = time.After(w.cfg.PollInterval)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.reloadSignal:
			w.loadEvenIfSame = true
			return
		case <-w.scanReturnedSignal: // A place that hung may answer again.
			if w.readDeadline.IsZero() {
				quiet = time.After(w.cfg.ReadTimeout)
			}
		case <-quiet:
			return
		case <-poll:
			if w.readDeadline.IsZero() { // After a change the timer quiet fires soon.
				return
			}
		case <-w.events.changeSignal:
			now := time.Now()
			if w.readDeadline.IsZero() {
				w.readDeadline = now.Add(maxQuietFactor * w.cfg.Debounce)
			}
			quiet = time.After(min(w.cfg.Debounce, w.readDeadline.Sub(now)))
		}
	}
}

// loadIfChanged loads what a scan read, unless the last load read the same.
func (w *Watcher) loadIfChanged(s *dirScan, at time.Time) {
	problems, warnings := s.findings(w.loader.HasPartAt)
	contents := slices.Clone(s.files)
	for _, p := range slices.Concat(problems, s.skippedLinks) {
		contents = append(contents, File{Name: p.String()})
	}
	sum := reload.HashOfParts(contents)
	if sum == w.lastContentsHash && !w.loadEvenIfSame {
		return
	}
	w.lastContentsHash, w.loadEvenIfSame = sum, false
	defer w.cfg.BeginLoad()()
	out := reload.Result{ReadTime: at}
	w.loader.Load(s.files, problems, &out)
	if out.Set != nil {
		out.Warnings = append(warnings, out.Warnings...)
	}
	w.cfg.OnLoad(out)
}
