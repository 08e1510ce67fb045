package filerules

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/fsnotify/fsnotify"
)

// maxWatched bounds how many directories are watched; each costs the kernel
// about 1 KiB, and the user of this process shares a quota of them.
const maxWatched = 10_000

// events tells when something changed that one scan depended on. Watches are
// on inodes, not on names: after a rename they are on the wrong directory. So
// each scan has events of its own, and those are not mended but replaced.
type events struct {
	watcher *fsnotify.Watcher // nil: nothing is told
	// happened holds a value if something changed since it was last taken.
	happened chan struct{}
	done     chan struct{} // closed when drain has returned
	most     int           // how many directories are watched
	trouble  error         // the first reason why something may go untold

	mu sync.Mutex // guards what is below, between need and drain
	// names are those that matter in each watched directory; "" stands for
	// all that may belong to rules.
	names map[string]map[string]bool
}

// newEvents starts a goroutine, which close stops.
func newEvents(open func() (*fsnotify.Watcher, error), most int) *events {
	e := &events{
		happened: make(chan struct{}, 1),
		done:     make(chan struct{}),
		most:     most,
		names:    make(map[string]map[string]bool),
	}
	watcher, err := open()
	if err != nil {
		e.trouble = fmt.Errorf("no file system events: %w%s", err, advice(err, syscall.EMFILE, "sysctl fs.inotify.max_user_instances, or ulimit -n"))
		close(e.done)
		return e
	}
	e.watcher = watcher
	go e.drain()
	return e
}

// need watches for changes of a name in the directory dir, a path without
// links; "" is any name that may belong to rules. It may be called until close
// is.
func (e *events) need(dir, name string) {
	if e.watcher == nil {
		return
	}
	if fresh := e.note(dir, name); !fresh {
		return
	}
	err := e.watcher.Add(dir)
	// A directory that is not there is watched for in the one above.
	if err != nil && !errors.Is(err, syscall.ENOENT) && e.trouble == nil {
		e.trouble = fmt.Errorf("no file system events from %s: %w%s", dir, err, advice(err, syscall.ENOSPC, "sysctl fs.inotify.max_user_watches"))
	}
}

// note adds to names, and reports whether dir is to be watched from now on.
func (e *events) note(dir, name string) (fresh bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	names := e.names[dir]
	if fresh = names == nil; fresh {
		if len(e.names) == e.most {
			e.trouble = cmp.Or(e.trouble, fmt.Errorf("no file system events from some directories: there are more than %d", e.most))
			return false
		}
		names = make(map[string]bool)
		e.names[dir] = names
	}
	names[name] = true
	return fresh
}

// drain takes what fsnotify tells, as it comes: fsnotify holds a lock when it
// reports some errors, and a full queue in the kernel loses events.
func (e *events) drain() {
	defer close(e.done)
	told, failed := e.watcher.Events, e.watcher.Errors
	for told != nil || failed != nil {
		select {
		case ev, ok := <-told:
			if !ok {
				told = nil
			} else if e.matters(ev.Name) {
				e.signal()
			}
		case _, ok := <-failed:
			if !ok {
				failed = nil
			} else { // events were lost, for instance; a look finds out
				e.signal()
			}
		}
	}
}

func (e *events) signal() {
	select {
	case e.happened <- struct{}{}:
	default:
	}
}

// take reports whether something changed since the last time.
func (e *events) take() bool {
	select {
	case <-e.happened:
		return true
	default:
		return false
	}
}

// matters reports whether a change at path can be one of the contents.
func (e *events) matters(path string) bool {
	path = filepath.Clean(path)
	dir, name := filepath.Split(path)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.names[path] != nil { // a watched directory itself
		return true
	}
	names := e.names[filepath.Clean(dir)]
	return names[name] || names[""] && !skipped(name, false)
}

// close ends the watching. It may be called twice, and on nil.
func (e *events) close() {
	if e == nil {
		return
	}
	if e.watcher != nil {
		_ = e.watcher.Close() // its only error is that of an invalid descriptor
	}
	<-e.done
}

// advice is to raise a limit, if err says that it was met.
func advice(err, met error, limit string) string {
	if !errors.Is(err, met) {
		return ""
	}
	return "; raise " + limit
}
