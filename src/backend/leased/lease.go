package leased

import (
	"math"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
)

// instant is a moment on both clocks of this process, in nanoseconds: wall since the Unix epoch, and mono since some
// moment, which no clock step changes.
type instant struct{ wall, mono int64 }

// forLimit returns the clock by which the units of a limit expire.
func (t instant) forLimit(l *algorithm.Limit) int64 {
	if l.FollowsLocalClock() {
		return t.wall
	}
	return t.mono
}

// lease is what this replica knows of a counter, and the units of it that it holds.
type lease struct {
	*record // nil if there is no lease
	limit   *algorithm.Limit
}

func (l lease) isNone() bool { return l.record == nil }

// record is the memory of a lease. It is as large as a cache line, and has no pointers, so that the garbage collector
// skips it. Units are at most maxUnits: what exceeds them is not added, so that nothing passes that was not taken.
// Times are of instant.forLimit. The zero value is a free slot.
type record struct {
	hash atomic.Uint64 // written with mu of the shard held
	state
}

// state is a record but for its hash. It is guarded by mu of the shard.
type state struct {
	end       int64  // the units may be used before; 0 before the first reply
	windowEnd int64  // the Outcome.WindowEnd of the units
	knownAt   int64  // when the store was asked for taken, by instant.mono
	held      uint32 // units that may be used
	used      uint32 // units that hits used in this window, less what was refunded
	taken     uint32 // the count in the store, held units included, as of knownAt
	recent    uint32 // units used in the tick recentTick
	limitID   uint32 // of limitTable; 0 in a free slot
	keyAt     uint32 // where the shard has the key; in a free slot see shard.free

	recentTick  uint16 // the tick of the last use, modulo 2^16
	contendedAt uint16 // when the counter became contended; see contendedFor. 0 while it is not
	beforeThat  approx // units used in the tick before recentTick
	size        approx // how many units were taken last
	generation  uint8  // counts the uses of the slot, which are seconds apart, so that an old ref finds another one
	flags       uint8  // isAskingFlag, askedAheadFlag, and above them limitChanges
}

const (
	// maxUnits is the most units that are held or counted. Counters with a larger capacity are counted exactly.
	maxUnits = algorithm.MaxLeaseCapacity
	// isAskingFlag says that units were asked for, and that there is no reply yet; askedAheadFlag that units of the next
	// window were asked for.
	isAskingFlag, askedAheadFlag = 1, 2
	limitChange                  = 4 // in flags
)

func (s *state) isAsking() bool { return s.flags&isAskingFlag != 0 }

func (s *state) setAsking(isAsking bool) {
	if s.flags &^= isAskingFlag; isAsking {
		s.flags |= isAskingFlag
	}
}

// limitChanges returns how often hits came with another limit in this window. It does not count beyond maxLimitChanges.
func (s *state) limitChanges() int { return int(s.flags / limitChange) }

func (s *state) countLimitChange() {
	if s.limitChanges() <= maxLimitChanges {
		s.flags += limitChange
	}
}

// idle returns how many ticks ago the counter was used last, modulo 2^16.
func (s *state) idle(tick uint32) uint16 { return uint16(tick) - s.recentTick }

const (
	// contendedUnit is the unit of contendedAt: 4 ms.
	contendedUnit = 1 << 22
	// contendedLongAgo is the contendedAt of a counter for which settleContention found that all waits are over.
	contendedLongAgo = 1
)

// contend marks the counter as contended from t on, or up to maxRounded units later.
func (s *state) contend(t instant) {
	s.contendedAt = max(uint16(t.mono/contendedUnit)+1, contendedLongAgo+1)
}

const maxRounded = 4

func (s *state) isContended() bool { return s.contendedAt > 0 }

// contendedFor returns since when the counter has been contended.
func (s *state) contendedFor(t instant) time.Duration {
	if s.contendedAt == contendedLongAgo {
		return math.MaxInt64
	}
	units := uint16(t.mono/contendedUnit) - s.contendedAt
	if units > -maxRounded&math.MaxUint16 {
		return 0
	}
	return time.Duration(units) * contendedUnit
}

// settleContention must be called at least every four minutes, before contendedFor has too few bits.
func (s *state) settleContention(t instant) {
	if s.isContended() && s.contendedFor(t) > 2*maxResolveTime {
		s.contendedAt = contendedLongAgo
	}
}

// start returns the start of the time in which the units may be used.
func (l lease) start() int64 {
	if !l.limit.FollowsLocalClock() || l.end == 0 {
		return 0
	}
	return l.limit.WindowStart(l.end)
}

// contains reports whether the units may be used at t.
func (l lease) contains(t instant) bool {
	at := t.forLimit(l.limit)
	return at < l.end && at >= l.start()
}

// usable returns the units that may be used at t.
func (l lease) usable(t instant) uint64 {
	if !l.contains(t) {
		return 0
	}
	return uint64(l.held)
}

// use takes amount of the usable units, and reports whether there were so many.
func (l lease) use(amount uint64, t instant, tick uint32) bool {
	if amount > l.usable(t) || amount == 0 && l.held == 0 {
		return false
	}
	l.held -= uint32(amount)
	l.countUse(amount, tick)
	return true
}

// countUse counts units that this replica admitted.
func (s *state) countUse(amount uint64, tick uint32) {
	s.used = capped(uint64(s.used) + amount)
	switch s.idle(tick) {
	case 0:
	case 1:
		s.beforeThat, s.recent = approxAbove(s.recent), 0
	default:
		s.beforeThat, s.recent = 0, 0
	}
	s.recentTick = uint16(tick)
	s.recent = capped(uint64(s.recent) + amount)
}

// capped returns n, or maxUnits if n is larger.
func capped(n uint64) uint32 { return uint32(min(n, maxUnits)) }

// expire removes the units that can no longer be used, and returns those that the store must get back: those of a gcra,
// which would stay charged. Other units end with their window.
func (l lease) expire(t instant) (back uint64) {
	if l.held == 0 || l.contains(t) {
		return 0
	}
	if l.limit.RefillsSteadily() {
		back = uint64(l.held)
	}
	l.held = 0
	return back
}

// needed returns how many units hits needed in a tick lately: up to an eighth more.
func (s *state) needed(tick uint32) uint32 {
	switch s.idle(tick) {
	case 0:
		return max(s.recent, s.beforeThat.units())
	case 1:
		return s.recent
	}
	return 0
}

// giveBack adds units that a hit used to those that may be used, and returns how many. It is less than amount if this
// replica used fewer in this window: others must go to the store.
func (l lease) giveBack(amount uint64, t instant) uint64 {
	if !l.contains(t) {
		return 0
	}
	n := min(uint32(min(amount, uint64(l.used))), maxUnits-l.held)
	l.held, l.used = l.held+n, l.used-n
	return uint64(n)
}

// left returns what the store has left, by its last reply. Before the first one that is all of the limit. The units of
// a gcra that came back since are counted.
func (l lease) left(t instant) uint64 {
	capacity := l.limit.Capacity()
	if !l.limit.RefillsSteadily() && t.forLimit(l.limit) >= l.end {
		return capacity
	}
	return capacity - min(capacity, l.takenAt(t))
}

// takenAt returns taken, less the units that came back since.
func (l lease) takenAt(t instant) uint64 {
	return l.limit.CountAfter(uint64(l.taken), time.Duration(t.mono-l.knownAt))
}

const (
	// longPeriod is the shortest period whose leases grow with the use of the counter: at most a minute's units are lost
	// with a replica that crashes. Those of shorter periods are lost until the window ends.
	longPeriod = time.Minute
	// firstOfLong is how many units the first lease of a long period has at most, or the smallPart-th part of a lease of a
	// short one if that is more: a crash may lose them all. The next lease has twice as many if it comes within
	// growWithin, or half as many if it comes after shrinkAfter.
	firstOfLong, smallPart  = 16, 1024
	growWithin, shrinkAfter = 10 * time.Second, 30 * time.Second
	// maxLimitChanges is how often the limit of a counter may change in a window. After that, several rules seem to use
	// it, which need exact counts.
	maxLimitChanges = 4
)

// wanted returns how many units to take for a hit of amount: the 2n-th part of what is left, with n replicas, but at
// least amount.
func (l lease) wanted(amount uint64, replicas int, t instant) uint64 {
	if l.limitChanges() > maxLimitChanges {
		return amount
	}
	n := l.left(t) / uint64(2*replicas)
	if l.limit.Period > longPeriod {
		first := max(uint64(firstOfLong), n/smallPart)
		most, age := first, time.Duration(t.mono-l.knownAt)
		switch {
		case l.size == 0:
		case age < growWithin:
			most = 2 * uint64(l.size.units())
		case age < shrinkAfter:
			most = uint64(l.size.units())
		default:
			most = max(uint64(l.size.units()/2), first)
		}
		n = min(n, most)
	}
	return max(n, amount)
}

// isUp reports whether it is time to take more units: half of the last ones are used.
func (l lease) isUp(t instant) bool { return l.usable(t) <= uint64(l.size.units()/2) }

// learn adds granted units, and what the outcome v of the store says of the counter, which was asked at the instant
// asked. It returns the units that the store must get back: granted ones, if a later reply was of another window or
// they are too many, and those that have expired.
func (l lease) learn(v *algorithm.Outcome, asked instant, granted uint64) (back uint64) {
	if asked.mono >= l.knownAt { // An earlier reply that comes late may be of a window before that of the units.
		back = l.expire(asked)
	}
	if isSame := l.end > 0 && v.WindowEnd == l.windowEnd; !isSame {
		if l.end > 0 && asked.mono < l.knownAt {
			return back + granted
		}
		l.startWindow(v)
		l.knownAt = 0
	}
	if asked.mono >= l.knownAt {
		l.knownAt, l.taken = asked.mono, capped(v.After)
		l.setBounds(v, asked)
	} else if l.limit.RefillsSteadily() && granted > 0 {
		l.end = min(l.end, asked.mono+int64(l.limit.LeaseTerm(v))) // These units are older than those that are held.
	}
	kept := min(granted, uint64(maxUnits-l.held))
	if l.held += uint32(kept); granted > 0 {
		l.size = approxBelow(capped(granted))
	}
	if l.limit.RefillsSteadily() && l.left(asked) >= l.limit.Capacity()/2 {
		l.contendedAt = 0
	}
	return back + granted - kept
}

// startWindow forgets what was of another window. Units of a gcra have no window.
func (l lease) startWindow(v *algorithm.Outcome) {
	l.windowEnd, l.held, l.used, l.contendedAt, l.flags = v.WindowEnd, 0, 0, 0, l.flags&isAskingFlag
}

// setBounds sets when the units may be used.
func (l lease) setBounds(v *algorithm.Outcome, asked instant) {
	switch {
	case l.limit.FollowsLocalClock():
		_, l.end = l.limit.WindowBounds(v.WindowEnd - 1)
	case l.limit.RefillsSteadily() && l.held > 0 && l.end > asked.mono: // These units keep their end.
	default:
		l.end = asked.mono + int64(l.limit.LeaseTerm(v))
	}
}

// isLow reports whether so little is left that replicas should give back what they do not need.
func (l lease) isLow(replicas int, t instant) bool {
	return replicas > 1 && l.canBeHeld(replicas) && l.left(t) <= l.limit.Capacity()/8
}

// canBeHeld reports whether replicas can hold units of such a counter: otherwise each takes one at a time, and uses it.
func (l lease) canBeHeld(replicas int) bool { return l.limit.Capacity()/uint64(2*replicas) > 1 }

// outcome returns the outcome of a hit of amount units that passed at t, by the units that were held.
func (l lease) outcome(op algorithm.Op, amount uint64, t instant) (v algorithm.Outcome) {
	l.setOutcome(&v, op, amount, t)
	return v
}

// setOutcome is outcome, of which it fills the zero value v.
func (l lease) setOutcome(v *algorithm.Outcome, op algorithm.Op, amount uint64, t instant) {
	taken := l.takenAt(t)
	v.After = taken - min(taken, uint64(l.held))
	v.Before, v.Charged = v.After, op != algorithm.Look && amount > 0
	switch op {
	case algorithm.Charge, algorithm.Force:
		v.Before -= min(v.Before, amount)
	case algorithm.Refund:
		v.Before += amount
	}
	capacity := l.limit.Capacity()
	v.Remaining = capacity - min(capacity, v.After)
	v.ResetAfter = l.limit.ResetAfterTerm(v.After, time.Duration(l.end-t.forLimit(l.limit)))
	if l.limit.FollowsLocalClock() {
		v.WindowEnd = l.end
	}
}
