package redis

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"github.com/mediocregopher/radix/v4/resp/resp3"
)

// Error is an error reply of Redis. Its text may name a key: it is for logs,
// never for callers.
type Error string

func (e Error) Error() string { return "redis: " + string(e) }

var (
	// ErrTimeout: Redis did not answer in time.
	ErrTimeout = errors.New("redis: no answer in time")
	// ErrBusy: too many calls wait already.
	ErrBusy = errors.New("redis: too many calls are waiting")

	errClosed = errors.New("redis: the store is closed")
)

// The causes of hits without an answer, as they are counted.
const (
	causeTimeout    = iota // no answer in time, ours or the caller's
	causeLeft              // the caller left
	causeBusy              // too many calls wait
	causeConnect           // no connection could be made
	causeConnection        // one broke or stood still
	causeAuth              // the server wants other credentials, or allows less
	causeReadOnly          // it is a replica
	causeLoading           // it loads its data, or lost its primary
	causeMemory            // it has no more memory
	causeCluster           // nobody has the key's slot, or all send us on
	causeReply             // any other error reply
	causeOther
	causes
)

var causeNames = [causes]string{
	"timeout", "left", "busy", "connect", "connection", "auth", "read_only", "loading", "memory", "cluster", "reply", "other",
}

// causeOf is what a hit's error is counted as.
func causeOf(err error) int {
	link, isLink := errors.AsType[*linkError](err)
	_, isSentOn := errors.AsType[*sentOn](err)
	switch {
	case errors.Is(err, errReplica):
		return causeReadOnly
	case isSentOn, errors.Is(err, errNoOwner):
		return causeCluster
	case replyWord(err) != "":
		return causeOfReply(replyWord(err))
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
	}
	return causeOther
}

func causeOfReply(word string) int {
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

// replyWord is the first word of an error reply, to us or to radix; empty if err
// is none. Before Redis 7, what a command in a script says stands behind what
// the script says:
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
