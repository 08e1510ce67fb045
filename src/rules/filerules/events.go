package filerules

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/fsnotify/fsnotify"

	"ratelimit/src/rules/reload"
)

// defaultMaxWatchedDirs bounds how many directories are watched. Each costs the kernel about 1 KiB, and all processes
// of a user share one quota.
const defaultMaxWatchedDirs = 10_000

// events receives file system events about the names that one scan reads. Each scan gets new events, because the kernel
// watches inodes, not names: after a rename a watch is on the wrong directory.
type events struct {
	watcher             *fsnotify.Watcher // nil if the system refused to watch files. There are no events then
	changeSignal        reload.Signal     // sent when a name that the scan reads has changed
	forwarding          sync.WaitGroup    // the goroutines that receive events and errors
	maxWatchedDirs      int
	missingEventsReason error // the first reason why changes may cause no event; nil if there is none

	mu         sync.Mutex               // guards namesByDir.
	namesByDir map[string]*watchedNames // the names whose changes matter in each watched directory
}

// watchedNames are names in a directory.
type watchedNames struct {
	exact map[string]bool
	// prefixes are the beginnings of all other names, as far as these may belong to rules.
	prefixes []string
}

// includes returns whether name is one of the names.
func (n *watchedNames) includes(name string) bool {
	hasPrefix := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	return n.exact[name] || slices.ContainsFunc(n.prefixes, hasPrefix) && !isSkippedName(name, false)
}

// newEvents returns events without watched names. It starts goroutines, which close stops.
func newEvents(open func() (*fsnotify.Watcher, error), maxDirs int) *events {
	e := &events{changeSignal: reload.NewSignal(), maxWatchedDirs: maxDirs, namesByDir: make(map[string]*watchedNames)}
	var err error
	if e.watcher, err = open(); err != nil {
		e.missingEventsReason = fmt.Errorf("no file system events: %w%s", err, systemLimitAdvice(err))
		return e
	}
	e.forwarding.Go(e.forwardEvents)
	e.forwarding.Go(e.forwardErrors)
	return e
}

// watchName reports changes of a name in the directory dir, a path without links. It has no effect after close.
func (e *events) watchName(dir, name string) {
	e.watch(dir, func(n *watchedNames) { n.exact[name] = true })
}

// watchPrefix reports changes of all names in the directory dir that begin with prefix and may belong to rules.
func (e *events) watchPrefix(dir, prefix string) {
	e.watch(dir, func(n *watchedNames) { n.prefixes = append(n.prefixes, prefix) })
}

// watch watches the directory dir. add adds the names whose changes matter. It has no effect on nil.
func (e *events) watch(dir string, add func(*watchedNames)) {
	if e == nil || e.watcher == nil || !e.addNames(dir, add) {
		return
	}
	err := e.watcher.Add(dir)
	// If the directory is missing, the watch of its parent directory reports that it appears.
	if err != nil && !errors.Is(err, syscall.ENOENT) && e.missingEventsReason == nil {
		e.missingEventsReason = fmt.Errorf("no file system events from %s: %w%s", dir, err, systemLimitAdvice(err))
	}
}

// addNames calls add with the names of dir, and returns whether dir is a new directory to watch.
func (e *events) addNames(dir string, add func(*watchedNames)) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if names := e.namesByDir[dir]; names != nil {
		add(names)
		return false
	}
	if len(e.namesByDir) == e.maxWatchedDirs {
		e.missingEventsReason = cmp.Or(e.missingEventsReason,
			fmt.Errorf("no file system events from some directories: there are more than %d", e.maxWatchedDirs))
		return false
	}
	names := &watchedNames{exact: make(map[string]bool)}
	add(names)
	e.namesByDir[dir] = names
	return true
}

// forwardEvents receives the events of fsnotify without delay: a full queue in the kernel loses events. It returns
// after close.
func (e *events) forwardEvents() {
	for event := range e.watcher.Events {
		if e.isReadByScan(event.Name) {
			e.changeSignal.Send()
		}
	}
}

// forwardErrors receives errors without delay: fsnotify holds a lock while it reports some. Any error counts as a
// change, because events may be lost. It returns after close.
func (e *events) forwardErrors() {
	for range e.watcher.Errors {
		e.changeSignal.Send()
	}
}

// isReadByScan returns whether a change at path can change what a scan reads.
func (e *events) isReadByScan(path string) bool {
	path = filepath.Clean(path)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.namesByDir[path] != nil {
		return true
	}
	names := e.namesByDir[filepath.Dir(path)]
	return names != nil && names.includes(filepath.Base(path))
}

// close stops all watches. It may be called twice, and on nil.
func (e *events) close() {
	if e == nil {
		return
	}
	if e.watcher != nil {
		_ = e.watcher.Close()
	}
	e.forwarding.Wait()
}

// systemLimitAdvice returns the advice to raise a limit of the system if err says that it is exceeded, and ""
// otherwise.
func systemLimitAdvice(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return "; raise sysctl fs.inotify.max_user_instances, or ulimit -n"
	case errors.Is(err, syscall.ENOSPC):
		return "; raise sysctl fs.inotify.max_user_watches"
	}
	return ""
}
