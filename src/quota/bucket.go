package quota

import (
	"math"
	"slices"
	"sync"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// bucket is a quota that proxies share.
type bucket struct {
	domain  []byte
	entries []rules.Entry // sorted by key.
	id      []byte        // the BucketId as a protobuf message.

	// Divider.mu guards these fields.
	nextTick       int64   // when the bucket has its next round, see Divider.schedule.
	next, previous *bucket // its neighbours in Divider.wheel.
	position       int     // in Divider.list.

	mu          sync.Mutex // guards what follows.
	members     []*member
	target      Target
	terms       terms
	limits      []limitState
	lastRound   int64   // when the last round began, as Instant.elapsed.
	fairEnd     int64   // when member.taken starts again at 0, as Instant.elapsed.
	fairSeconds float64 // the time between two values of fairEnd.
	unassigned  uint64  // how many units proxies used without an assignment, and that are not charged yet.
	rotation    int     // the member that comes first in the next division.
	isShort     bool    // true if the last division could not give all members what they want, the floor included.
	figures     bucketFigures
	peers       peers
	// taken is how many units all members got in the current fairness window. Until shareEnd, as Instant.elapsed, they get
	// at most their share of what there is; isShortOfShare says that they want more.
	taken          uint64
	shareEnd       int64
	isShortOfShare bool
	isRemoved      bool // true if the last member has left, and that the Divider has forgotten the bucket.
}

// limitState is what a bucket knows of one of its limits.
type limitState struct {
	window      window // the current one.
	freed       uint64 // the units of members that have left, which go back to the store.
	outstanding uint64 // the sum of member.outstanding when the round asked the store.
}

// terms are what limits give.
type terms struct {
	// action is AssignUnits, or for limits that no number of units describes, AllowAll if none refuses, and DenyAll if one
	// lets nothing pass.
	action   Action
	capacity uint64  // how many units the limits give at once.
	rate     float64 // how many units a second they give.
}

func termsOf(hits []backend.Hit) terms {
	t := terms{AllowAll, maxAssignedUnits, math.Inf(1)}
	for i := range hits {
		l := hits[i].Limit
		switch {
		case hits[i].NoVeto:
			continue
		case l.Capacity() == 0:
			t.action = DenyAll
		case t.action == AllowAll:
			t.action = AssignUnits
		}
		t.capacity, t.rate = min(t.capacity, l.Capacity()), min(t.rate, float64(l.Max)/l.Period.Seconds())
	}
	return t
}

// maxAssignedUnits is the most units of one assignment: what a token bucket of Envoy can hold.
const maxAssignedUnits = 1<<32 - 1

// floor returns how many units a proxy without demand gets, so that its first requests pass: a twentieth of the limit,
// shared by all.
func (b *bucket) floor() uint64 { return b.terms.capacity / 20 / uint64(max(len(b.members), 1)) }

// use replaces the target. What is charged to counters that no longer apply stays there.
func (b *bucket) use(target Target) {
	same := b.target.sameCounters(&target)
	b.target, b.terms = target, termsOf(target.Hits)
	b.peers.use(target.Hits)
	if same {
		return
	}
	b.limits, b.fairEnd = make([]limitState, len(target.Hits)), 0
	for _, m := range b.members {
		m.outstanding, m.isDue, m.mustReplace = make([]uint64, len(target.Hits)), true, true
	}
}

// window is the time in which what proxies did not use goes back to a limit, in Unix nanoseconds: the window of the
// limit, or the part of a sliding window in which an unused unit still counts. It is zero for a gcra, and for a
// first-hit window that has not started.
type window struct{ start, end int64 }

func (w window) contains(wall int64) bool { return w.start <= wall && wall < w.end }

// endsAtOnce reports whether all that was charged to a limit stops counting together, when its window ends. A first-hit
// window must have started.
func (b *bucket) endsAtOnce(limit int) bool {
	switch b.target.Hits[limit].Limit.Kind {
	case algorithm.FixedWindow, algorithm.FirstHitWindow:
		return b.limits[limit].window != (window{})
	}
	return false
}

// untilWindowEnd returns how long the first window that ends still lasts, or noEnd if none has a border.
func (b *bucket) untilWindowEnd(wall int64) (first int64) {
	first = noEnd
	for i := range b.limits {
		if b.endsAtOnce(i) && !b.target.Hits[i].NoVeto {
			first = min(first, b.limits[i].window.end-wall)
		}
	}
	return first
}

// noEnd is longer than any window.
const noEnd = int64(1 << 62)

// advance starts the windows that contain now. Units of other windows are no longer outstanding, so each proxy needs
// new ones.
func (b *bucket) advance(now Instant) {
	crossed := false
	for i := range b.limits {
		w := &b.limits[i].window
		if w.contains(now.wall) {
			continue
		}
		crossed = crossed || b.endsAtOnce(i) && !b.target.Hits[i].NoVeto
		*w = window{}
		switch l := b.target.Hits[i].Limit; l.Kind {
		case algorithm.FixedWindow:
			w.start, w.end = l.WindowBounds(now.wall)
		case algorithm.SlidingWindow, algorithm.SlidingWindowCounter:
			w.start, w.end = algorithm.WindowBounds(now.wall, l.Period)
		}
		b.forgetOutstanding(i)
	}
	aged, isFairEnd := b.agingTime(), crossed || now.elapsed >= b.fairEnd
	if crossed || isFairEnd || aged < noEnd { // Otherwise there is nothing to do for the members.
		for _, m := range b.members {
			if m.newest.Bucket != nil && (crossed || now.elapsed-m.assignedAt >= aged) {
				m.replace(now.elapsed)
			}
			if isFairEnd {
				m.taken = 0
			}
		}
	}
	if isFairEnd {
		length := min(b.untilWindowEnd(now.wall), max(aged, int64(time.Second)), int64(maxFairTime))
		b.fairSeconds = time.Duration(length).Seconds()
		b.fairEnd, b.shareEnd, b.taken = now.elapsed+length, now.elapsed+length*6/10, 0
	}
}

// agingTime returns after how long an assignment must be replaced because its units no longer count in the store, or
// noEnd: of the limits whose windows have no borders, the shortest period, or the time in which a gcra is as new.
func (b *bucket) agingTime() int64 {
	shortest := noEnd
	for i := range b.limits {
		h := &b.target.Hits[i]
		if b.endsAtOnce(i) || h.NoVeto {
			continue
		}
		age := int64(h.Limit.Period)
		if h.Limit.Kind == algorithm.GCRA {
			age = min(age, max(h.Limit.BurstTolerance(), int64(assignmentSpacing)))
		}
		shortest = min(shortest, age)
	}
	return shortest
}

// maxFairTime is the longest time over which a division is fair.
const maxFairTime = time.Minute

// forgetOutstanding notes that what was charged to a limit does not count any more.
func (b *bucket) forgetOutstanding(limit int) {
	b.limits[limit].freed = 0
	for _, m := range b.members {
		m.outstanding[limit] = 0
	}
}

// appendLooks appends the hits that charge what was used without an assignment, return what no proxy can use any more,
// and ask how many units are left.
func (b *bucket) appendLooks(batch *backend.Batch, now Instant, group uint16) {
	unassigned := min(b.unassigned, b.terms.capacity)
	b.unassigned = 0
	for i := range b.target.Hits {
		if unassigned > 0 {
			appendHit(batch, &b.target.Hits[i], algorithm.Force, unassigned, group)
		}
		if spare := b.takeSpare(i); spare > 0 && b.limits[i].window.contains(now.wall+int64(refundMargin)) {
			appendHit(batch, &b.target.Hits[i], algorithm.Refund, min(spare, algorithm.MaxAmount), group)
		}
	}
	for i := range b.target.Hits {
		appendHit(batch, &b.target.Hits[i], algorithm.Look, 0, group)
	}
}

// refundMargin is how long before the end of a window nothing is given back to it, because the refund could arrive in
// the next one. If it does all the same, appendLateRefunds corrects it. A gcra gets nothing back: a refund could make
// room that the charge no longer takes.
const refundMargin = 100 * time.Millisecond

// appendLateRefunds appends the hits that charge again what refunds gave back to a later window than that of now.
// refunds are hits begin to end of a batch that the store has decided. Only fixed windows are sure to follow the clock
// of this process.
func appendLateRefunds(dst, refunds *backend.Batch, begin, end int, now Instant) {
	for i := begin; i < end; i++ {
		h, v := &refunds.Hits[i], &refunds.Verdicts[i]
		if h.Op != algorithm.Refund || h.Limit.Kind != algorithm.FixedWindow || v.Before <= v.After ||
			refunds.DecidedAt == 0 {
			continue
		}
		meant, _ := h.Limit.WindowBounds(now.wall)
		if decided, _ := h.Limit.WindowBounds(refunds.DecidedAt); decided != meant {
			appendHit(dst, h, algorithm.Force, v.Before-v.After, h.GroupID)
		}
	}
}

// takeSpare returns how many units of a limit no proxy can use any more, and forgets them. It sets outstanding of the
// limit to what is left.
func (b *bucket) takeSpare(limit int) uint64 {
	l := &b.limits[limit]
	spare := l.freed
	l.freed, l.outstanding = 0, 0
	for _, m := range b.members {
		if m.outstanding[limit] == 0 {
			continue
		}
		units := m.spare(limit)
		m.outstanding[limit] -= units
		l.outstanding += m.outstanding[limit]
		if limit == 0 {
			m.taken -= min(m.taken, units)
			b.taken -= min(b.taken, units)
		}
		spare += units
	}
	return spare
}

// readLooks returns how many units are left, by the verdicts of looks, and whether the store answered. It learns when
// first-hit windows end, and whether counters have disappeared.
func (b *bucket) readLooks(verdicts []backend.Verdict, now Instant) (available uint64, answered bool) {
	available, answered = b.terms.capacity, true
	for i := range verdicts {
		v := &verdicts[i]
		if v.Err != nil {
			answered = false
			continue
		}
		if v.Fallback == backend.FallbackError {
			b.learnWindow(i, v, now)
			if b.limits[i].outstanding > v.Before {
				b.forgetOutstanding(i)
				for _, m := range b.members {
					m.replace(now.elapsed)
				}
			}
		}
		switch {
		case b.target.Hits[i].NoVeto || v.Fallback == backend.FallbackAllow:
		case v.Over:
			available = 0
		default:
			available = min(available, v.Remaining)
		}
	}
	return available, answered
}

// learnWindow learns from the verdict of a look or a charge when a first-hit window ends.
func (b *bucket) learnWindow(limit int, v *backend.Verdict, now Instant) {
	if b.target.Hits[limit].Limit.Kind == algorithm.FirstHitWindow && v.After > 0 {
		b.limits[limit].window = window{now.wall, now.wall + int64(v.ResetAfter)}
	}
}

func appendHit(batch *backend.Batch, target *backend.Hit, op algorithm.Op, amount uint64, group uint16) {
	hit := *target
	hit.Op, hit.Amount, hit.GroupID = op, amount, group
	hit.Atomic = op == algorithm.Charge
	batch.Hits = append(batch.Hits, hit)
	batch.Verdicts = append(batch.Verdicts, backend.Verdict{})
}

// quantities are the numbers of a bucket that decide what its members need.
type quantities struct {
	terms
	windowSeconds float64 // for how long the units of an assignment count, until the first window ends.
	floor         uint64  // what a proxy without demand gets.
}

// tooMany returns how many units are too many for a proxy that wants want.
func (q *quantities) tooMany(want uint64) uint64 { return 4*want + q.floor }

func (b *bucket) quantities(now Instant) quantities {
	replaced := min(b.untilWindowEnd(now.wall), b.agingTime())
	return quantities{b.terms, float64(replaced) / float64(time.Second), b.floor()}
}

// startRound appends the members that are due, and decides which of them the round may give an assignment.
func (b *bucket) startRound(due []*member, now int64) []*member {
	b.lastRound = now
	for _, m := range b.members {
		if m.isDue {
			m.planned = 0
			m.isInRound = m.mustReplace || m.newest.Action != AssignUnits || now >= m.nextAssignment()
			due = append(due, m)
		}
	}
	return due
}

// nextRound returns when a report that arrives now may have its round. Many proxies share a round, because it visits
// all members.
func (b *bucket) nextRound(now int64) int64 { return max(now, b.lastRound+int64(roundSpacing)) }

// roundSpacing is the shortest time between two rounds of a bucket, but for those at the end of a window and those for
// new members.
const roundSpacing = 100 * time.Millisecond

// plan divides the available units among the due members that are in the round, and returns the sum of what they get.
// It sets member.planned.
func (b *bucket) plan(due []*member, available uint64, now Instant, claims []claim) (sum uint64, _ []claim) {
	claims = claims[:0]
	allowed := b.allowance(available, now)
	wished, q := uint64(0), b.quantities(now)
	b.rotation++
	for i := range due {
		m := due[(i+b.rotation)%len(due)]
		if !m.isInRound {
			continue
		}
		c := claim{taken: m.taken, member: m}
		if c.want, c.wish = m.needs(&q); m.isNew {
			c.want = newcomerUnits(allowed, &q)
			c.wish = c.want
		}
		wished += c.wish
		claims = append(claims, c)
	}
	if wished <= allowed {
		for i := range claims {
			claims[i].want = claims[i].wish
		}
	}
	divide(allowed, claims)
	b.isShort = slices.ContainsFunc(claims, func(c claim) bool { return c.got < c.want })
	b.isShortOfShare = b.isShort && allowed < available
	for i := range claims {
		c := &claims[i]
		left := c.member.left(now.elapsed)
		if c.member.mustReplace || c.got > left || left > q.tooMany(c.want) { // Otherwise what it has is more.
			c.member.planned = c.got
			sum += c.got
		}
	}
	return sum, claims
}

// allowance returns how many of the available units the members may get now: their share of what there was when the
// fairness window began. What other replicas leave belongs to the first that asks for it, when most of the window has
// passed.
func (b *bucket) allowance(available uint64, now Instant) uint64 {
	if now.elapsed >= b.shareEnd || b.peers.others.proxies == 0 {
		return available
	}
	units := available
	switch left := b.fairEnd - now.elapsed; {
	case b.agingTime() < noEnd:
		units = max(b.terms.capacity, uint64(b.terms.rate*b.fairSeconds))
	case left == b.untilWindowEnd(now.wall):
		units = b.terms.capacity
	}
	share := uint64(b.share() * float64(units))
	return min(available, share-min(share, b.taken))
}

// newcomerUnits returns how many units a proxy gets whose demand is not known: half of what is available, but in a long
// window at most what the limit gives on average until its demand is known, and a twentieth of it.
func newcomerUnits(available uint64, q *quantities) uint64 {
	average := min(q.rate*2*defaultInterval, float64(q.capacity))
	return max(min(available/2, uint64(average)+max(q.capacity/20, 10)), q.floor, 1)
}
