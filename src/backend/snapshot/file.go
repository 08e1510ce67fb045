// Package snapshot keeps the counters of a memory store in a file, so that they survive a restart.
//
// A file belongs to one process at a time, which holds a lock on FILE.lock. A snapshot is written to FILE.tmp and then
// renamed to FILE, so FILE is whole at any time, also after a crash. The permissions of all files are 0600, since a
// snapshot has the secret key with which the store hashes names.
package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/backend/memory"
)

// Config configures a File.
type Config struct {
	// Path is the path of the snapshot. Its directory must exist.
	Path string
	// Interval is the time from the end of one write to the start of the next. With 0 Run writes nothing.
	Interval time.Duration
	// Store has the counters. It must be new, since Open adds those of the file to it.
	Store *memory.Store
	// OnFailure is called for each failed write of Run.
	OnFailure func(error)
}

// File is the snapshot of a store. It is safe for concurrent use.
type File struct {
	Config
	lock *os.File // the lock of the process on the file

	writeMu sync.Mutex // is held while the file is written
	stats   atomic.Pointer[Stats]
}

// Stats has the figures of a File.
type Stats struct {
	// LastSuccess is when the counters were written last. Without a write it is when Open found the file, or found
	// none.
	LastSuccess time.Time
	Duration    time.Duration // the time of the last successful write; 0 without one
	Bytes       int64         // the size of the file
	Counters    int64         // the number of counters in the file
	Failures    uint64        // counts the writes that failed
}

// Stats returns the current figures.
func (f *File) Stats() Stats { return *f.stats.Load() }

// Start says what Open found.
type Start struct {
	memory.SnapshotStats
	Found bool // set if there was a snapshot, and its counters are in the store
	// Refused says why a file was not used. RefusedPath is its new path. They are zero if no file was refused.
	Refused     error
	RefusedPath string
}

// Open locks the file, checks that it can be written, and reads it. A file that is no whole snapshot is renamed, and
// the store stays empty. The error says what prevents that the file is read or written, and how to fix it.
func Open(cfg Config) (_ *File, start Start, err error) {
	f := &File{Config: cfg}
	f.stats.Store(&Stats{LastSuccess: time.Now()})
	if f.lock, err = lockFile(cfg.Path + ".lock"); err != nil {
		return nil, start, err
	}
	defer func() {
		if err != nil {
			_ = f.lock.Close() // The first error is the one to report.
		}
	}()
	tmp, err := f.createTemporary()
	if err != nil {
		return nil, start, err
	}
	if err := errors.Join(tmp.Close(), os.Remove(tmp.Name())); err != nil {
		return nil, start, err
	}
	start, err = f.read()
	return f, start, err
}

// read reads the file into the store.
func (f *File) read() (start Start, err error) {
	info, err := os.Stat(f.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return start, nil
	case err != nil:
		return start, err
	case !info.Mode().IsRegular():
		return start, fmt.Errorf("%s is no file: name a file, which the service creates if it does not exist", f.Path)
	}
	in, err := os.Open(f.Path)
	if err != nil {
		return start, fmt.Errorf("%w: let this process read the file, or remove it", err)
	}
	st, refused := f.Store.ReadSnapshot(in, time.Now())
	if err := in.Close(); err != nil {
		return start, err
	}
	if refused == nil {
		f.stats.Store(&Stats{LastSuccess: time.Now(), Bytes: info.Size(), Counters: st.Counters + st.Expired + st.Evicted})
		return Start{SnapshotStats: st, Found: true}, nil
	}
	kept, err := f.setAside()
	return Start{Refused: refused, RefusedPath: kept}, err
}

// setAside renames the file to a name that does not exist yet.
func (f *File) setAside() (path string, err error) {
	base := f.Path + ".refused-" + time.Now().UTC().Format("20060102T150405Z")
	path = base
	for n := 2; ; n++ {
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			return path, os.Rename(f.Path, path)
		} else if err != nil {
			return "", err
		}
		path = fmt.Sprintf("%s-%d", base, n)
	}
}

// createTemporary creates the file that is renamed to Path when it is complete. One of a process that crashed is
// replaced.
func (f *File) createTemporary() (*os.File, error) {
	path := f.Path + ".tmp"
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: let this process write to the directory", err)
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: let this process write to the directory", err)
	}
	return out, nil
}

// Run writes the file each Interval until ctx ends. It returns nil.
func (f *File) Run(ctx context.Context) error {
	if f.Interval == 0 {
		<-ctx.Done()
		return nil
	}
	for {
		select {
		case <-time.After(f.Interval):
		case <-ctx.Done():
			return nil
		}
		if err := f.Write(ctx); err != nil && ctx.Err() == nil {
			f.OnFailure(err)
		}
	}
}

// Write writes all counters to the file. Other goroutines may use the store meanwhile. If ctx ends, or after another
// error, the file is as it was before.
func (f *File) Write(ctx context.Context) error {
	f.writeMu.Lock()
	defer f.writeMu.Unlock()
	started := time.Now()
	st, bytes, err := f.replace(ctx)
	next := f.Stats()
	if err != nil {
		next.Failures++
	} else {
		next.LastSuccess, next.Duration, next.Bytes, next.Counters = st.SavedAt, time.Since(started), bytes, st.Counters
	}
	f.stats.Store(&next)
	return err
}

// replace writes a new file and renames it to Path. It returns how many bytes it wrote.
func (f *File) replace(ctx context.Context) (st memory.SnapshotStats, bytes int64, err error) {
	out, err := f.createTemporary()
	if err != nil {
		return st, 0, err
	}
	w := &stoppableWriter{ctx: ctx, out: out}
	st, err = f.Store.WriteSnapshot(w, time.Now())
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err == nil {
		err = os.Rename(out.Name(), f.Path)
	}
	if err != nil {
		return st, 0, errors.Join(err, os.Remove(out.Name()))
	}
	return st, w.bytes, syncDirectory(filepath.Dir(f.Path))
}

// stoppableWriter counts the bytes that it writes to out. It fails when ctx ends.
type stoppableWriter struct {
	ctx   context.Context
	out   io.Writer
	bytes int64
}

// Write implements io.Writer.
func (w *stoppableWriter) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := w.out.Write(p)
	w.bytes += int64(n)
	return n, err
}

// syncDirectory makes a rename in a directory last over a crash of the machine.
func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Close gives up the lock of the file. A write must not run, or come later.
func (f *File) Close() error { return f.lock.Close() }
