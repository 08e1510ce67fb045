package redis

import (
	"errors"
	"strings"

	"github.com/mediocregopher/radix/v4/resp/resp3"

	"ratelimit/src/backend/remote"
)

// Error is an error reply of Redis. Its text may name a key: it is for logs,
// never for callers.
type Error string

func (e Error) Error() string { return "redis: " + string(e) }

// The causes of hits without an answer, besides those of package remote.
const (
	causeAuth     = "auth"      // the server wants other credentials, or allows less
	causeReadOnly = "read_only" // it is a replica
	causeLoading  = "loading"   // it loads its data, or lost its primary
	causeMemory   = "memory"    // it has no more memory
	causeCluster  = "cluster"   // no node has the key's slot, or all redirect us
	causeReply    = "reply"     // any other error reply
)

var causes = []string{causeAuth, causeReadOnly, causeLoading, causeMemory, causeCluster, causeReply}

// causeOf is what a hit's error is counted as.
func causeOf(err error) string {
	_, isRedirect := errors.AsType[*remote.Redirect](err)
	switch {
	case errors.Is(err, errReplica):
		return causeReadOnly
	case isRedirect, errors.Is(err, remote.ErrNoOwner):
		return causeCluster
	case replyWord(err) != "":
		return causeOfReply(replyWord(err))
	}
	return remote.CauseOf(err)
}

// isAnswer reports whether err is something that a server said: it is there.
func isAnswer(err error) bool { return errors.Is(err, errReplica) || replyWord(err) != "" }

func causeOfReply(word string) string {
	switch word {
	case "NOAUTH", "WRONGPASS", "NOPERM":
		return causeAuth
	case "READONLY":
		return causeReadOnly
	case "LOADING", "MASTERDOWN":
		return causeLoading
	case "OOM":
		return causeMemory
	case "CLUSTERDOWN", "MOVED", "ASK", "TRYAGAIN", "CROSSSLOT":
		return causeCluster
	}
	return causeReply
}

// replyWord returns the first word of an error reply; empty if err is none. Before
// Redis 7, the error of a command in a script stands behind that of the script:
//
//	ERR Error running script (call to f_6b1b…): @user_script:5: @user_script: 5: -READONLY You can't …
func replyWord(err error) string {
	reply, ours := errors.AsType[Error](err)
	if !ours {
		theirs, _ := errors.AsType[resp3.SimpleError](err)
		reply = Error(theirs.S)
	}
	if _, place, inScript := strings.Cut(string(reply), ": @user_script"); inScript {
		if _, inner, ok := strings.Cut(place, ": -"); ok {
			reply = Error(inner)
		}
	}
	word, _, _ := strings.Cut(string(reply), " ")
	return word
}
