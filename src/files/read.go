// Package files bounds the time of file reads. A read from a file system that does not answer, such as NFS without its
// server, may never return.
package files

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// DefaultTimeout is the timeout of Reads with a zero Timeout.
const DefaultTimeout = 10 * time.Second

// MaxHanging bounds the reads of one Reads that hang at a time. Each keeps a goroutine and a thread busy.
const MaxHanging = 4

// Reads bounds the reads of one kind of file. The zero value is ready for use. It is safe for concurrent use.
type Reads struct {
	// Timeout is the longest time for one read. Defaults to DefaultTimeout.
	Timeout time.Duration
	hanging atomic.Int64 // counts abandoned reads that have not returned.
}

// TimeoutError is the error of a read that was abandoned, or that was not tried because MaxHanging others hang.
type TimeoutError struct{ text string }

func (e *TimeoutError) Error() string { return e.text }

// Hanging returns the number of reads that were abandoned and have not returned.
func (r *Reads) Hanging() int { return int(r.hanging.Load()) }

// File returns the contents of a file, with the errors of Read.
func (r *Reads) File(ctx context.Context, path string) ([]byte, error) {
	return Read(ctx, r, func() ([]byte, error) { return os.ReadFile(path) })
}

// Read calls f in a new goroutine and returns its results. If f does not return before the timeout or the end of ctx,
// Read abandons it: Read returns a *TimeoutError or the error of ctx, and drops the results of f. While MaxHanging
// reads hang, Read does not call f and returns a *TimeoutError.
func Read[T any](ctx context.Context, r *Reads, f func() (T, error)) (T, error) {
	var zero T
	if r.Hanging() >= MaxHanging {
		return zero, &TimeoutError{fmt.Sprintf("not read, as %d earlier reads have not returned: check the file system "+
			"(NFS, FUSE)", MaxHanging)}
	}
	timeout := cmp.Or(r.Timeout, DefaultTimeout)
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		&TimeoutError{fmt.Sprintf("not read within %v: check the file system (NFS, FUSE)", timeout)})
	defer cancel()
	type result struct {
		value T
		err   error
	}
	results, abandoned := make(chan result), make(chan struct{})
	go func() {
		value, err := f()
		select {
		case results <- result{value, err}:
		case <-abandoned:
			r.hanging.Add(-1)
		}
	}()
	select {
	case got := <-results:
		return got.value, got.err
	case <-ctx.Done():
		r.hanging.Add(1)
		close(abandoned)
		return zero, context.Cause(ctx)
	}
}
