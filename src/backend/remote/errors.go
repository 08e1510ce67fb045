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
	// ErrSlow is a connection that is not made yet after the time of a call.
	ErrSlow = errors.New("no connection in the time of a call")
	// ErrClosed: Run has ended.
	ErrClosed = errors.New("the store is closed")
	// ErrRetired is a server that is not used any more.
	ErrRetired = errors.New("the server is not used any more")
)

// LinkError is a connection that could not be made, or broke.
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

// CauseOf returns the cause of an error that is none of the store's own.
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

// maxErrorText bounds the text of an error that is shown: servers choose what it says.
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

// maxShown is how many errors the text of several shows.
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

// NewTally counts the causes that all stores have, and more.
func NewTally(more ...string) Tally {
	t := make(Tally)
	for _, cause := range append(more, CauseTimeout, CauseLeft, CauseBusy, CauseOverload, CauseBreaker, CauseConnect, CauseConnection, CauseOther) {
		t[cause] = new(atomic.Int64)
	}
	return t
}

// Add counts n errors of a cause, which has to be one that t counts.
func (t Tally) Add(cause string, n int) { t[cause].Add(int64(n)) }

// Read returns the counts by cause, those that are 0 included.
func (t Tally) Read() map[string]int64 {
	m := make(map[string]int64, len(t))
	for cause, n := range t {
		m[cause] = n.Load()
	}
	return m
}
