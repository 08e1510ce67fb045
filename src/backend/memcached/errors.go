package memcached

import (
	"errors"
	"fmt"
	"strings"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

// Error is an error reply of Memcached.
type Error string

func (e Error) Error() string { return "memcached: " + string(e) }

var (
	// ErrTimeout: Memcached did not answer in time.
	ErrTimeout = fmt.Errorf("memcached: %w", remote.ErrTimeout)
	// ErrBusy: too many calls wait already.
	ErrBusy = fmt.Errorf("memcached: %w", remote.ErrBusy)
	// ErrOverload: Memcached works, but the call had to wait for too long behind its
	// own commands or behind other calls.
	ErrOverload = fmt.Errorf("memcached: %w", backend.ErrOverload)
	// ErrUnsupported is a hit that Memcached cannot count: rules with such are
	// refused when they are loaded.
	ErrUnsupported = errors.New("memcached: the limit is of a kind that only other stores can count")

	errClosed  = errors.New("memcached: the store is closed")
	errRetired = errors.New("memcached: the server was taken out of the list")
	errNobody  = errors.New("memcached: no servers are known yet")
	errContest = errors.New("memcached: the counter came and went between add and incr again and again")
)

// The causes of hits without an answer, besides those of package remote.
const (
	causeMemory      = "memory"      // the server has no more memory
	causeReply       = "reply"       // any other error reply
	causeServers     = "servers"     // it is not known which servers there are
	causeUnsupported = "unsupported" // Memcached cannot do that
)

func newTally() remote.Tally {
	return remote.NewTally(causeMemory, causeReply, causeServers, causeUnsupported)
}

// causeOf is what a hit's error is counted as.
func causeOf(err error) string {
	reply, isReply := errors.AsType[Error](err)
	switch {
	case isReply && strings.Contains(string(reply), "out of memory"):
		return causeMemory
	case isReply:
		return causeReply
	case errors.Is(err, errNobody):
		return causeServers
	case errors.Is(err, ErrUnsupported):
		return causeUnsupported
	}
	return remote.CauseOf(err)
}

// isAnswer reports whether err is something that a server said: it is there.
func isAnswer(err error) bool {
	_, ok := errors.AsType[Error](err)
	return ok
}
