package memcached

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
)

// Error is an error reply of Memcached.
type Error string

func (e Error) Error() string { return "memcached: " + string(e) }

var (
	// ErrTimeout: Memcached did not answer in time.
	ErrTimeout = errors.New("memcached: no answer in time")
	// ErrBusy: too many calls wait already.
	ErrBusy = errors.New("memcached: too many calls are waiting")
	// ErrUnsupported is a hit that Memcached cannot count: rules with such are
	// refused when they are loaded.
	ErrUnsupported = errors.New("memcached: the limit is of a kind that only other stores can count")

	errClosed  = errors.New("memcached: the store is closed")
	errRetired = errors.New("memcached: the server was taken out of the list")
	errNobody  = errors.New("memcached: no servers are known yet")
	errContest = errors.New("memcached: the counter came and went between add and incr again and again")
)

// The causes of hits without an answer, as they are counted.
const (
	causeTimeout     = iota // no answer in time, ours or the caller's
	causeLeft               // the caller left
	causeBusy               // too many calls wait
	causeConnect            // no connection could be made
	causeConnection         // one broke or stood still
	causeMemory             // the server has no more memory
	causeReply              // any other error reply
	causeServers            // it is not known which servers there are
	causeUnsupported        // Memcached cannot do that
	causeOther
	causes
)

var causeNames = [causes]string{
	"timeout", "left", "busy", "connect", "connection", "memory", "reply", "servers", "unsupported", "other",
}

// causeOf is what a hit's error is counted as.
func causeOf(err error) int {
	link, isLink := errors.AsType[*linkError](err)
	reply, isReply := errors.AsType[Error](err)
	switch {
	case isReply && strings.Contains(string(reply), "out of memory"):
		return causeMemory
	case isReply:
		return causeReply
	case isLink && link.connect: // a dial that takes too long is a DeadlineExceeded as well
		return causeConnect
	case isLink:
		return causeConnection
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return causeTimeout
	case errors.Is(err, context.Canceled):
		return causeLeft
	case errors.Is(err, ErrBusy):
		return causeBusy
	case errors.Is(err, errNobody):
		return causeServers
	case errors.Is(err, ErrUnsupported):
		return causeUnsupported
	}
	return causeOther
}

// tally counts errors by cause.
type tally [causes]atomic.Int64

func (t *tally) add(err error) { t[causeOf(err)].Add(1) }

// read returns the counts by name of the cause, those that are 0 included.
func (t *tally) read() map[string]int64 {
	m := make(map[string]int64, causes)
	for i := range t {
		m[causeNames[i]] = t[i].Load()
	}
	return m
}

// linkError is a connection that could not be made or broke.
type linkError struct {
	addr    string
	connect bool // while it was being made
	err     error
}

func (e *linkError) Error() string { return fmt.Sprintf("memcached: %s: %v", e.addr, e.err) }

func (e *linkError) Unwrap() error { return e.err }
