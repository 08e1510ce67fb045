package memcached

import (
	"errors"
	"strings"

	"ratelimit/src/backend/remote"
)

// Error is an error reply of Memcached.
type Error string

func (e Error) Error() string { return "memcached: " + string(e) }

// ErrUnsupported is the error of a hit that Memcached cannot count. Rules that would cause
// such hits are refused when they are loaded.
var ErrUnsupported = errors.New("memcached: the limit is of a kind that only other stores can count")

var (
	errNoServers      = errors.New("memcached: no servers are known yet")
	errCounterContest = errors.New("memcached: the counter came and went between add and incr again and again")
)

const storeName = "memcached"

// The causes of hits without an answer, besides those of package remote.
const (
	causeMemory      = "memory"      // The server has no more memory.
	causeReply       = "reply"       // The server sent an error that no other cause names.
	causeServers     = "servers"     // No servers are known.
	causeUnsupported = "unsupported" // Memcached cannot count the hit.
)

var causes = []string{causeMemory, causeReply, causeServers, causeUnsupported}

func (protocol) CauseOf(err error) string {
	reply, isReply := errors.AsType[Error](err)
	switch {
	case isReply && strings.Contains(string(reply), "out of memory"):
		return causeMemory
	case isReply:
		return causeReply
	case errors.Is(err, errNoServers):
		return causeServers
	case errors.Is(err, ErrUnsupported):
		return causeUnsupported
	}
	return remote.CauseOf(err)
}

func (protocol) IsServerReply(err error) bool {
	_, ok := errors.AsType[Error](err)
	return ok
}
