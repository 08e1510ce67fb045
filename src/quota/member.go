package quota

import (
	"math"
	"time"
)

// member is one proxy's part of a bucket. The bucket's lock guards it.
type member struct {
	account
	proxy  *Proxy
	bucket *bucket

	outstanding []uint64 // has, for each limit, the units that are charged in its current window and not reported as used.
	unreported  uint64   // how many assigned units are not reported, whatever window they were charged in.
	taken       uint64   // how many units the proxy got in the current fairness window of the bucket.

	newest           Assignment // its Bucket is nil if there is none.
	assignedAt       int64      // when newest was sent first, as Instant.elapsed.
	reportedOfNewest uint64     // how many units were reported since.
	isPending        bool       // true if the proxy has to be told of newest. Proxy.mu guards it.

	demand     float64 // how many units a second the proxy's callers ask for.
	interval   float64 // the time between two reports in seconds.
	lastReport int64   // as Instant.elapsed, as lastUse; 0 before the first report.
	lastUse    int64
	isNew      bool // true if only the first report has arrived, so demand is not known.
	madeBucket bool // true if the proxy holds the memory of the bucket.
	// isGone says that the stream has ended, or that the bucket was abandoned. The goroutine of Report sets it, and reads
	// it without the lock.
	isGone bool

	isDue       bool   // true if the next round may assign units.
	mustReplace bool   // true if the newest assignment was charged in a window that has ended.
	isInRound   bool   // true if the current round has decided what the proxy gets. It may have joined later.
	planned     uint64 // how many units the current round assigns.

	figures memberFigures
	counted countedFigures
}

const (
	// seconds, until two reports have arrived; that of Envoy 1.40, whatever its reporting_interval is
	defaultInterval = 5.0
	minInterval     = 0.05
	maxInterval     = 60.0
)

// report notes what the proxy reports at the time now, and returns how many units it let pass without an assignment.
func (m *member) report(allowed, denied uint64, now int64) (unassigned uint64) {
	if m.lastReport > 0 {
		m.measure(float64(allowed)+float64(denied), float64(now-m.lastReport)/float64(time.Second))
	} else {
		m.isNew, m.interval = true, defaultInterval
	}
	if m.lastReport = now; allowed+denied > 0 || m.lastUse == 0 {
		m.lastUse = now
	}
	used := min(allowed, m.unreported)
	unassigned = allowed - used
	m.account.report(used, now)
	m.unreported = min(m.unreported-used, m.inUse())
	m.reportedOfNewest += used
	for i := range m.outstanding {
		m.outstanding[i] -= min(m.outstanding[i], used)
	}
	return unassigned
}

// measure updates demand and interval with what callers asked for in seconds. Demand follows large changes at once, and
// a smaller fall by half.
func (m *member) measure(asked, seconds float64) {
	seconds = max(seconds, minInterval)
	rate := asked / seconds
	if m.demand/2 < rate && rate < m.demand && !m.isNew {
		rate = (m.demand + rate) / 2
	}
	m.demand, m.isNew = rate, false
	seconds = min(seconds, maxInterval)
	if seconds < m.interval {
		seconds = (m.interval + seconds) / 2
	}
	m.interval = seconds
}

// spare returns how many units of a limit are charged for the proxy, and cannot be used or reported any more.
func (m *member) spare(limit int) uint64 {
	return m.outstanding[limit] - min(m.outstanding[limit], m.inUse())
}

// hasSpare reports whether some limit has units that the proxy cannot use any more.
func (m *member) hasSpare() bool {
	for i := range m.outstanding {
		if m.spare(i) > 0 {
			return true
		}
	}
	return false
}

// left returns how many units of its newest assignment the proxy has at most. It is 0 when an extension could arrive
// too late: with it, a proxy whose assignment has expired gets all units again.
func (m *member) left(now int64) uint64 {
	if m.newest.Bucket == nil || now >= m.expiresAt-int64(settleTime) {
		return 0
	}
	return uint64(m.newest.Units) - min(uint64(m.newest.Units), m.reportedOfNewest)
}

// needs returns how many units the proxy needs until its next report has been answered, or until the window ends, and
// q.floor more: about as many as its callers ask for, and with headroom for more callers.
func (m *member) needs(q *quantities) (units, withHeadroom uint64) {
	asked := m.demand * min(m.interval+settleTime.Seconds()/2, q.windowSeconds)
	const headroom = 1.25
	return q.bounded(asked + math.Sqrt(asked)/2), q.bounded(asked * headroom)
}

// bounded returns units, rounded up, and the floor, at most the capacity.
func (q *quantities) bounded(units float64) uint64 {
	if units >= float64(q.capacity) {
		return q.capacity
	}
	return min(uint64(math.Ceil(units))+q.floor, q.capacity)
}

// needsAssignment reports whether the proxy, after a report at the time now, should get units: it has none, it may use
// up what it has before its next report, what it has expires before, or it has much more than it needs.
func (m *member) needsAssignment(now int64, q *quantities) bool {
	switch {
	case m.newest.Bucket == nil || m.mustReplace || m.expiresSoon(now):
		return true
	case q.action != AssignUnits:
		return q.action != m.newest.Action
	}
	left := m.left(now)
	_, want := m.needs(q)
	return left < want*3/4 || left > q.tooMany(want)
}

// expiresSoon reports whether the assignment may expire before the next report is answered.
func (m *member) expiresSoon(now int64) bool {
	return m.expiresAt-now < int64((m.interval+settleTime.Seconds())*float64(time.Second))
}

// ttl returns for how long an assignment holds: until the next report but one has been answered, in whole seconds, as
// Envoy ignores fractions.
func (m *member) ttl() time.Duration {
	seconds := math.Ceil(2*m.interval + settleTime.Seconds())
	return time.Duration(min(max(seconds, 2), 2*maxInterval)) * time.Second
}

// replace makes the proxy get new units, because those that it has are no longer charged. A silent proxy gets them when
// it reports.
func (m *member) replace(now int64) {
	m.mustReplace = true
	m.isDue = m.isDue || !m.isSilent(now)
}

// isSilent reports whether the proxy has missed its last reports, so that it gets no more units.
func (m *member) isSilent(now int64) bool {
	return now-m.lastReport > int64((3*m.interval+settleTime.Seconds())*float64(time.Second))
}
