package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/mediocregopher/radix/v4"
)

// redirect is why a hit was not charged where it was sent, and where to try next.
type redirect struct {
	to    string // "": the node that has the key by now
	ask   bool   // that one has to be told that it really is meant
	later bool   // a moment from now
	err   error
}

func (e *redirect) Error() string { return e.err.Error() }

func (e *redirect) Unwrap() error { return e.err }

// errUnsent is a hit that was not sent to anybody.
var errUnsent = &redirect{err: errors.New("redis: not sent")}

// redirectOf is what an error reply from the node at addr says of where to go
// instead; the reply itself if nothing.
func redirectOf(reply error, addr string) error {
	f := strings.Fields(reply.Error()) // redis: MOVED slot host:port
	switch {
	case len(f) > 1 && f[1] == "TRYAGAIN":
		return &redirect{later: true, err: reply}
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
	return &redirect{to: to, ask: f[1] == "ASK", err: reply}
}

// redirected is why hit i has to be sent again; nil if it has an answer.
func (c *call) redirected(i int) *redirect {
	e, _ := c.results[i].err.(*redirect) //nolint:errorlint // never wrapped
	return e
}

// give hands c to the nodes that have its keys and waits for the results. After an error
// they may still come, so the caller must not read them.
func (s *Store) give(ctx context.Context, c *call) error {
	t, err := s.known(ctx, c)
	if err != nil {
		return err
	}
	if n := t.sole(c); n != nil {
		err := n.put(c)
		if err == nil {
			if err := until(ctx, c, c.Done); err != nil && !c.arrives(ctx) {
				c.Gone.Store(true)
				return c.late(err, time.Now())
			}
		} else if !errors.Is(err, errUnsent) {
			return err
		}
		if err == nil && !c.again {
			return nil
		}
		if err != nil {
			c.fail(err)
		}
	} else {
		c.fail(errUnsent)
	}
	s.scatter(ctx, c)
	return nil
}

// until waits for done within the time that root has.
func until[T any](ctx context.Context, root *call, done <-chan T) error {
	if root.up == nil {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			root.up = fmt.Errorf("redis: %w", context.Cause(ctx))
		case <-root.Timer.C:
			root.up = ErrTimeout
		}
	}
	select {
	case <-done: // at the same moment, on a busy machine
		return nil
	default:
		return root.up
	}
}

// known is the table, once there is one.
func (s *Store) known(ctx context.Context, c *call) (*table, error) {
	for {
		t := s.table.Load()
		switch {
		case t.nodes != nil:
			return t, nil
		case t.err != nil:
			s.kick()
			return nil, t.err
		}
		if err := until(ctx, c, t.replaced); err != nil {
			return nil, err
		}
	}
}

// sole is the node that can take c as it is; nil if there is none.
func (t *table) sole(c *call) *node {
	if t.slots == nil {
		return t.only
	}
	var sole *node
	for i := range c.hits {
		n := t.slots[radix.ClusterSlot(c.key(i))]
		if n == nil || sole != nil && n != sole || c.hits[i].last > i+1 {
			return nil
		}
		sole = n
	}
	return sole
}

// scatter sends the hits of root that have no answer yet to the nodes that
// have their keys, and again where those send them on, until all have an answer
// or the time is up. What has none then says where it was sent last.
func (s *Store) scatter(ctx context.Context, root *call) {
	for attempt := 0; root.up == nil; attempt++ {
		for i := range root.results {
			if e := root.redirected(i); e != nil && e != errUnsent {
				s.stats.redirects.Add(1)
			}
		}
		s.gather(ctx, root, s.divide(ctx, root))
		again, later := false, attempt > 0
		for i := range root.results {
			if e := root.redirected(i); e != nil {
				again, later = true, later || e.later
			}
		}
		if !again {
			return
		}
		if later { // not at once: nodes may disagree for a moment
			_ = until(ctx, root, time.After(time.Duration(min(attempt+1, 10))*2*time.Millisecond)) // the loop looks
		}
	}
}

// target is the node for hit i of root: the one it was redirected to, or the one that has
// its key.
func (s *Store) target(ctx context.Context, root *call, i int) (n *node, ask bool, err error) {
	e := root.redirected(i)
	if e.to != "" {
		n, err = s.meet(ctx, root, e.to)
		return n, e.ask, err
	}
	n, err = s.table.Load().has(root.key(i))
	if err != nil {
		s.kick()
	}
	return n, false, err
}

// meet is the node at addr, which may be a new one.
func (s *Store) meet(ctx context.Context, root *call, addr string) (*node, error) {
	for {
		t := s.table.Load()
		if n := t.nodes[addr]; n != nil {
			return n, nil
		}
		select {
		case s.discovered <- addr:
		default: // others are being met; then it is our turn
		}
		if err := until(ctx, root, t.replaced); err != nil {
			return nil, err
		}
	}
}

// gather sends the parts and puts their results into root.
func (s *Store) gather(ctx context.Context, root *call, parts []part) {
	for _, p := range parts {
		if err := p.node.put(p.call); err != nil {
			p.fail(err)
			p.Done <- struct{}{}
		}
	}
	for _, p := range parts {
		err := until(ctx, root, p.Done)
		switch {
		case err == nil:
		case p.arrives(ctx):
			err = nil
		default:
			err = p.late(err, time.Now())
		}
		for i, of := range p.of {
			if err != nil {
				root.results[of] = result{err: err}
			} else {
				root.take(int(of), p.call, i)
			}
		}
		if err != nil {
			p.Gone.Store(true)
		}
		s.stats.release(p.call)
	}
}
