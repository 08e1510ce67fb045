package memcached

import (
	"errors"
	"strings"

	"ratelimit/src/backend/remote"
)

// Error is an error reply of Memcached.
type Error string

func (e Error) Error() string { return "memcached: " + string(e) }

// ErrUnsupported is a hit that Memcached cannot count: rules with such are refused when
// they are loaded.
var ErrUnsupported = errors.New("memcached: the limit is of a kind that only other stores can count")

var (
	errNoServers = errors.New("memcached: no servers are known yet")
	errContest   = errors.New("memcached: the counter came and went between add and incr again and again")
)

// name is that of the store in errors.
const name = "memcached"

// The causes of hits without an answer, besides those of package remote.
const (
	causeMemory      = "memory"      // the server has no more memory
	causeReply       = "reply"       // any other error reply
	causeServers     = "servers"     // it is not known which servers there are
	causeUnsupported = "unsupported" // Memcached cannot do that
)

var causes = []string{causeMemory, causeReply, causeServers, causeUnsupported}

// causeOf returns the cause under which the error of a hit is counted.
func causeOf(err error) string {
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

// isAnswer reports whether err is a reply of a server, which is therefore reachable.
func isAnswer(err error) bool {
	_, ok := errors.AsType[Error](err)
	return ok
}
