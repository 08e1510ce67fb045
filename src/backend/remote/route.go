package remote

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"
)

// Redirect is the error of a hit that the server did not count, because the hit must be
// sent to another server or at another time.
type Redirect struct {
	ToAddr     string // the address of the next server. If it is "", the server that has the key by now is next.
	SendAsking bool   // ASKING must be sent first, because the slot of the key is moving
	AfterPause bool   // the hit must be sent after a pause
	Err        error
}

func (e *Redirect) Error() string { return e.Err.Error() }

func (e *Redirect) Unwrap() error { return e.Err }

// redirectOfHit returns the Redirect that is the result of hit i. It returns nil for other results.
func (c *Call) redirectOfHit(i int) *Redirect {
	e, _ := c.Hits[i].Err.(*Redirect) //nolint:errorlint // it is never wrapped
	return e
}

// sendAndWait sends c to the servers that have its keys and waits for the results, for the Timeout or until a little
// before ctx ends. After an error a writer may still set results, so the caller must not read them.
func (s *Store) sendAndWait(ctx context.Context, c *Call) error {
	wait := maxCallWait(ctx, s.Config.Timeout)
	c.deadline = time.Now().Add(wait)
	c.deadlineTimer.Reset(wait)
	defer c.deadlineTimer.Stop()
	t, err := s.awaitTable(ctx, c)
	if err != nil {
		return err
	}
	err = errUnsent
	if n := t.soleNode(c); n != nil {
		err = n.enqueue(c)
	}
	switch {
	case errors.Is(err, errUnsent):
		c.failAllHits(errUnsent)
	case err != nil:
		return err
	default:
		if err = s.awaitResults(ctx, c, c); err != nil || !c.hasRedirect {
			return err
		}
	}
	s.sendInParts(ctx, c)
	return nil
}

// awaitResults waits until part, which may be c itself, has its results or the deadline of c has
// passed. After an error a writer may still set results.
func (s *Store) awaitResults(ctx context.Context, c, part *Call) error {
	err := waitUntilDeadline(ctx, c, s, part.resultsReady)
	if err == nil || part.awaitLateAnswer(ctx) {
		return nil
	}
	part.abandoned.Store(true)
	return part.lateError(err, time.Now())
}

// A hit that is redirected more than once is sent after a pause. The pause grows by
// redirectPause with each attempt, up to maxRedirectPauses times.
const (
	redirectPause     = 2 * time.Millisecond
	maxRedirectPauses = 10
)

// sendInParts divides c among the servers that have its keys, and sends redirected hits again
// until all have an answer or the deadline passes. Hits without an answer keep their last Redirect.
func (s *Store) sendInParts(ctx context.Context, c *Call) {
	for attempt := 1; c.deadlineError == nil; attempt++ {
		parts := s.divideByServer(c)
		for to, p := range parts {
			if err := to.node.enqueue(p); err != nil {
				p.failAllHits(err)
				p.resultsReady <- struct{}{}
			}
		}
		for _, p := range parts {
			c.copyPartResults(p, s.awaitResults(ctx, c, p))
			s.releaseCall(p)
		}
		unanswered, pause := false, attempt > 1
		for i := range c.Hits {
			if e := c.redirectOfHit(i); e != nil {
				unanswered, pause = true, pause || e.AfterPause
			}
		}
		if !unanswered {
			return
		}
		if pause { // An error of the wait is also in c.deadlineError, which ends the loop.
			_ = waitUntilDeadline(ctx, c, s, time.After(time.Duration(min(attempt, maxRedirectPauses))*redirectPause))
		}
	}
}

// copyPartResults copies the results of part to its hits in c. A non-nil err becomes their result.
func (c *Call) copyPartResults(part *Call, err error) {
	for i, whole := range part.wholeCallIndexes {
		r := Result{Err: err}
		if err == nil {
			r = part.Hits[i].Result
		}
		c.SetResult(int(whole), r)
	}
}

// partDestination is the server of a part, and whether ASKING must be sent to it first.
type partDestination struct {
	node       *Node
	sendAsking bool
}

// divideBuffer is the working memory for dividing a call. The next call reuses it.
type divideBuffer struct {
	parts map[partDestination]*Call
	group []hitSlot
}

type hitSlot struct{ slot, hit int }

// divideByServer returns parts of c by server, with the hits that have no answer yet. Groups are
// divided by slot, because a script of Redis Cluster uses keys of one slot only. A hit that
// no server takes gets an error. The parts are valid until c is divided again.
func (s *Store) divideByServer(c *Call) map[partDestination]*Call {
	v := &c.divideBuffer
	clear(v.parts)
	t := s.Table()
	for i := 0; i < len(c.Hits); {
		end := max(c.Hits[i].GroupEnd, i+1)
		for v.group = v.group[:0]; i < end; i++ {
			if e := c.redirectOfHit(i); e != nil {
				if e != errUnsent {
					s.Figures.resentHits.Add(1)
				}
				v.group = append(v.group, hitSlot{t.SlotOfKey(c.Key(i)), i})
			}
		}
		slices.SortStableFunc(v.group, func(a, b hitSlot) int { return cmp.Compare(a.slot, b.slot) })
		for group := v.group; len(group) > 0; {
			n := 1
			for n < len(group) && group[n].slot == group[0].slot {
				n++
			}
			s.addToPart(c, group[:n])
			group = group[n:]
		}
	}
	for _, p := range v.parts {
		p.heldKeyBytes = len(p.Keys)
		s.Figures.Admission.heldBytes.Add(int64(p.heldKeyBytes)) // The parts of a call may outlive it.
	}
	return v.parts
}

// addToPart adds the hits of one group and slot to the part of their server.
func (s *Store) addToPart(c *Call, group []hitSlot) {
	v, first := &c.divideBuffer, group[0].hit
	to, err := s.destinationOfHit(c, first)
	if err != nil {
		for _, g := range group {
			c.Hits[g.hit].Err = err
		}
		return
	}
	p := v.parts[to]
	if p == nil {
		p = s.newCall()
		p.SendAsking, p.UnixMicros, p.deadline = to.sendAsking, c.UnixMicros, c.deadline
		if v.parts == nil {
			v.parts = make(map[partDestination]*Call)
		}
		v.parts[to] = p
	}
	end := 0
	if c.Hits[first].GroupEnd > 0 {
		end = len(p.Hits) + len(group)
	}
	for _, g := range group {
		h := c.Hits[g.hit]
		h.Result, h.GroupEnd = Result{}, end
		c.Hits[g.hit].Result = Result{}
		p.Keys = append(p.Keys, c.allKeys(g.hit)...)
		p.AddHit(h)
		p.wholeCallIndexes = append(p.wholeCallIndexes, int32(g.hit))
	}
}

// destinationOfHit returns the server that hit i of c was redirected to, or that has its key.
func (s *Store) destinationOfHit(c *Call, i int) (partDestination, error) {
	e := c.redirectOfHit(i)
	if e.ToAddr != "" {
		if n := s.nodeOfRedirect(e.ToAddr); n != nil {
			return partDestination{n, e.SendAsking}, nil
		}
	}
	n, err := s.Table().NodeOfKey(c.Key(i))
	if err != nil {
		s.requestServerSearch()
	}
	return partDestination{node: n}, err
}
