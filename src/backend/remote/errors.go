package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"ratelimit/src/backend"
)

// The errors of hits without an answer, besides backend.ErrOverload.
var (
	// ErrTimeout is the error of a call that got no answer in time.
	ErrTimeout = errors.New("no answer in time")
	// ErrTooManyCalls is the error of a call that finds too many calls waiting.
	ErrTooManyCalls = errors.New("too many calls are waiting")
	// ErrSlowConnect is the error of a call that ends while its connection is still being opened.
	ErrSlowConnect = errors.New("no connection in the time of a call")
	// ErrClosed is the error of calls after the end of Run.
	ErrClosed = errors.New("the store is closed")
	// ErrServerRetired is the error of calls to a server that is no longer used.
	ErrServerRetired = errors.New("the server is not used any more")
)

// LinkError is the error of a connection that could not be opened, or broke.
type LinkError struct {
	Store           string // is "redis" or "memcached"
	Addr            string
	WhileConnecting bool // the connection could not be opened
	Err             error
}

func (e *LinkError) Error() string {
	return fmt.Sprintf("%s: %s: %s", e.Store, e.Addr, strings.TrimPrefix(shortenedText(e.Err), e.Store+": "))
}

func (e *LinkError) Unwrap() error { return e.Err }

// The causes of hits without an answer that all stores with servers have.
const (
	CauseTimeout         = "timeout"    // The timeout of the call or the caller's deadline passed.
	CauseCallerLeft      = "left"       // The caller canceled its request.
	CauseTooManyCalls    = "busy"       // Too many calls were waiting.
	CauseOverload        = "overload"   // The server answers other calls, but had no time for this one.
	CauseBreakerOpen     = "breaker"    // The breaker of the server is open.
	CauseConnectFailed   = "connect"    // No connection could be opened.
	CauseConnectionBroke = "connection" // The connection broke or stalled.
	CauseOther           = "other"
)

var sharedCauses = []string{
	CauseTimeout, CauseCallerLeft, CauseTooManyCalls, CauseOverload, CauseBreakerOpen, CauseConnectFailed,
	CauseConnectionBroke, CauseOther,
}

// CauseOf returns the cause of an error that every store can have.
func CauseOf(err error) string {
	_, refused := errors.AsType[*OpenError](err)
	link, isLink := errors.AsType[*LinkError](err)
	switch {
	case refused:
		return CauseBreakerOpen
	case isLink && link.WhileConnecting: // This comes before CauseTimeout, as a slow dial is a DeadlineExceeded too.
		return CauseConnectFailed
	case isLink:
		return CauseConnectionBroke
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return CauseTimeout
	case errors.Is(err, context.Canceled):
		return CauseCallerLeft
	case errors.Is(err, ErrTooManyCalls):
		return CauseTooManyCalls
	case errors.Is(err, backend.ErrOverload):
		return CauseOverload
	}
	return CauseOther
}

// maxErrorTextBytes bounds the error texts that are shown, in bytes, because servers choose them.
const maxErrorTextBytes = 512

func shortenedText(err error) string {
	text := err.Error()
	if len(text) <= maxErrorTextBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxErrorTextBytes], "") + "…"
}

// JoinErrors joins the errors of several servers. It returns nil if all of them are nil.
func JoinErrors(errs []error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	return joinedErrors(errs)
}

// joinedErrors shows only maxShownErrors of its errors in its text.
type joinedErrors []error

const maxShownErrors = 3

func (e joinedErrors) Error() string {
	var texts []string
	for _, err := range e[:min(len(e), maxShownErrors)] {
		texts = append(texts, shortenedText(err))
	}
	if more := len(e) - maxShownErrors; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

func (e joinedErrors) Unwrap() []error { return e }
