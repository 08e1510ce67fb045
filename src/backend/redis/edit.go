package redis

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

// AddDeletions adds the deletions of h's keys to c. The key of a fixed window is that of the current one. A limit with
// holds may have a second key.
func (p *protocol) AddDeletions(c *remote.Call, h *backend.Hit, now int64) {
	c.Keys = remote.AppendKey(c.Keys, h, now, p.cfg.TagKeys)
	c.AddDeletion()
	keyEnd := len(c.Keys)
	if c.Keys = remote.AppendHoldsKey(c.Keys, h); len(c.Keys) > keyEnd {
		c.AddDeletion()
	}
}

// scanCount is about how many keys Redis looks at for one SCAN. It serves no other client meanwhile, for less than a
// millisecond.
const scanCount = "1000"

// FindKeys searches all keys of a server with SCAN, once for the prefixes with a hash tag and once for those without.
func (*protocol) FindKeys(ctx context.Context, l *remote.Link, prefixes [][]byte,
	found func(keys [][]byte) error,
) error {
	var tagged, others [][]byte
	for _, p := range prefixes {
		if p[0] == '{' {
			tagged = append(tagged, p)
		} else {
			others = append(others, p)
		}
	}
	for _, list := range [][][]byte{others, tagged} {
		if len(list) == 0 {
			continue
		}
		if err := scan(ctx, l, list, found); err != nil {
			return err
		}
	}
	return nil
}

// scan calls found with the keys that begin with one of prefixes. Redis compares them with the longest start that all
// prefixes have.
func scan(ctx context.Context, l *remote.Link, prefixes [][]byte, found func(keys [][]byte) error) error {
	cursor, pattern := "0", globEscaper.Replace(string(commonPrefix(prefixes)))+"*"
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		reply, err := performList(ctx, l, "SCAN", cursor, "MATCH", pattern, "COUNT", scanCount)
		if errorReplyWord(err) == "NOPERM" {
			return &missingRightError{err}
		}
		if err != nil {
			return err
		}
		next, keys, err := readScanReply(reply, prefixes)
		if err != nil {
			return err
		}
		if len(keys) > 0 {
			if err := found(keys); err != nil {
				return err
			}
		}
		if cursor = next; cursor == "0" {
			return nil
		}
	}
}

// missingRightError is the error of a user without the right to use SCAN.
type missingRightError struct{ reply error }

func (e *missingRightError) Error() string {
	return "the user of Redis needs the right to use SCAN, which ACL SETUSER <user> +scan gives: " + e.reply.Error()
}

func (e *missingRightError) Unwrap() error { return e.reply }

var errScanReply = errors.New("redis: a reply to SCAN without a cursor and a list of keys")

// readScanReply returns the cursor in a reply to SCAN, and the keys that begin with one of prefixes.
func readScanReply(reply []any, prefixes [][]byte) (cursor string, keys [][]byte, err error) {
	if len(reply) != 2 {
		return "", nil, errScanReply
	}
	cursor, isText := reply[0].(string)
	list, isList := reply[1].([]any)
	if _, err := strconv.ParseUint(cursor, 10, 64); err != nil || !isText || !isList && reply[1] != nil {
		return "", nil, errScanReply
	}
	for _, v := range list {
		text, isText := v.(string)
		if !isText {
			return "", nil, errScanReply
		}
		if key := []byte(text); remote.HasAnyPrefix(key, prefixes) {
			keys = append(keys, key)
		}
	}
	return cursor, keys, nil
}

func commonPrefix(texts [][]byte) []byte {
	common := texts[0]
	for _, t := range texts[1:] {
		n := 0
		for n < len(common) && n < len(t) && common[n] == t[n] {
			n++
		}
		common = common[:n]
	}
	return common
}

// globEscaper makes a pattern of Redis that matches only the text.
var globEscaper = strings.NewReplacer("*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`, `\`, `\\`)

// SetText stores text with SET.
func (*protocol) SetText(ctx context.Context, l *remote.Link, key string, text []byte, ttl time.Duration) error {
	_, err := perform(ctx, l, "SET", key, string(text), "EX", strconv.FormatInt(int64(ttl/time.Second), 10))
	return err
}

// Text reads a text with GET.
func (*protocol) Text(ctx context.Context, l *remote.Link, key string) ([]byte, error) {
	v, err := perform(ctx, l, "GET", key)
	text, isText := v.(string)
	if err != nil || !isText {
		return nil, err
	}
	return []byte(text), nil
}

// Command sends a command to the server of s that has key, and returns the reply: a string, an int64, nil, or a list of
// these. While a failover or a migration moves the key, it tries again. A reply that is an error is returned as an
// Error. It is for rare commands, not for requests.
func Command(ctx context.Context, s *Store, key string, words ...string) (reply any, err error) {
	for range maxCommandAttempts {
		err = s.WithServerOf(ctx, key, func(l *remote.Link) error {
			reply, err = perform(ctx, l, words...)
			return err
		})
		if !slices.Contains(passingErrors, errorReplyWord(err)) {
			return reply, err
		}
		select {
		case <-time.After(minLayoutPause): // The servers are searched meanwhile.
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return reply, err
}

// maxCommandAttempts is how often Command tries again, one minLayoutPause after the other.
const maxCommandAttempts = 30

// passingErrors begin the error replies of servers whose keys move.
var passingErrors = []string{"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY", "LOADING"}
