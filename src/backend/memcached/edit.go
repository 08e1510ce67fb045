package memcached

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

// AddDeletions adds the deletion of h's keys to c. A sliding window counter has a key for each of its two windows.
func (p protocol) AddDeletions(c *remote.Call, h *backend.Hit, now int64) {
	windows := int64(1)
	if h.Limit.Kind == algorithm.SlidingWindowCounter {
		windows = 2
	}
	for ago := range windows {
		c.Keys = appendKey(c.Keys, h, now, p.store.cfg.TagKeys, ago)
		c.AddDeletion()
	}
}

// maxDumpTime bounds the time in which a server lists its keys.
const maxDumpTime = 5 * time.Minute

// keysPerFind is how many keys FindKeys passes on at a time.
const keysPerFind = 256

// errNoDump is wrapped by the error of a server that does not list its keys.
var errNoDump = errors.New("it does not list its keys with lru_crawler metadump; Memcached 1.4.31 or later does," +
	" unless it was started with -o no_lru_crawler or -o no_modern, or is behind a proxy")

// FindKeys reads the names of all keys of a server with "lru_crawler metadump all". Counters whose keys are hashes are
// not found.
func (p protocol) FindKeys(ctx context.Context, l *remote.Link, prefixes [][]byte,
	found func(keys [][]byte) error,
) error {
	l = remote.NewLink(l.Access.WithMinTimeout(maxDumpTime), l.Addr)
	defer l.Close()
	var stopped error // stopped is the error of found.
	err := l.Do(ctx, func(c *remote.Conn) error {
		defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)); _ = c.Conn.Close() })()
		if _, err := c.Write([]byte("lru_crawler metadump all\r\n")); err != nil {
			return err
		}
		var keys [][]byte
		pass := func() {
			if len(keys) > 0 && stopped == nil {
				stopped = found(keys)
			}
			keys = keys[:0]
		}
		for stopped == nil {
			key, end, err := readDumpLine(c.Replies)
			switch {
			case err != nil:
				return err
			case end:
				pass()
				return nil
			case remote.HasAnyPrefix(key, prefixes):
				if keys = append(keys, key); len(keys) == keysPerFind {
					pass()
				}
			}
		}
		return stopped // The rest of the dump is not read, so the connection must be closed.
	})
	switch {
	case stopped != nil:
		return stopped
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// readDumpLine reads a line of a dump, such as "key=domain_user_alex_1767225600 exp=1767225662 la=1767225601 cas=7
// fetch=no cls=3 size=80". The key is percent-encoded. end reports whether it is the last line.
func readDumpLine(br *bufio.Reader) (key []byte, end bool, err error) {
	line, err := br.ReadSlice('\n')
	if err != nil {
		return nil, false, err
	}
	line = bytes.TrimRight(line, "\r\n")
	name, isKey := bytes.CutPrefix(line, []byte("key="))
	switch {
	case string(line) == "END":
		return nil, true, nil
	case bytes.HasPrefix(line, []byte("BUSY")):
		return nil, false, fmt.Errorf("it is listing its keys for another client; try again in some seconds (%.80q)",
			line)
	case !isKey:
		return nil, false, fmt.Errorf("%w (%.80q)", errNoDump, line)
	}
	name, _, _ = bytes.Cut(name, []byte(" "))
	text, err := url.PathUnescape(string(name))
	if err != nil {
		return nil, false, fmt.Errorf("a key in its list cannot be read: %w", err)
	}
	return []byte(text), false, nil
}

// SetText stores text with "set".
func (p protocol) SetText(ctx context.Context, l *remote.Link, key string, text []byte, ttl time.Duration) error {
	name := legalizeKey([]byte(key), 0)
	return l.Do(ctx, func(c *remote.Conn) error {
		command := fmt.Appendf(nil, "set %s 0 %d %d\r\n%s\r\n", name, expiration(time.Now(), int64(ttl/time.Second)),
			len(text), text)
		if _, err := c.Write(command); err != nil {
			return err
		}
		line, err := c.Replies.ReadString('\n')
		if err == nil && line != "STORED\r\n" {
			err = Error(strings.TrimRight(line, "\r\n"))
		}
		return err
	})
}

// maxTextBytes is the longest text that Text reads: an item of Memcached is at most 1 MiB long by default.
const maxTextBytes = 1 << 20

// Text reads a text with "get".
func (p protocol) Text(ctx context.Context, l *remote.Link, key string) (text []byte, err error) {
	name := legalizeKey([]byte(key), 0)
	err = l.Do(ctx, func(c *remote.Conn) error {
		if _, err := c.Write(fmt.Appendf(nil, "get %s\r\n", name)); err != nil {
			return err
		}
		line, err := c.Replies.ReadString('\n')
		if err != nil || line == "END\r\n" {
			return err
		}
		words := strings.Fields(line)
		if len(words) != 4 || words[0] != "VALUE" {
			return Error(strings.TrimRight(line, "\r\n"))
		}
		size, err := strconv.Atoi(words[3])
		if err != nil || size < 0 || size > maxTextBytes {
			return fmt.Errorf("a text of %.20s bytes", words[3])
		}
		const end = "\r\nEND\r\n"
		text = make([]byte, size+len(end))
		if _, err := io.ReadFull(c.Replies, text); err != nil {
			return err
		}
		if string(text[size:]) != end {
			return errors.New("a text without its end")
		}
		text = text[:size]
		return nil
	})
	return text, err
}
