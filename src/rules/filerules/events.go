package filerules

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/fsnotify/fsnotify"

	"ratelimit/src/rules/reload"
)

// maxWatched bounds how many directories are watched: each costs the kernel about 1 KiB, and all processes of a user share one
// quota.
const maxWatched = 10_000

// events reports changes of what one scan read. The kernel watches inodes, not names: after a rename a watch is on the wrong
// directory. So each scan gets new events.
type events struct {
	watcher  *fsnotify.Watcher // nil: no change is reported
	happened reload.Signal     // sent when something changed
	done     chan struct{}     // closed when forward has returned
	limit    int               // of watched directories
	failure  error             // the first reason why changes may cause no event

	mu sync.Mutex // guards what follows
	// names are the names to report in each watched directory; "" stands for all names that may belong to rules.
	names map[string]map[string]bool
}

// newEvents starts a goroutine, which close stops.
func newEvents(open func() (*fsnotify.Watcher, error), limit int) *events {
	e := &events{
		happened: reload.NewSignal(),
		done:     make(chan struct{}),
		limit:    limit,
		names:    make(map[string]map[string]bool),
	}
	var err error
	if e.watcher, err = open(); err != nil {
		e.failure = fmt.Errorf("no file system events: %w%s", err, adviceFor(err, syscall.EMFILE, "sysctl fs.inotify.max_user_instances, or ulimit -n"))
		close(e.done)
		return e
	}
	go e.forward()
	return e
}

// watch reports changes of a name in the directory dir, a path without links; "" is any name that may belong to rules. It has no
// effect after close.
func (e *events) watch(dir, name string) {
	if e.watcher == nil || !e.addName(dir, name) {
		return
	}
	err := e.watcher.Add(dir)
	// A missing directory is watched for in its parent.
	if err != nil && !errors.Is(err, syscall.ENOENT) && e.failure == nil {
		e.failure = fmt.Errorf("no file system events from %s: %w%s", dir, err, adviceFor(err, syscall.ENOSPC, "sysctl fs.inotify.max_user_watches"))
	}
}

// addName adds to names, and returns whether dir is a new directory to watch.
func (e *events) addName(dir, name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if names := e.names[dir]; names != nil {
		names[name] = true
		return false
	}
	if len(e.names) == e.limit {
		e.failure = cmp.Or(e.failure, fmt.Errorf("no file system events from some directories: there are more than %d", e.limit))
		return false
	}
	e.names[dir] = map[string]bool{name: true}
	return true
}

// forward receives the events of fsnotify without delay: a full queue in the kernel loses events, and fsnotify holds a lock while
// it reports some errors. Any error counts as a change, because events may be lost. It returns after close.
func (e *events) forward() {
	defer close(e.done)
	for {
		select {
		case ev, open := <-e.watcher.Events:
			if !open {
				return
			}
			if e.matters(ev.Name) {
				e.happened.Send()
			}
		case _, open := <-e.watcher.Errors:
			if !open {
				return
			}
			e.happened.Send()
		}
	}
}

// matters returns whether a change at path can change what a scan reads.
func (e *events) matters(path string) bool {
	path = filepath.Clean(path)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.names[path] != nil { // a watched directory itself
		return true
	}
	names, name := e.names[filepath.Dir(path)], filepath.Base(path)
	return names[name] || names[""] && !skipped(name, false)
}

// close stops the watching. It may be called twice, and on nil.
func (e *events) close() {
	if e == nil {
		return
	}
	if e.watcher != nil {
		_ = e.watcher.Close() // fails for an invalid descriptor only
	}
	<-e.done
}

// adviceFor returns the advice to raise limit if err is exceeded.
func adviceFor(err, exceeded error, limit string) string {
	if !errors.Is(err, exceeded) {
		return ""
	}
	return "; raise " + limit
}
