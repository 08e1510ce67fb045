package quota

import (
	"bytes"
	"slices"
	"sync"
	"time"

	"ratelimit/src/rules"
)

// Action is what a proxy does with the requests of a bucket.
type Action uint8

const (
	// AssignUnits lets Units requests pass, and refuses the others.
	AssignUnits Action = iota
	// AllowAll lets all requests pass.
	AllowAll
	// DenyAll refuses all requests.
	DenyAll
	// Abandon makes the proxy forget the bucket, and report it as a new one with its next request.
	Abandon
)

var actionNames = [...]string{"units", "allow_all", "deny_all", "abandon"}

// String returns the name that operators see.
func (a Action) String() string { return actionNames[a] }

// Assignment tells a proxy what to do with the requests of a bucket.
type Assignment struct {
	Bucket []byte // the BucketId as a protobuf message. Callers must not change it.
	Action Action
	Units  uint32 // set for AssignUnits only, and at least 1 there.
	// IsExtension says that the proxy had these units, and that only TTL is new.
	IsExtension bool
	// Serial is another number for each assignment of a bucket, so that a proxy can tell new units from an extension of
	// the old ones.
	Serial uint32
	TTL    time.Duration // for how long the assignment holds, in whole seconds.
}

// Proxy is a stream of one proxy. One goroutine may call Report and Close, and another one TakePending.
type Proxy struct {
	// Memory, if set, counts what the divider keeps for the proxy. Only the owner of the stream sets it, before the first
	// Report.
	Memory Memory
	held   int64 // how many bytes of Memory the proxy holds.
	// Peer names the proxy for people, by its address. Only the owner of the stream sets it, before the first Report.
	Peer string

	divider *Divider
	domain  []byte
	members map[string]*member // by BucketId as the proxy writes it.
	ready   chan struct{}
	spare   []*member // the memory of an earlier pending. It belongs to TakePending.

	mu      sync.Mutex
	pending []*member // a newest assignment that was not taken.
}

// Memory bounds the memory of proxies.
type Memory interface {
	// HoldBytes adds n bytes. It returns false if there is too much; then the stream must end.
	HoldBytes(n int64) bool
	// ReleaseBytes subtracts n bytes that HoldBytes added.
	ReleaseBytes(n int64)
}

// Connect returns a Proxy for a new stream.
func (d *Divider) Connect(domain []byte) *Proxy {
	d.stats.Proxies.Add(1)
	return &Proxy{
		divider: d, domain: bytes.Clone(domain), members: make(map[string]*member),
		ready: make(chan struct{}, 1),
	}
}

// Report notes what the proxy reports of a bucket. id is the BucketId as a protobuf message, valid only during the
// call. entries returns its entries sorted by key; Report calls it for new buckets only. The error is
// ErrTooManyBuckets, ErrTooMuchMemory, or that of entries.
func (p *Proxy) Report(id []byte, allowed, denied uint64, now Instant, entries func() ([]rules.Entry, error)) error {
	m := p.members[string(id)]
	if m == nil || m.isGone { // A bucket that was abandoned under another order of its entries is gone, too.
		list, err := entries()
		if err != nil {
			return err
		}
		if m, err = p.join(id, list); err != nil {
			return err
		}
	}
	b := m.bucket
	b.mu.Lock()
	unassigned := min(m.report(allowed, denied, now.elapsed), maxAssignedUnits)
	b.unassigned += unassigned
	p.divider.stats.UnassignedUnits.Add(unassigned)
	if !m.isDue {
		q := b.quantities(now)
		m.isDue = m.needsAssignment(now.elapsed, &q)
	}
	m.figures.measure(allowed, denied, now.elapsed, b.fairSeconds)
	b.count(m, now.elapsed)
	isNew, isDue, target := m.newest.Bucket == nil, m.isDue || b.unassigned > 0 || m.hasSpare(), b.target
	nextRound := b.nextRound(now.elapsed)
	isIdle := now.elapsed-m.lastUse >= int64(p.divider.cfg.AbandonAfter)
	b.mu.Unlock()
	if f := p.divider.cfg.OnUsage; f != nil && allowed|denied > 0 {
		f(Usage{b.domain, b.entries, target, min(allowed, maxAssignedUnits), min(denied, maxAssignedUnits)})
	}
	switch {
	case isIdle:
		p.abandon(string(id), m)
	case isNew:
		p.divider.hurry(b)
	case isDue:
		p.divider.schedule(b, nextRound)
	}
	return nil
}

// join makes the proxy a member of the bucket with these entries.
func (p *Proxy) join(id []byte, entries []rules.Entry) (*member, error) {
	d := p.divider
	if len(p.members) >= d.cfg.MaxBucketsPerProxy {
		d.stats.RefusedBuckets.Add(1)
		return nil, ErrTooManyBuckets
	}
	if !p.hold(memberMemory(len(id)) + bucketMemory(len(id))) {
		return nil, ErrTooMuchMemory
	}
	isMade := false
	defer func() {
		if !isMade {
			p.release(bucketMemory(len(id)))
		}
	}()
	name := bucketName(p.domain, entries)
	for {
		var b *bucket
		var err error
		if b, isMade, err = d.bucketNamed(name, p.domain, id, entries); err != nil {
			p.release(memberMemory(len(id)))
			return nil, err
		}
		b.mu.Lock()
		if b.isRemoved {
			b.mu.Unlock()
			continue
		}
		// The same entries in another order.
		if i := slices.IndexFunc(b.members, func(m *member) bool { return m.proxy == p }); i >= 0 {
			m := b.members[i]
			b.mu.Unlock()
			p.members[string(id)] = m
			return m, nil
		}
		// Later only a round may refresh it, because the verdicts of a round belong to the target.
		if b.target.RuleSet == nil {
			d.refresh(b, d.cfg.Limiter.Rules())
		}
		m := &member{proxy: p, bucket: b, madeBucket: isMade, outstanding: make([]uint64, len(b.target.Hits)), isDue: true}
		b.members = append(b.members, m)
		b.mu.Unlock()
		d.stats.Members.Add(1)
		p.members[string(id)] = m
		return m, nil
	}
}

// These are about how many bytes a member and a bucket take, without texts. TestMemoryOfBuckets checks them.
const (
	bytesPerMember = 500
	bytesPerBucket = 1600
)

// memberMemory returns about how many bytes a member takes whose bucket has an id of so many bytes.
func memberMemory(idBytes int) int64 { return bytesPerMember + int64(idBytes) }

// bucketMemory returns about how many bytes a bucket takes: its names and those of its counters are six copies of the
// id.
func bucketMemory(idBytes int) int64 { return bytesPerBucket + 6*int64(idBytes) }

func (p *Proxy) hold(bytes int64) bool {
	if p.Memory != nil && !p.Memory.HoldBytes(bytes) {
		return false
	}
	p.held += bytes
	return true
}

func (p *Proxy) release(bytes int64) {
	if p.held -= bytes; p.Memory != nil {
		p.Memory.ReleaseBytes(bytes)
	}
}

// bucketNamed returns the bucket with the name. If there is none, it makes one, and isMade is true.
func (d *Divider) bucketNamed(name string, domain, id []byte, entries []rules.Entry) (_ *bucket, isMade bool, _ error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b := d.buckets[name]
	if b != nil {
		return b, false, nil
	}
	if len(d.buckets) >= d.cfg.MaxBuckets {
		d.stats.RefusedBuckets.Add(1)
		return nil, false, ErrTooManyBuckets
	}
	b = &bucket{
		domain: bytes.Clone(domain), id: bytes.Clone(id), entries: make([]rules.Entry, len(entries)), terms: termsOf(nil),
	}
	for i, e := range entries {
		b.entries[i] = rules.Entry{Key: bytes.Clone(e.Key), Value: bytes.Clone(e.Value)}
	}
	d.buckets[name] = b
	b.position, d.list = len(d.list), append(d.list, b)
	d.stats.Buckets.Add(1)
	return b, true, nil
}

// bucketName returns a text that is different for different domains and entries.
func bucketName(domain []byte, entries []rules.Entry) string {
	var name []byte
	add := func(text []byte) {
		name = append(append(name, byte(len(text)>>16), byte(len(text)>>8), byte(len(text))), text...)
	}
	add(domain)
	for _, e := range entries {
		add(e.Key)
		add(e.Value)
	}
	return string(name)
}

// abandon makes the proxy forget a bucket that it does not use. Units that it still has stay charged.
func (p *Proxy) abandon(id string, m *member) {
	delete(p.members, id)
	p.release(memberMemory(len(id)))
	if m.madeBucket {
		p.release(bucketMemory(len(id)))
	}
	b := m.bucket
	b.mu.Lock()
	m.newest = Assignment{Bucket: b.id, Action: Abandon}
	p.push(m, false)
	b.mu.Unlock()
	p.divider.leave(m)
	p.divider.stats.Abandoned.Add(1)
}

// leave removes m from its bucket. Units that its proxy cannot use any more go back to the store, those that it may use
// do not.
func (d *Divider) leave(m *member) {
	b := m.bucket
	b.mu.Lock()
	freed := uint64(0)
	for i := range m.outstanding {
		b.limits[i].freed += m.spare(i)
		freed += b.limits[i].freed
	}
	m.isGone = true
	b.noteLeave(m)
	b.members = slices.DeleteFunc(b.members, func(other *member) bool { return other == m })
	b.isRemoved = len(b.members) == 0 && freed == 0
	removed := b.isRemoved
	b.mu.Unlock()
	d.stats.Members.Add(-1)
	if removed {
		d.forget(b)
	} else {
		d.hurry(b)
	}
}

// forget removes a bucket without members.
func (d *Divider) forget(b *bucket) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if name := bucketName(b.domain, b.entries); d.buckets[name] == b {
		delete(d.buckets, name)
		d.stats.Buckets.Add(-1)
		d.unschedule(b)
		last := len(d.list) - 1
		d.list[b.position] = d.list[last]
		d.list[b.position].position = b.position
		d.list[last] = nil
		d.list = d.list[:last]
		d.left.add(b.figures.left)
	}
}

// Close ends the stream: the proxy leaves all its buckets.
func (p *Proxy) Close() {
	for _, m := range p.members {
		if !m.isGone {
			p.divider.leave(m)
		}
	}
	p.members = nil
	p.release(p.held)
	p.divider.stats.Proxies.Add(-1)
}

// push adds the newest assignment of m to those that the stream sends. isExtension says that it only holds for longer.
// The caller holds the lock of the bucket.
func (p *Proxy) push(m *member, isExtension bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !m.isPending { // Otherwise the proxy does not have the units yet.
		m.newest.IsExtension, m.isPending = isExtension, true
		p.pending = append(p.pending, m)
	}
	select {
	case p.ready <- struct{}{}:
	default:
	}
}

// Ready returns a channel that gets a value when TakePending has something to return.
func (p *Proxy) Ready() <-chan struct{} { return p.ready }

// TakePending appends the newest assignments that were not taken. A slow stream misses those in between.
func (p *Proxy) TakePending(dst []Assignment) []Assignment {
	p.mu.Lock()
	pending := p.pending
	p.pending = p.spare[:0]
	p.mu.Unlock()
	for i, m := range pending {
		m.bucket.mu.Lock()
		p.mu.Lock()
		m.isPending = false
		p.mu.Unlock()
		dst = append(dst, m.newest)
		m.bucket.mu.Unlock()
		pending[i] = nil
	}
	p.spare = pending
	return dst
}
