package redis

import (
	"cmp"
	"errors"
	"strings"

	"github.com/mediocregopher/radix/v4/resp/resp3"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/remote"
)

// Error is an error reply of Redis. Its text may contain a key, so callers must not see it.
type Error string

func (e Error) Error() string { return "redis: " + string(e) }

// The causes of hits without an answer, besides those of package remote.
const (
	causeAuth       = "auth"      // The credentials are wrong, or their user lacks a right.
	causeReadOnly   = "read_only" // The server is a replica.
	causeLoading    = "loading"   // The server loads its data, or is a replica without a primary.
	causeMemory     = "memory"    // The server has no more memory.
	causeCluster    = "cluster"   // No node has the slot of the key, or all nodes redirect the hit.
	causeOtherReply = "reply"     // The server sent an error that no other cause names.
)

var causes = []string{causeAuth, causeReadOnly, causeLoading, causeMemory, causeCluster, causeOtherReply}

func (*protocol) CauseOf(err error) string {
	_, isRedirect := errors.AsType[*remote.Redirect](err)
	_, lacksToken := errors.AsType[*noTokenError](err)
	switch {
	case lacksToken:
		return causeAuth
	case errors.Is(err, errNotPrimary):
		return causeReadOnly
	case isRedirect, errors.Is(err, remote.ErrSlotWithoutNode):
		return causeCluster
	case errorReplyWord(err) != "":
		return cmp.Or(replyCauses[errorReplyWord(err)], causeOtherReply)
	}
	return remote.CauseOf(err)
}

// replyCauses are the causes of error replies by their first word.
var replyCauses = map[string]string{
	"NOAUTH": causeAuth, "WRONGPASS": causeAuth, "NOPERM": causeAuth, "READONLY": causeReadOnly,
	"LOADING": causeLoading, "MASTERDOWN": causeLoading, "OOM": causeMemory,
	"CLUSTERDOWN": causeCluster, "MOVED": causeCluster, "ASK": causeCluster, "TRYAGAIN": causeCluster,
	"CROSSSLOT": causeCluster,
}

// errorReplyWord returns the first word of an error reply, and "" for other errors. Before Redis 7,
// the error of a command in a script comes after the error of the script:
//
//	ERR Error running script (call to f_6b1b…): @user_script:5: @user_script: 5: -READONLY You can't …
func errorReplyWord(err error) string {
	reply, ok := errors.AsType[Error](err)
	if !ok {
		simple, _ := errors.AsType[resp3.SimpleError](err)
		reply = Error(simple.S)
	}
	if _, place, inScript := strings.Cut(string(reply), ": @user_script"); inScript {
		if _, inner, ok := strings.Cut(place, ": -"); ok {
			reply = Error(inner)
		}
	}
	word, _, _ := strings.Cut(string(reply), " ")
	return word
}

// isForeignValue reports whether reply says that a key holds what no counter is: a value of another type, or another
// text.
func isForeignValue(reply error) bool {
	text := reply.Error()
	return errorReplyWord(reply) == "WRONGTYPE" || errors.Is(reply, errNoNumber) ||
		strings.Contains(text, "value is not an integer") || strings.Contains(text, "the key holds no counter")
}

// algorithmOf returns the name of the algorithm that the first counter of c is for.
func algorithmOf(c command) string {
	script, ok := c.(*script)
	if !ok {
		return algorithm.FixedWindow.String()
	}
	l := &script.call.Hits[script.firstHit].Limit
	if l.Hold > 0 && l.Kind != algorithm.Concurrency {
		return l.Kind.String() + " with hold"
	}
	return l.Kind.String()
}

// redirectFromReply returns the remote.Redirect for MOVED, ASK or TRYAGAIN from the node at addr. It
// returns a reply that it cannot read as it is.
func redirectFromReply(reply error, addr string) error {
	words := strings.Fields(reply.Error()) // Example: redis: MOVED 7 10.0.0.7:6379
	switch {
	case len(words) > 1 && words[1] == "TRYAGAIN":
		return &remote.Redirect{AfterPause: true, Err: reply}
	case len(words) != 4:
		return reply
	}
	colon := strings.LastIndexByte(words[3], ':') // An IPv6 address has colons before the last one.
	if colon < 0 {
		return reply
	}
	to, err := joinAddr(strings.Trim(words[3][:colon], "[]"), words[3][colon+1:], addr)
	if err != nil {
		return reply
	}
	return &remote.Redirect{ToAddr: to, SendAsking: words[1] == "ASK", Err: reply}
}
