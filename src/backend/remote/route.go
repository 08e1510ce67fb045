package remote

import (
	"context"
	"errors"
	"time"
)

// Redirect is why a hit was not charged where it was sent, and where to try next. It
// may be sent again: the server that says so has not counted it.
type Redirect struct {
	To    string // empty: the server that has the key by now
	Ask   bool   // that server has to be told that it really is meant
	Later bool   // a moment from now
	Err   error
}

func (e *Redirect) Error() string { return e.Err.Error() }

func (e *Redirect) Unwrap() error { return e.Err }

// redirected returns the Redirect of hit i; nil if the hit has an answer.
func (c *Call) redirected(i int) *Redirect {
	e, _ := c.Hits[i].Err.(*Redirect) //nolint:errorlint // never wrapped
	return e
}

// serve hands c to the servers that have its keys and waits for the results. After an
// error they may still come, so the caller must not read them.
func (s *Store) serve(ctx context.Context, c *Call) error {
	t, err := s.awaitTable(ctx, c)
	if err != nil {
		return err
	}
	err = errUnsent
	if n := t.sole(c); n != nil {
		err = n.put(c)
	}
	switch {
	case errors.Is(err, errUnsent):
		c.failAll(errUnsent)
	case err != nil:
		return err
	default:
		if err = s.await(ctx, c, c); err != nil || !c.again {
			return err
		}
	}
	s.scatter(ctx, c)
	return nil
}

// await waits for the results of part, which may be c itself, until the deadline of c.
// After an error they may still come.
func (s *Store) await(ctx context.Context, c, part *Call) error {
	err := wait(ctx, c, s, part.done)
	if err == nil || part.arrivesLate(ctx) {
		return nil
	}
	part.gone.Store(true)
	return part.lateError(err, time.Now())
}

// scatter sends the hits of c that have no answer yet to the servers that have their
// keys, and again where those send them on, until all have an answer or the time is
// up. The others then say where they were sent last.
func (s *Store) scatter(ctx context.Context, c *Call) {
	for attempt := 0; c.expired == nil; attempt++ {
		s.gather(ctx, c, s.divide(c))
		again, later := false, attempt > 0
		for i := range c.Hits {
			if e := c.redirected(i); e != nil {
				again, later = true, later || e.Later
			}
		}
		if !again {
			return
		}
		if later { // servers may disagree for a moment; the loop checks c.expired
			_ = wait(ctx, c, s, time.After(time.Duration(min(attempt+1, 10))*retryPause))
		}
	}
}

// target returns the server for hit i of c: the one it was redirected to, or the one
// that has its key.
func (s *Store) target(c *Call, i int) (n *Node, ask bool, err error) {
	e := c.redirected(i)
	if e.To != "" {
		if n = s.node(e.To); n != nil {
			return n, e.Ask, nil
		}
	}
	n, err = s.Table().Owner(c.Key(i))
	if err != nil {
		s.checkSoon()
	}
	return n, false, err
}

// gather sends the parts of c and copies their results into c.
func (s *Store) gather(ctx context.Context, c *Call, parts map[destination]*Call) {
	for to, p := range parts {
		if err := to.node.put(p); err != nil {
			p.failAll(err)
			p.done <- struct{}{}
		}
	}
	for _, p := range parts {
		c.copyResults(p, s.await(ctx, c, p))
		s.release(p)
	}
}
