package leased

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
)

const (
	// maxContended bounds the contended leases that are visited at each tick.
	maxContended = 64 << 10
	// maxTold bounds the bytes that a replica tells at a time; what does not fit waits for the next tick.
	maxTold = 32 << 10
	// maxUntold bounds the bytes that wait to be told.
	maxUntold = 1 << 20
	// maxResolveTime is the longest time that a hit waits for other replicas.
	maxResolveTime = 500 * time.Millisecond
)

// contendedLeases has what this replica must tell others, and the leases that it gives units back of.
type contendedLeases struct {
	mu     sync.Mutex
	untold []byte // names of contended counters, as appendName writes them. Guarded by mu
	leases []ref  // guarded by mu
	// tellTime is how long it took to tell others last, in nanoseconds; 0 before.
	tellTime atomic.Int64
}

// contend marks l as contended, unless it is already, and tells other replicas. The caller holds mu of the shard.
func (s *Store) contend(r ref, l lease, now instant) {
	if l.isContended() {
		return
	}
	l.contend(now)
	s.figures.contended.Add(1)
	s.contended.mu.Lock()
	defer s.contended.mu.Unlock()
	key := r.shard.key(l)
	s.contended.tellLater(key.bytes, l.limit, key.sharesKey)
	s.contended.watch(r)
	s.wakeUp()
}

// watch adds a lease that gives back units at each tick. The caller holds c.mu.
func (c *contendedLeases) watch(r ref) {
	if len(c.leases) < maxContended {
		c.leases = append(c.leases, r)
	}
}

// tellLater adds a contended counter to those that the next tick tells of. The caller holds c.mu.
func (c *contendedLeases) tellLater(key []byte, l *algorithm.Limit, sharesKey bool) {
	if len(c.untold) < maxUntold {
		c.untold = appendName(c.untold, key, l, sharesKey)
	}
}

// allCounters stands for all counters, in place of a name.
const allCounters = 0xFF

// appendName appends what finds the lease of a counter in another process: its key, and its kind and period.
func appendName(dst, key []byte, l *algorithm.Limit, sharesKey bool) []byte {
	shares := byte(0)
	if sharesKey {
		shares = 1
	}
	dst = append(dst, byte(l.Kind), shares)
	dst = binary.AppendUvarint(dst, uint64(l.Period))
	dst = binary.AppendUvarint(dst, uint64(len(key)))
	return append(dst, key...)
}

// name is what appendName has written.
type name struct {
	kind      algorithm.Kind
	sharesKey bool
	period    time.Duration
	key       []byte
}

// nextName reads the first name of text. ok is false if text has none. A name with the kind allCounters has nothing
// else.
func nextName(text []byte) (n name, rest []byte, ok bool) {
	if len(text) > 0 && text[0] == allCounters {
		return name{kind: allCounters}, text[1:], true
	}
	if len(text) < 2 {
		return n, nil, false
	}
	n.kind, n.sharesKey = algorithm.Kind(text[0]), text[1] == 1
	period, size := binary.Uvarint(text[2:])
	if size <= 0 {
		return n, nil, false
	}
	rest = text[2+size:]
	length, size := binary.Uvarint(rest)
	if size <= 0 || length > maxKeyBytes || uint64(len(rest)-size) < length {
		return n, nil, false
	}
	n.period, n.key = time.Duration(period), rest[size:][:length]
	return n, rest[size+int(length):], true
}

// Heard is called with the texts that other replicas told; this one's may be among them. If all is false, there were
// others, which are unknown.
func (s *Store) Heard(texts [][]byte, all bool) {
	now := s.now()
	for _, text := range texts {
		for {
			n, rest, ok := nextName(text)
			if !ok {
				break
			}
			if text = rest; n.kind == allCounters {
				all = false
			} else {
				s.heard(n, now)
			}
		}
	}
	if !all {
		s.contendAll(now)
	}
	s.wakeUp()
}

// heard marks the lease of a counter as contended, if there is one.
func (s *Store) heard(n name, now instant) {
	hash := s.seeds.of(n.key, n.kind, n.period, n.sharesKey)
	sh := &s.shards[hash.shard]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	slot := sh.tables.Load().find(&hash)
	if slot == 0 {
		return
	}
	l := sh.at(slot)
	if l.isContended() {
		return
	}
	l.contend(now)
	s.contended.mu.Lock()
	defer s.contended.mu.Unlock()
	s.contended.watch(ref{sh, slot, l.generation})
}

// contendAll marks all leases with units as contended.
func (s *Store) contendAll(now instant) {
	s.forAll(func(sh *shard, l lease, slot uint32) {
		if l.held > 0 && !l.isContended() {
			l.contend(now)
			s.contended.mu.Lock()
			s.contended.watch(ref{sh, slot, l.generation})
			s.contended.mu.Unlock()
		}
	})
}

// giveBackUnneeded queues the units of contended leases that hits did not need lately, and forgets the leases that are
// no longer contended.
func (s *Store) giveBackUnneeded(now instant) {
	s.contended.mu.Lock()
	refs := s.contended.leases
	s.contended.leases = nil
	s.contended.mu.Unlock()
	kept := refs[:0]
	for _, r := range refs {
		if s.giveBackOf(r, now) {
			kept = append(kept, r)
		}
	}
	s.contended.mu.Lock()
	defer s.contended.mu.Unlock()
	s.contended.leases = append(kept, s.contended.leases...)
}

// giveBackOf queues the units of one lease, and reports whether it is still contended.
func (s *Store) giveBackOf(r ref, now instant) bool {
	r.shard.mu.Lock()
	defer r.shard.mu.Unlock()
	l := r.lease()
	if l.isNone() || !l.isContended() || now.forLimit(l.limit) >= l.end && !l.limit.RefillsSteadily() {
		return false
	}
	l.settleContention(now)
	if keep := l.needed(tickOf(now)); l.held > keep {
		back := uint64(l.held - keep)
		l.held, r.shard.held = keep, r.shard.held-back
		s.returnUnits(r.shard, l, back)
	}
	return true
}

// resolveTime returns how long other replicas need to give back units: a tick until they are told, the same until they
// read it, and the calls of the store in between.
func (s *Store) resolveTime() time.Duration {
	return min(2*s.Pause()+4*time.Duration(s.contended.tellTime.Load())+10*time.Millisecond, maxResolveTime)
}

// tell tells the other replicas of counters that became contended.
func (s *Store) tell(ctx context.Context) {
	s.contended.mu.Lock()
	text := s.contended.untold
	s.contended.untold = nil
	if len(text) > maxTold {
		cut := 0
		for rest := text; len(text)-len(rest) < maxTold; {
			cut = len(text) - len(rest)
			_, after, ok := nextName(rest)
			if !ok {
				break
			}
			rest = after
		}
		s.contended.untold = append([]byte(nil), text[cut:]...)
		text = text[:cut]
	}
	s.contended.mu.Unlock()
	if len(text) == 0 || s.cfg.Tell == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	start := s.now()
	if s.cfg.Tell(ctx, text) != nil {
		s.figures.tellErrors.Add(1)
		return
	}
	s.contended.tellTime.Store(s.now().mono - start.mono)
}
