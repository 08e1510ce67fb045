package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/mediocregopher/radix/v4"

	"ratelimit/src/backend/remote"
)

// Forget deletes all keys that begin with prefix, hash tags apart, and returns
// how many there were. It looks at every key of the server, or of the primaries
// of a cluster, over connections of its own; Run need not run. What is counted
// meanwhile, and slots that move, may be missed.
func (s *Store) Forget(ctx context.Context, prefix string) (int, error) {
	if prefix == "" {
		return 0, errors.New("redis: no prefix says what to forget")
	}
	found, err := s.find(ctx)
	if err != nil {
		return 0, err
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	var errs []error
	sum := 0
	for _, addr := range found.Addrs {
		all.Go(func() {
			l := remote.NewLink(&s.Access, addr)
			defer l.Close()
			n, err := forget(ctx, l, prefix)
			mu.Lock()
			defer mu.Unlock()
			sum += n
			errs = append(errs, err)
		})
	}
	all.Wait()
	return sum, remote.JoinErrors(errs)
}

// scanCount is how many keys a server looks at in one go, which takes it well
// below a millisecond.
const scanCount = "1000"

// forget deletes the keys that begin with prefix on one server.
func forget(ctx context.Context, l *remote.Link, prefix string) (n int, err error) {
	pattern := "*" + literal.Replace(prefix) + "*" // also behind the brace of a hash tag
	for cursor := "0"; ; {
		if err := ctx.Err(); err != nil {
			return n, fmt.Errorf("redis: %w", err)
		}
		q := question{words: []string{"SCAN", cursor, "MATCH", pattern, "COUNT", scanCount}}
		if err := l.Do(ctx, &q); err != nil {
			return n, err
		}
		if q.refused != nil {
			return n, q.refused
		}
		next, keys, err := readScan(q.reply)
		if err != nil {
			return n, fmt.Errorf("redis: %s: %w", l.Addr, err)
		}
		keys = slices.DeleteFunc(keys, func(key string) bool {
			return !strings.HasPrefix(key, prefix) && !strings.HasPrefix(key, "{"+prefix)
		})
		deleted, err := unlink(ctx, l, keys)
		if err != nil {
			return n, err
		}
		n += deleted
		if cursor = next; cursor == "0" {
			return n, nil
		}
	}
}

// unlink deletes keys one by one, as in a cluster they have different slots, but
// in one round trip.
func unlink(ctx context.Context, l *remote.Link, keys []string) (n int, err error) {
	if len(keys) == 0 {
		return 0, nil
	}
	p := radix.NewPipeline()
	deleted := make([]int, len(keys))
	for i, key := range keys {
		p.Append(radix.Cmd(&deleted[i], "UNLINK", key))
	}
	err = l.Do(ctx, action{p})
	for _, d := range deleted {
		n += d
	}
	return n, err
}

// action makes an action of radix a remote.Trip.
type action struct{ radix.Action }

// Trip performs the action on s.
func (a action) Trip(ctx context.Context, s remote.Session) error {
	return plain(a.Perform(ctx, s.(session)))
}

// literal escapes the characters that have a meaning in patterns of Redis.
var literal = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`)

// readScan reads the reply to SCAN: the next cursor, and some keys.
func readScan(reply []any) (next string, keys []string, err error) {
	bad := errors.New("an unexpected reply to SCAN")
	if len(reply) != 2 {
		return "", nil, bad
	}
	next, ok := reply[0].(string)
	list, ok2 := reply[1].([]any)
	if !ok || !ok2 {
		return "", nil, bad
	}
	for _, v := range list {
		key, ok := v.(string)
		if !ok {
			return "", nil, bad
		}
		keys = append(keys, key)
	}
	return next, keys, nil
}
