package quota

import (
	"slices"
	"sync"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// bucket is a quota that proxies share.
type bucket struct {
	domain  []byte
	entries []rules.Entry // sorted by key.
	id      []byte        // the BucketId as a protobuf message.

	// nextTick is when the bucket has its next round, see Divider.schedule. next and previous are its neighbours in
	// Divider.wheel. Divider.mu guards all three.
	nextTick       int64
	next, previous *bucket
	position       int // in Divider.list. Divider.mu guards it.

	mu          sync.Mutex // guards what follows.
	members     []*member
	target      limiter.QuotaTarget
	windows     []window // the current window of each limit.
	lastRound   int64    // when the last round began, as Instant.elapsed.
	fairEnd     int64    // when member.taken starts again at 0, as Instant.elapsed.
	fairSeconds float64  // the time between two values of fairEnd.
	unassigned  uint64   // how many units proxies used without an assignment, and that are not charged yet.
	freed       []uint64 // has, for each limit, the units of members that have left, which go back to the store.
	outstanding []uint64 // has, for each limit, the sum of member.outstanding when the round asked the store.
	rotation    int      // the member that comes first in the next division.
	isShort     bool     // true if the last division could not give all members what they want, the floor included.
	figures     bucketFigures
	peers       peers
	// taken is how many units all members got in the current fairness window. Until shareEnd, as Instant.elapsed, they get
	// at most their share of what there is; isShortOfShare says that they want more.
	taken          uint64
	shareEnd       int64
	isShortOfShare bool
	isRemoved      bool // true if the last member has left, and that the Divider has forgotten the bucket.
}

// blanket returns the action for a bucket that no number of units describes: AllowAll without a limit that refuses,
// DenyAll if a limit lets nothing pass, else AssignUnits.
func (b *bucket) blanket() Action {
	action := AllowAll
	for i := range b.target.Hits {
		switch h := &b.target.Hits[i]; {
		case h.NoVeto:
		case h.Limit.Capacity() == 0:
			return DenyAll
		default:
			action = AssignUnits
		}
	}
	return action
}

// capacity returns how many units the bucket can give at once.
func (b *bucket) capacity() uint64 {
	capacity := uint64(maxAssignedUnits)
	for i := range b.target.Hits {
		if h := &b.target.Hits[i]; !h.NoVeto {
			capacity = min(capacity, h.Limit.Capacity())
		}
	}
	return capacity
}

// maxAssignedUnits is the most units of one assignment: what a token bucket of Envoy can hold.
const maxAssignedUnits = 1<<32 - 1

// floor returns how many units a proxy without demand gets, so that its first requests pass: a twentieth of the limit,
// shared by all.
func (b *bucket) floor() uint64 { return b.capacity() / 20 / uint64(max(len(b.members), 1)) }

// use replaces the target. What is charged to counters that no longer apply stays there.
func (b *bucket) use(target limiter.QuotaTarget) {
	same := b.target.SameCounters(&target)
	b.target = target
	b.peers.use(target.Hits)
	if same {
		return
	}
	b.windows, b.freed, b.fairEnd = make([]window, len(target.Hits)), make([]uint64, len(target.Hits)), 0
	b.outstanding = make([]uint64, len(target.Hits))
	for _, m := range b.members {
		m.outstanding, m.isDue, m.mustReplace = make([]uint64, len(target.Hits)), true, true
	}
}

// window is the stretch of time in which what proxies did not use goes back to a limit, in Unix nanoseconds. It is the
// window of the limit, or for a sliding window the part in which an unused unit still counts. It is zero for a gcra,
// and for a first-hit window that has not started.
type window struct{ start, end int64 }

func (w window) contains(wall int64) bool { return w.start <= wall && wall < w.end }

// endsAtOnce reports whether all that was charged to a limit stops counting together, when its window ends. A first-hit
// window must have started.
func (b *bucket) endsAtOnce(limit int) bool {
	switch b.target.Hits[limit].Limit.Kind {
	case algorithm.FixedWindow, algorithm.FirstHitWindow:
		return b.windows[limit] != (window{})
	}
	return false
}

// untilWindowEnd returns how long the first window that ends still lasts, or noEnd if none has a border.
func (b *bucket) untilWindowEnd(wall int64) (first int64) {
	first = noEnd
	for i, w := range b.windows {
		if b.endsAtOnce(i) && !b.target.Hits[i].NoVeto {
			first = min(first, w.end-wall)
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
	for i := range b.windows {
		w := &b.windows[i]
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
	for i := range b.windows {
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
	b.freed[limit] = 0
	for _, m := range b.members {
		m.outstanding[limit] = 0
	}
}

// appendLooks appends the hits that charge what was used without an assignment, return what no proxy can use any more,
// and ask how many units are left.
func (b *bucket) appendLooks(batch *backend.Batch, now Instant, group uint16) {
	unassigned := min(b.unassigned, b.capacity())
	b.unassigned = 0
	for i := range b.target.Hits {
		if unassigned > 0 {
			appendHit(batch, &b.target.Hits[i], algorithm.Force, unassigned, group)
		}
		if spare := b.takeSpare(i); spare > 0 && b.windows[i].contains(now.wall+int64(refundMargin)) {
			appendHit(batch, &b.target.Hits[i], algorithm.Refund, min(spare, algorithm.MaxAmount), group)
		}
	}
	for i := range b.target.Hits {
		appendHit(batch, &b.target.Hits[i], algorithm.Look, 0, group)
	}
}

// refundMargin is how long before the end of a window nothing is given back to it, because the refund could arrive in
// the next one. If it does all the same, because the process was stopped meanwhile, appendLateRefunds corrects it. A
// gcra gets nothing back: a refund could make room that the charge no longer takes.
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

// takeSpare returns how many units of a limit no proxy can use any more, and forgets them. It sets b.outstanding to
// what is left.
func (b *bucket) takeSpare(limit int) uint64 {
	spare := b.freed[limit]
	b.freed[limit], b.outstanding[limit] = 0, 0
	for _, m := range b.members {
		if m.outstanding[limit] == 0 {
			continue
		}
		units := m.spare(limit)
		m.outstanding[limit] -= units
		b.outstanding[limit] += m.outstanding[limit]
		if limit == 0 {
			m.taken -= min(m.taken, units)
			b.taken -= min(b.taken, units)
		}
		spare += units
	}
	return spare
}

// readLooks learns from the verdicts of looks when first-hit windows end, and whether counters have disappeared.
func (b *bucket) readLooks(verdicts []backend.Verdict, now Instant) {
	for i := range verdicts {
		v := &verdicts[i]
		if v.Err != nil || v.Fallback != backend.FallbackError {
			continue
		}
		b.learnWindow(i, v, now)
		if b.outstanding[i] > v.Before {
			b.forgetOutstanding(i)
			for _, m := range b.members {
				m.replace(now.elapsed)
			}
		}
	}
}

// learnWindow learns from the verdict of a look or a charge when a first-hit window ends.
func (b *bucket) learnWindow(limit int, v *backend.Verdict, now Instant) {
	if b.target.Hits[limit].Limit.Kind == algorithm.FirstHitWindow && v.After > 0 {
		b.windows[limit] = window{now.wall, now.wall + int64(v.ResetAfter)}
	}
}

func appendHit(batch *backend.Batch, target *backend.Hit, op algorithm.Op, amount uint64, group uint16) {
	hit := *target
	hit.Op, hit.Amount, hit.GroupID = op, amount, group
	hit.Atomic = op == algorithm.Charge
	batch.Hits = append(batch.Hits, hit)
	batch.Verdicts = append(batch.Verdicts, backend.Verdict{})
}

// available returns how many units are left, by the verdicts of the looks, and whether the store answered.
func (b *bucket) available(verdicts []backend.Verdict) (units uint64, answered bool) {
	units = b.capacity()
	for i := range verdicts {
		v := &verdicts[i]
		switch {
		case v.Err != nil:
			return 0, false
		case b.target.Hits[i].NoVeto || v.Fallback == backend.FallbackAllow:
		case v.Over:
			units = 0
		default:
			units = min(units, v.Remaining)
		}
	}
	return units, true
}

// quantities are the numbers of a bucket that decide what its members need.
type quantities struct {
	action          Action
	windowSeconds   float64 // for how long the units of an assignment count, until the first window ends.
	rate            float64 // how many units a second the limits give.
	floor, capacity uint64  // what a proxy without demand gets, and how many units the bucket can give at most.
}

// tooMany returns how many units are too many for a proxy that wants want.
func (q *quantities) tooMany(want uint64) uint64 { return 4*want + q.floor }

func (b *bucket) quantities(now Instant) quantities {
	replaced := min(b.untilWindowEnd(now.wall), b.agingTime())
	return quantities{b.blanket(), float64(replaced) / float64(time.Second), b.rate(), b.floor(), b.capacity()}
}

// startRound appends the members that are due, and decides which of them the round may give an assignment.
func (b *bucket) startRound(due []*member, now int64) []*member {
	b.lastRound = now
	for _, m := range b.members {
		if m.isDue {
			m.planned, m.isInRound = 0, m.canAssign(now)
			due = append(due, m)
		}
	}
	return due
}

// nextRound returns when a report that arrives now may have its round. Many proxies share a round, because it visits
// all members.
func (b *bucket) nextRound(now int64) int64 { return max(now, b.lastRound+int64(roundSpacing)) }

// roundSpacing is the shortest time between two rounds of a bucket, but for those at the end of a window and those for
// new members. It is much shorter than what member.needs adds for the time of an answer.
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
		units = max(b.capacity(), uint64(b.rate()*b.fairSeconds))
	case left == b.untilWindowEnd(now.wall):
		units = b.capacity()
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
