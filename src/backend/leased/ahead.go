package leased

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

const (
	// busyUnits is how many units a replica must have used in a window to take units of the next one before it begins.
	busyUnits = 2
	// mostAhead is how long before a window begins its units are asked for, or three quarters of a shorter period: with
	// few hits one must come early enough for a store that is far away.
	mostAhead = time.Second
	// maxAheadReplies bounds aheadReplies.all. Others ask with their first hit.
	maxAheadReplies = maxRefills
)

// isEnding reports whether it is time to take units of the next window: this one ends soon, and is busy. Longer periods
// than longPeriod have few hits that are the first ones of a window, and no limits but fixed windows have a next one
// that is known.
func (l lease) isEnding(t instant) bool {
	return l.flags&askedAheadFlag == 0 && l.limit.FollowsLocalClock() && l.used >= busyUnits &&
		l.end-t.wall < int64(min(l.limit.Period*3/4, mostAhead)) && l.limit.Period <= longPeriod
}

// hasAskedFor reports whether units of the window of t were asked for ahead, and there is no reply yet.
func (l lease) hasAskedFor(t instant) bool {
	return l.flags&askedAheadFlag != 0 && t.wall >= l.end && t.wall < l.end+int64(l.limit.Period)
}

// aheadReplies are replies of the store on charges of windows that have not begun by the clock of this process. They
// are learned when their windows begin.
type aheadReplies struct {
	count atomic.Int64 // the number of all
	mu    sync.Mutex
	all   map[ref]aheadReply // guarded by mu
}

type aheadReply struct {
	hit     backend.Hit
	verdict backend.Verdict
}

// begins returns when the window of the reply begins, by instant.wall.
func (r *aheadReply) begins() int64 { return r.hit.Limit.WindowStart(r.verdict.WindowEnd) }

// add keeps a reply, unless there are too many. The units of an earlier reply for the same lease are lost.
func (a *aheadReplies) add(r ref, reply aheadReply) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) < maxAheadReplies {
		if a.all == nil {
			a.all = make(map[ref]aheadReply)
		}
		a.all[r] = reply
		a.count.Store(int64(len(a.all)))
	}
}

// take removes the reply for a lease, if its window has begun.
func (a *aheadReplies) take(r ref, now instant) (reply aheadReply, ok bool) {
	if a.count.Load() == 0 {
		return reply, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if reply, ok = a.all[r]; !ok || reply.begins() > now.wall {
		return reply, false
	}
	delete(a.all, r)
	a.count.Store(int64(len(a.all)))
	return reply, true
}

// takeAll removes all replies.
func (a *aheadReplies) takeAll() map[ref]aheadReply {
	if a.count.Load() == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	all := a.all
	a.all = nil
	a.count.Store(0)
	return all
}

// begun returns the leases whose replies are of windows that have begun.
func (a *aheadReplies) begun(now instant) (refs []ref) {
	if a.count.Load() == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for r, reply := range a.all {
		if reply.begins() <= now.wall {
			refs = append(refs, r)
		}
	}
	return refs
}

// learnAhead learns the reply that was kept for a lease, if its window has begun and has not ended. The caller holds mu
// of the shard.
func (s *Store) learnAhead(r ref, now instant) {
	if reply, ok := s.ahead.take(r, now); ok && reply.verdict.WindowEnd > now.wall {
		s.learnUnits(r, &reply.hit, &reply.verdict, now)
	}
}

// learnBegun learns the replies that were kept for windows that have begun.
func (s *Store) learnBegun(now instant) {
	for _, r := range s.ahead.begun(now) {
		r.shard.mu.Lock()
		s.learnAhead(r, now)
		r.shard.mu.Unlock()
	}
}

// returnAhead gives back the units of all windows that have not begun.
func (s *Store) returnAhead(ctx context.Context) {
	now := s.now()
	s.learnBegun(now)
	hits := make(map[int64][]backend.Hit) // by the beginnings of their windows
	for _, reply := range s.ahead.takeAll() {
		if h := reply.hit; reply.verdict.Charged {
			h.Op, h.Window = algorithm.Refund, reply.verdict.WindowEnd
			hits[reply.begins()] = append(hits[reply.begins()], h)
		}
	}
	for begins, list := range hits {
		s.giveBackHits(ctx, list, time.Duration(begins-now.wall))
	}
}
