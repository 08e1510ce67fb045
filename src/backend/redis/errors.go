package redis

import (
	"cmp"
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

// causeOf returns the cause under which the error of a hit is counted.
func causeOf(err error) string {
	_, isRedirect := errors.AsType[*remote.Redirect](err)
	switch {
	case errors.Is(err, errReplica):
		return causeReadOnly
	case isRedirect, errors.Is(err, remote.ErrNoOwner):
		return causeCluster
	case replyWord(err) != "":
		return cmp.Or(replyCauses[replyWord(err)], causeReply)
	}
	return remote.CauseOf(err)
}

// isAnswer reports whether err is a reply of a server, which is therefore reachable.
func isAnswer(err error) bool { return errors.Is(err, errReplica) || replyWord(err) != "" }

// replyCauses are the causes of error replies by their first word.
var replyCauses = map[string]string{
	"NOAUTH": causeAuth, "WRONGPASS": causeAuth, "NOPERM": causeAuth, "READONLY": causeReadOnly,
	"LOADING": causeLoading, "MASTERDOWN": causeLoading, "OOM": causeMemory,
	"CLUSTERDOWN": causeCluster, "MOVED": causeCluster, "ASK": causeCluster, "TRYAGAIN": causeCluster, "CROSSSLOT": causeCluster,
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

// redirectOf returns the remote.Redirect that an error reply of the node at addr names (MOVED, ASK
// or TRYAGAIN), or the reply itself if it names none.
func redirectOf(reply error, addr string) error {
	f := strings.Fields(reply.Error()) // redis: MOVED slot host:port
	switch {
	case len(f) > 1 && f[1] == "TRYAGAIN":
		return &remote.Redirect{Later: true, Err: reply}
	case len(f) != 4:
		return reply
	}
	at := strings.LastIndexByte(f[3], ':') // of IPv6 too
	if at < 0 {
		return reply
	}
	to, err := joinAddr(strings.Trim(f[3][:at], "[]"), f[3][at+1:], addr)
	if err != nil {
		return reply
	}
	return &remote.Redirect{To: to, Ask: f[1] == "ASK", Err: reply}
}
