// Package hang bounds calls that may never return, such as reads from a file
// system that does not answer: NFS without its server, FUSE without its program.
package hang

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// DefaultTimeout is that of Calls without one.
const DefaultTimeout = 10 * time.Second

// Most is how many calls of one Calls may hang. Each keeps a goroutine and a thread.
const Most = 4

// Calls are calls of one kind. The zero value is ready for use, by several
// goroutines.
type Calls struct {
	// Timeout is how long a call may take. Zero is DefaultTimeout.
	Timeout time.Duration
	hanging atomic.Int64
}

// Error says that a call was given up, or not made because Most others hang.
type Error struct{ text string }

func (e *Error) Error() string { return e.text }

// Hanging returns how many calls were given up and have not returned yet.
func (c *Calls) Hanging() int { return int(c.hanging.Load()) }

// Do calls f in a goroutine of its own and returns its results. If f has not
// returned after the timeout, or when ctx ends, it is given up: Do returns an
// *Error, or that of ctx, and drops what f returns later. While Most calls hang f is
// not called, and the error is an *Error.
func Do[T any](ctx context.Context, c *Calls, f func() (T, error)) (T, error) {
	var zero T
	if c.Hanging() >= Most {
		return zero, &Error{fmt.Sprintf("not read, as %d earlier reads have not returned: check the file system (NFS, FUSE)", Most)}
	}
	timeout := c.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	type result struct {
		value T
		err   error
	}
	results := make(chan result, 1)
	var state atomic.Bool // set by the first of: f has returned, f was given up
	go func() {
		value, err := f()
		results <- result{value, err}
		if !state.CompareAndSwap(false, true) {
			c.hanging.Add(-1)
		}
	}()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	var err error
	select {
	case r := <-results:
		return r.value, r.err
	case <-timer.C:
		err = &Error{fmt.Sprintf("not read within %v: check the file system (NFS, FUSE)", timeout)}
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.hanging.Add(1)
	if !state.CompareAndSwap(false, true) { // it has just returned
		c.hanging.Add(-1)
		r := <-results
		return r.value, r.err
	}
	return zero, err
}
