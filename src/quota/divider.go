package quota

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Config configures a Divider.
type Config struct {
	Limiter      *limiter.Limiter // has the rules in force; required.
	Backend      backend.Backend  // keeps the counters; required.
	StoreTimeout time.Duration    // bounds a call of Backend. Defaults to 1 s.
	// AbandonAfter is how long a proxy may use nothing of a bucket before it has to forget the bucket. Defaults to 10
	// minutes.
	AbandonAfter       time.Duration
	MaxBuckets         int  // how many buckets all proxies may have together. Defaults to 100,000.
	MaxBucketsPerProxy int  // Defaults to 20,000.
	StoreIsShared      bool // true if other replicas divide limits of the same Backend.
	// VirtualTime makes the store decide at Instant.wall instead of by its own clock, for simulations.
	VirtualTime bool
	// OnUsage, if set, gets what proxies report. It must be fast, and keep nothing of it.
	OnUsage func(Usage)
}

// Usage is what a proxy reports of a bucket.
type Usage struct {
	Domain          []byte
	Entries         []rules.Entry // sorted by key.
	Target          Target
	Allowed, Denied uint64 // how many requests passed, and were refused, at most 2^32-1 each.
}

// Divider divides limits among proxies. It is safe for concurrent use.
type Divider struct {
	cfg  Config
	wake chan struct{} // a value if there is work for the next round.

	mu      sync.Mutex
	buckets map[string]*bucket  // by domain and entries, see bucketName.
	list    []*bucket           // all buckets in no order.
	urgent  []*bucket           // work for the next round.
	wheel   [wheelSlots]*bucket // lists of the buckets whose round is planned, by the remainder of their nextTick.
	left    leftUnits           // of buckets that are gone.
	tick    int64               // the first tick whose slot of wheel was not taken.

	stats Stats

	// What follows belongs to Run.
	replicaID algorithm.HoldID // the first half of the ids of holds. See presence.
	holds     uint64           // counts the holds.
	countedAt int64            // the last second in which Totals were added up.
	due       []*bucket
	round     []roundItem
	members   []*member     // the due members of all buckets of the round.
	looks     backend.Batch // the hits of appendLooks and appendPresence.
	charges   backend.Batch
	claim     []claim
}

// Stats are figures of a Divider since its start; figures.txt says what they are. Proxies, Buckets and Members, pairs
// of both, are what there is now. The front end counts Reports and Responses.
type Stats struct {
	Proxies, Buckets, Members                              atomic.Int64
	Reports, Responses, Assignments, Extensions, Abandoned atomic.Uint64
	AssignedUnits, UnassignedUnits                         atomic.Uint64
	RefusedBuckets, Races, StoreFailures                   atomic.Uint64

	totals atomic.Pointer[Totals]
}

// New returns a Divider. It does nothing until Run.
func New(cfg Config) *Divider {
	cfg.StoreTimeout = cmp.Or(cfg.StoreTimeout, time.Second)
	cfg.AbandonAfter = cmp.Or(cfg.AbandonAfter, 10*time.Minute)
	cfg.MaxBuckets = cmp.Or(cfg.MaxBuckets, 100_000)
	cfg.MaxBucketsPerProxy = cmp.Or(cfg.MaxBucketsPerProxy, 20_000)
	return &Divider{cfg: cfg, wake: make(chan struct{}, 1), buckets: make(map[string]*bucket), replicaID: newReplicaID()}
}

// Stats returns the figures. They change while the Divider runs.
func (d *Divider) Stats() *Stats { return &d.stats }

const (
	// tickTime is the time between two rounds, and wheelSlots how many rounds ahead a round can be planned.
	tickTime   = 20 * time.Millisecond
	wheelSlots = 1500
	// bucketsPerCall is how many buckets share a call of the store.
	bucketsPerCall = 256
)

// Instant is a point in time on two clocks: one that never steps, and the wall clock, which windows depend on.
type Instant struct {
	elapsed int64 // in nanoseconds, and above 0.
	wall    int64 // in Unix nanoseconds.
}

// NewInstant returns the instant at which elapsed has passed since the start of the process, and the wall clock shows
// wall.
func NewInstant(elapsed time.Duration, wall time.Time) Instant {
	return Instant{int64(elapsed) + 1, wall.UnixNano()}
}

var processStart = time.Now()

// Now returns the current instant.
func Now() Instant {
	now := time.Now()
	return NewInstant(now.Sub(processStart), now)
}

// Run divides until ctx ends.
func (d *Divider) Run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.wake:
		case <-timer.C:
		}
		now := Now()
		d.Step(ctx, now)
		if d.stats.Buckets.Load() > 0 {
			timer.Reset(time.Duration(int64(tickTime) - now.elapsed%int64(tickTime)))
		}
	}
}

// Step runs one round at the time now: it divides all buckets that are due. Tests call it instead of Run.
func (d *Divider) Step(ctx context.Context, now Instant) {
	if second := now.elapsed / int64(time.Second); second != d.countedAt {
		d.countedAt = second
		d.addUp(now.elapsed)
	}
	d.takeDue(now)
	for due := d.due; len(due) > 0; {
		n := min(len(due), bucketsPerCall)
		d.divide(ctx, due[:n], now)
		if due = due[n:]; !d.cfg.VirtualTime {
			now = Now()
		}
	}
	clear(d.due)
}

// takeDue sets due to the buckets that have a round now.
func (d *Divider) takeDue(now Instant) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.due, d.urgent = d.urgent, d.due[:0]
	tick := now.elapsed / int64(tickTime)
	for d.tick = max(d.tick, tick-wheelSlots+1); d.tick <= tick; d.tick++ {
		for d.wheel[d.tick%wheelSlots] != nil {
			b := d.wheel[d.tick%wheelSlots]
			d.unschedule(b)
			d.due = append(d.due, b)
		}
	}
	for _, b := range d.due {
		b.nextTick = 0
	}
}

// schedule plans a round of b at the time at, as Instant.elapsed, unless an earlier one is planned.
func (d *Divider) schedule(b *bucket, at int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	tick := max((at+int64(tickTime)-1)/int64(tickTime), d.tick, 1)
	if d.tick > 0 {
		tick = min(tick, d.tick+wheelSlots-1)
	}
	if b.nextTick == 0 || tick < b.nextTick {
		d.unschedule(b)
		first := &d.wheel[tick%wheelSlots]
		b.nextTick, b.next = tick, *first
		if *first != nil {
			(*first).previous = b
		}
		*first = b
	}
}

// unschedule takes b out of the wheel, so that the wheel keeps no bucket that is gone. The caller holds mu.
func (d *Divider) unschedule(b *bucket) {
	if b.nextTick <= 0 {
		return
	}
	if b.previous != nil {
		b.previous.next = b.next
	} else {
		d.wheel[b.nextTick%wheelSlots] = b.next
	}
	if b.next != nil {
		b.next.previous = b.previous
	}
	b.nextTick, b.next, b.previous = 0, nil, nil
}

// hurry plans a round of b as soon as possible.
func (d *Divider) hurry(b *bucket) {
	d.mu.Lock()
	if b.nextTick != urgentTick {
		d.unschedule(b)
		b.nextTick = urgentTick
		d.urgent = append(d.urgent, b)
	}
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// urgentTick is the nextTick of buckets in Divider.urgent.
const urgentTick = -1

// roundItem is a bucket in a round.
type roundItem struct {
	bucket  *bucket
	group   uint16    // the group of its hits.
	members []*member // those that are due.

	// The hits of the bucket in Divider.looks: refunds and other changes from begin, looks at its limits from looks to
	// end, and the look at the presence of all replicas at presence, or -1.
	begin, looks, end, presence int
	charges, endOfCharges       int // the bounds of its charges in Divider.charges.
	hasAnswered                 bool
}

// divide gives units to the members of the buckets that are due: it looks how many units are left, divides them, and
// charges what the members get. If another replica is faster, the charge is refused, and the next round tries again.
func (d *Divider) divide(ctx context.Context, due []*bucket, now Instant) {
	for _, batch := range []*backend.Batch{&d.looks, &d.charges} {
		*batch = backend.Batch{Hits: batch.Hits[:0], Verdicts: batch.Verdicts[:0]}
		if d.cfg.VirtualTime {
			batch.Now = time.Unix(0, now.wall)
		}
	}
	d.round, d.members = d.round[:0], d.members[:0]
	set := d.cfg.Limiter.Rules()
	for i, b := range due {
		d.round = append(d.round, roundItem{bucket: b, group: uint16(i), presence: -1})
		d.look(&d.round[i], set, now)
	}
	d.take(ctx, &d.looks)
	for i := range d.round {
		d.charge(&d.round[i], now)
	}
	d.take(ctx, &d.charges)
	for i := range d.round {
		d.finish(&d.round[i], now)
	}
	clear(d.claim) // What is gone must not stay in memory.
	clear(d.round)
	clear(d.members)
	clear(d.looks.Hits)
	clear(d.charges.Hits)
}

// look begins the round of a bucket: it adds the looks, and what changes counters before.
func (d *Divider) look(item *roundItem, set *rules.Set, now Instant) {
	b := item.bucket
	b.mu.Lock()
	defer b.mu.Unlock()
	d.refresh(b, set)
	b.advance(now)
	item.begin = len(d.looks.Hits)
	b.appendLooks(&d.looks, now, item.group)
	item.end = len(d.looks.Hits)
	item.looks = item.end - len(b.target.Hits)
	if d.cfg.StoreIsShared && b.terms.action == AssignUnits {
		d.appendPresence(b, now, item.group)
		item.presence = len(d.looks.Hits) - 1
	}
}

// charge divides what the looks have found among the members of a bucket, and adds the charges.
func (d *Divider) charge(item *roundItem, now Instant) {
	b, verdicts := item.bucket, d.looks.Verdicts
	b.mu.Lock()
	defer b.mu.Unlock()
	available, answered := b.readLooks(verdicts[item.looks:item.end], now)
	if item.presence >= 0 {
		b.readPresence(&verdicts[item.presence])
	}
	first, units := len(d.members), uint64(0)
	d.members = b.startRound(d.members, now.elapsed)
	item.members, item.hasAnswered = d.members[first:], answered
	if answered && b.terms.action == AssignUnits {
		units, d.claim = b.plan(item.members, available, now, d.claim)
	}
	appendLateRefunds(&d.charges, &d.looks, item.begin, item.looks, now)
	item.charges = len(d.charges.Hits)
	for i := range b.target.Hits {
		if units > 0 {
			appendHit(&d.charges, &b.target.Hits[i], algorithm.Charge, units, item.group)
		}
	}
	item.endOfCharges = len(d.charges.Hits)
}

// refresh finds the target of b if another rule set is in force, or if its limit was changed at run time. A bucket
// whose target cannot be found is not limited.
func (d *Divider) refresh(b *bucket, set *rules.Set) {
	if set == nil || b.target.RuleSet == set && !b.target.isReplaced(b.domain, b.entries) {
		return
	}
	target, err := FindTarget(d.cfg.Limiter, b.domain, b.entries)
	if err != nil {
		target = Target{RuleSet: set}
	}
	b.use(target)
}

// take sends the batch to the store.
func (d *Divider) take(ctx context.Context, batch *backend.Batch) {
	if len(batch.Hits) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.StoreTimeout)
	defer cancel()
	if err := d.cfg.Backend.Take(ctx, batch); err != nil {
		for i := range batch.Verdicts {
			batch.Verdicts[i].Err = fmt.Errorf("quota: %w", err)
		}
	}
}

// finish sends the assignments of a round to the members of a bucket, and plans its next round.
func (d *Divider) finish(item *roundItem, now Instant) {
	b, verdicts := item.bucket, d.charges.Verdicts[item.charges:item.endOfCharges]
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.members) == 0 {
		if !b.isRemoved {
			b.isRemoved = true
			d.forget(b)
		}
		return
	}
	charged := item.hasAnswered
	for i := range verdicts {
		v := &verdicts[i]
		switch {
		case v.Err != nil:
			charged = false
			d.stats.StoreFailures.Add(1)
		case v.Over && !b.target.Hits[i].NoVeto && v.Fallback != backend.FallbackAllow:
			charged = false
			d.stats.Races.Add(1)
		case v.Fallback == backend.FallbackError:
			b.learnWindow(i, v, now)
		}
	}
	next := now.elapsed + int64(retryTime)
	if charged || b.terms.action != AssignUnits {
		next = d.assign(b, item.members, now.elapsed)
	}
	if b.isShortOfShare {
		next = min(next, b.shareEnd)
	}
	if item.presence >= 0 && b.peers.published == (presence{}) {
		next = min(next, now.elapsed+int64(retryTime))
	}
	d.schedule(b, min(next, now.elapsed+b.untilWindowEnd(now.wall)))
}

// retryTime is the time until the next round of a bucket whose units could not be charged, or whose presence is not
// published.
const retryTime = 100 * time.Millisecond

// assign sends what was planned for the due members of b. It returns when the next round should be, as Instant.elapsed.
func (d *Divider) assign(b *bucket, due []*member, now int64) (next int64) {
	action := b.terms.action
	next = now + min(int64(wheelSlots*tickTime), b.agingTime())
	refills := b.agingTime() < noEnd // Units become available at any time.
	for _, m := range due {
		switch {
		case m.isGone:
			continue
		case !m.isInRound:
			next = min(next, max(m.nextAssignment(), now))
			continue
		case action != AssignUnits && action == m.newest.Action && m.newest.Bucket != nil:
			d.extend(m, now)
		case action != AssignUnits:
			d.send(m, Assignment{Action: action}, now)
		case m.planned > 0:
			d.send(m, Assignment{Action: AssignUnits, Units: uint32(m.planned)}, now)
		case m.newest.Action == AssignUnits && m.left(now) == 0 || m.mustReplace:
			d.send(m, Assignment{Action: DenyAll}, now)
		case m.expiresSoon(now):
			d.extend(m, now)
		}
		m.planned, m.isDue, m.mustReplace = 0, b.isShort && (refills || b.isShortOfShare), false
		if m.isDue {
			next = min(next, max(m.nextAssignment(), now+int64(retryTime)))
		}
	}
	return next
}

// send gives a new assignment to a proxy. Its units are charged.
func (d *Divider) send(m *member, a Assignment, now int64) {
	a.Bucket, a.TTL, a.Serial = m.bucket.id, m.ttl(), m.newest.Serial+1
	m.assign(a.Units, now, now+int64(a.TTL))
	for i := range m.outstanding {
		m.outstanding[i] += uint64(a.Units)
	}
	m.taken += uint64(a.Units)
	m.bucket.taken += uint64(a.Units)
	m.unreported += uint64(a.Units)
	m.reportedOfNewest, m.newest, m.assignedAt = 0, a, now
	m.bucket.count(m, now)
	d.stats.Assignments.Add(1)
	d.stats.AssignedUnits.Add(uint64(a.Units))
	m.proxy.push(m, false)
}

// extend lets the newest assignment of a proxy hold for longer.
func (d *Divider) extend(m *member, now int64) {
	m.newest.TTL = m.ttl()
	m.expiresAt = now + int64(m.newest.TTL)
	d.stats.Extensions.Add(1)
	m.proxy.push(m, true)
}

// ErrTooManyBuckets says that a proxy reports more buckets than the bounds of Config allow.
var ErrTooManyBuckets = errors.New("too many quota buckets")

// ErrTooMuchMemory says that Proxy.Memory refused the memory of another bucket. The stream must end.
var ErrTooMuchMemory = errors.New("too much memory for quota buckets")
