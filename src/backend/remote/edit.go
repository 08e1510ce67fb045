package remote

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// EditProtocol is what Redis and Memcached do differently when operators change counters.
type EditProtocol interface {
	// AddDeletions adds a hit with Delete to c for each key of h's counter at the instant now, in ns since the Unix
	// epoch.
	AddDeletions(c *Call, h *backend.Hit, now int64)
	// FindKeys calls found with the keys on the server of l that begin with one of prefixes, some at a time, until
	// found returns an error or ctx ends. found must not keep the keys.
	FindKeys(ctx context.Context, l *Link, prefixes [][]byte, found func(keys [][]byte) error) error
	// SetText stores a text under key for ttl on the server of l. Text returns it, or nil if there is none.
	SetText(ctx context.Context, l *Link, key string, text []byte, ttl time.Duration) error
	Text(ctx context.Context, l *Link, key string) ([]byte, error)
}

// SetCounts deletes the counters of the hits, and then charges them with the amounts; see backend.Editor.
func (s *Store) SetCounts(ctx context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil {
		return err
	}
	now := b.UnixNano()
	c := s.newCall()
	defer s.releaseCall(c)
	set := backend.Batch{Now: b.Now}
	for i := range b.Hits {
		h := b.Hits[i]
		s.protocol.AddDeletions(c, &h, now)
		if h.Amount > 0 {
			h.Op, h.Atomic, h.GroupID, h.HoldID = algorithm.Force, false, uint16(i), algorithm.HoldID{}
			set.Hits = append(set.Hits, h)
		}
	}
	if err := s.delete(ctx, c); err != nil || len(set.Hits) == 0 {
		return err
	}
	set.Verdicts = make([]backend.Verdict, len(set.Hits))
	if err := s.Take(ctx, &set); err != nil {
		return err
	}
	return set.FirstErr()
}

// delete sends c, all of whose hits have Delete. It returns the first error of a hit.
func (s *Store) delete(ctx context.Context, c *Call) error {
	if len(c.Hits) == 0 {
		return nil
	}
	if err := s.sendAndWait(ctx, c); err != nil {
		return err
	}
	for i := range c.Hits {
		if err := c.Hits[i].Err; err != nil {
			return err
		}
	}
	return nil
}

// AddDeletion adds a hit that deletes the key that was appended to c.Keys.
func (c *Call) AddDeletion() { c.AddHit(Hit{Delete: true, Cost: CommandCost}) }

// maxDeletedKeys is how many keys one call deletes, so that it needs far less time than the Timeout.
const maxDeletedKeys = 256

// deleteKeys deletes keys, in several calls if they are many.
func (s *Store) deleteKeys(ctx context.Context, keys [][]byte) error {
	for len(keys) > 0 {
		n := min(len(keys), maxDeletedKeys)
		c := s.newCall()
		for _, key := range keys[:n] {
			c.Keys = append(c.Keys, key...)
			c.AddDeletion()
		}
		err := s.delete(ctx, c)
		s.releaseCall(c)
		if err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}

// minEditTimeout is the least timeout of a command that searches all keys or that no call waits for.
const minEditTimeout = time.Second

// ResetPrefixes searches the keys of all servers and deletes what it finds; see backend.Editor.
func (s *Store) ResetPrefixes(ctx context.Context, prefixes []backend.KeyPrefix, dryRun bool,
	found func(names [][]byte),
) error {
	t, err := s.servers(ctx)
	if err != nil {
		return err
	}
	texts := searchedPrefixes(prefixes)
	for _, addr := range t.Addrs {
		l := NewLink(s.Access.WithMinTimeout(minEditTimeout), addr)
		err := s.protocol.FindKeys(ctx, l, texts, func(keys [][]byte) error {
			if !dryRun {
				if err := s.deleteKeys(ctx, keys); err != nil {
					return err
				}
			}
			found(keys)
			return ctx.Err()
		})
		l.Close()
		if err != nil {
			return fmt.Errorf("%s: the search for counters at %s: %w", s.Access.Name, addr, err)
		}
	}
	return nil
}

func (s *Store) servers(ctx context.Context) (*Table, error) {
	c := s.newCall()
	defer s.releaseCall(c)
	c.deadlineTimer.Reset(minEditTimeout)
	defer c.deadlineTimer.Stop()
	return s.awaitTable(ctx, c)
}

// searchedPrefixes returns the starts of the names that AppendKey gives the counters: with and without a hash tag.
func searchedPrefixes(prefixes []backend.KeyPrefix) (texts [][]byte) {
	for _, p := range prefixes {
		tagged := appendTagStart(nil, p.Text)
		if p.TagLength > 0 {
			tagged = append(append(appendTagStart(nil, p.Text[:p.TagLength]), '}'), p.Text[p.TagLength:]...)
		}
		texts = append(texts, p.Text, tagged)
	}
	return texts
}

// HasAnyPrefix reports whether key begins with one of prefixes.
func HasAnyPrefix(key []byte, prefixes [][]byte) bool {
	return slices.ContainsFunc(prefixes, func(p []byte) bool { return bytes.HasPrefix(key, p) })
}

// SetText stores a text under key for ttl, for all processes that share the store. It is for rare messages, not for
// requests.
func (s *Store) SetText(ctx context.Context, key string, text []byte, ttl time.Duration) error {
	return s.WithServerOf(ctx, key, func(l *Link) error { return s.protocol.SetText(ctx, l, key, text, ttl) })
}

// Text returns the text that SetText stored, or nil if there is none.
func (s *Store) Text(ctx context.Context, key string) (text []byte, err error) {
	err = s.WithServerOf(ctx, key, func(l *Link) (err error) {
		text, err = s.protocol.Text(ctx, l, key)
		return err
	})
	return text, err
}

// WithServerOf calls do with a connection to the server that has key. It is for rare commands, not for requests.
func (s *Store) WithServerOf(ctx context.Context, key string, do func(*Link) error) error {
	t, err := s.servers(ctx)
	if err != nil {
		return err
	}
	n, err := t.NodeOfKey([]byte(key))
	if err != nil {
		s.requestServerSearch()
		return err
	}
	l := s.rareLinks.take(n.Addr)
	if l == nil {
		l = NewLink(s.Access.WithMinTimeout(minEditTimeout), n.Addr)
	}
	if err = do(l); err != nil {
		l.Close()
		s.requestServerSearch() // The key may have moved to another server.
		return err
	}
	s.rareLinks.keep(l)
	return nil
}

// rareLinkIdleTime is how long a connection for rare commands stays open after a command.
const rareLinkIdleTime = 2 * time.Second

// rareLinks keeps a connection for rare commands for a moment, so that what is asked several times a second opens no
// connection each time.
type rareLinks struct {
	mu       sync.Mutex  // guards the fields below
	idle     *Link       // nil while it is in use
	end      *time.Timer // closes idle; nil before the first command
	isClosed bool
}

// take returns the idle connection if it is to the server at addr, and nil if not. It closes one to another server.
func (r *rareLinks) take(addr string) *Link {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.idle
	r.idle = nil
	if l != nil && l.Addr != addr {
		l.Close()
		return nil
	}
	return l
}

// keep makes l the idle connection, or closes it if there is another one.
func (r *rareLinks) keep(l *Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.idle != nil || r.isClosed {
		l.Close()
		return
	}
	r.idle = l
	if r.end == nil {
		r.end = time.AfterFunc(rareLinkIdleTime, r.closeIdle)
	} else {
		r.end.Reset(rareLinkIdleTime)
	}
}

func (r *rareLinks) closeIdle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.idle != nil {
		r.idle.Close()
		r.idle = nil
	}
}

// close closes the idle connection, and those that are kept later.
func (r *rareLinks) close() {
	r.closeIdle()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.isClosed = true
	if r.end != nil {
		r.end.Stop()
	}
}
