package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"ratelimit/src/backend"
)

// The errors of hits without an answer, besides backend.ErrOverload.
var (
	ErrTimeout = errors.New("no answer in time")
	ErrBusy    = errors.New("too many calls are waiting")
	// ErrSlow is the error of a call that ends while its connection is still being opened.
	ErrSlow = errors.New("no connection in the time of a call")
	// ErrClosed: Run has ended.
	ErrClosed = errors.New("the store is closed")
	// ErrRetired is the error of calls to a server that is no longer used.
	ErrRetired = errors.New("the server is not used any more")
)

// LinkError is the error of a connection that could not be opened, or broke.
type LinkError struct {
	Store   string // redis or memcached
	Addr    string
	Connect bool // while it was being made
	Err     error
}

func (e *LinkError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Store, e.Addr, Brief(e.Err))
}

func (e *LinkError) Unwrap() error { return e.Err }

// The causes of hits without an answer that all stores with servers have.
const (
	CauseTimeout    = "timeout"    // no answer in time, ours or the caller's
	CauseLeft       = "left"       // the caller left
	CauseBusy       = "busy"       // too many calls wait
	CauseOverload   = "overload"   // the call was too much for the time there was; the server works
	CauseBreaker    = "breaker"    // the breaker is open
	CauseConnect    = "connect"    // no connection could be made
	CauseConnection = "connection" // one broke or stood still
	CauseOther      = "other"
)

// CauseOf returns the cause of an error that every store can have.
func CauseOf(err error) string {
	_, refused := errors.AsType[*OpenError](err)
	link, isLink := errors.AsType[*LinkError](err)
	switch {
	case refused:
		return CauseBreaker
	case isLink && link.Connect: // a dial that takes too long is a DeadlineExceeded as well
		return CauseConnect
	case isLink:
		return CauseConnection
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return CauseTimeout
	case errors.Is(err, context.Canceled):
		return CauseLeft
	case errors.Is(err, ErrBusy):
		return CauseBusy
	case errors.Is(err, backend.ErrOverload):
		return CauseOverload
	}
	return CauseOther
}

// maxErrorText bounds the error texts that are shown, in bytes, because servers choose them.
const maxErrorText = 512

// Brief returns the text of err, cut to 512 bytes.
func Brief(err error) string {
	text := err.Error()
	if len(text) <= maxErrorText {
		return text
	}
	return strings.ToValidUTF8(text[:maxErrorText], "") + "…"
}

// JoinErrors joins errors of several servers; nil if there are none. Its text shows
// three of them and how many more there are.
func JoinErrors(errs []error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	return &joined{errs}
}

type joined struct{ errs []error }

// maxShown is how many errors the text of joined errors shows.
const maxShown = 3

func (e *joined) Error() string {
	var texts []string
	for _, err := range e.errs[:min(len(e.errs), maxShown)] {
		texts = append(texts, Brief(err))
	}
	if more := len(e.errs) - maxShown; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

func (e *joined) Unwrap() []error { return e.errs }

// Tally counts errors by cause.
type Tally map[string]*atomic.Int64

// NewTally returns a Tally of the causes that all stores have, and of more.
func NewTally(more ...string) Tally {
	t := make(Tally)
	for _, cause := range append(more, CauseTimeout, CauseLeft, CauseBusy, CauseOverload, CauseBreaker, CauseConnect, CauseConnection, CauseOther) {
		t[cause] = new(atomic.Int64)
	}
	return t
}

// Add counts n errors of a cause that t has.
func (t Tally) Add(cause string, n int) { t[cause].Add(int64(n)) }

// Read returns the counts by cause, including those that are 0.
func (t Tally) Read() map[string]int64 {
	m := make(map[string]int64, len(t))
	for cause, n := range t {
		m[cause] = n.Load()
	}
	return m
}
