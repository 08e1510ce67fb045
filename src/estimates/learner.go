// Package estimates learns how many units a request of a rule uses, for rules with `reserve_on_check` and no number.
package estimates

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Learner learns from charges, as a limiter.Recorder, and is the limiter.Estimates of checks. What it knows is lost
// with the process.
type Learner struct {
	seed  maphash.Seed
	rules atomic.Pointer[map[uint32]*history] // by Rule.Owner; nil before the first UseRules
	// counters has an estimate for each counter that was charged lately, in 512 KB: one that needs the slot of another
	// one replaces it. It is nil before the first charge.
	counters atomic.Pointer[[slots]atomic.Uint64]
}

const (
	slots = 1 << 16
	// A slot has 49 bits of units below a part of the hash of the counter's key.
	unitBits = 49
	unitMask = 1<<unitBits - 1
)

// New returns a Learner that knows nothing.
func New() *Learner { return &Learner{seed: maphash.MakeSeed()} }

// UseRules tells l which rules are in force. What it knows of others is forgotten.
func (l *Learner) UseRules(set *rules.Set) {
	now, old := make(map[uint32]*history), l.rules.Load()
	for _, r := range set.Rules() {
		if r.Reserve == nil || r.Reserve.Estimate > 0 {
			continue
		}
		h := new(history)
		if old != nil && (*old)[r.Owner] != nil {
			h = (*old)[r.Owner]
		}
		now[r.Owner] = h
	}
	l.rules.Store(&now)
}

// Record implements limiter.Recorder: it learns from charges.
func (l *Learner) Record(_ *limiter.Request, a *limiter.Answer) {
	for i := range a.Charges {
		c := &a.Charges[i]
		if c.Rule == nil || c.Rule.Reserve == nil || c.Rule.Reserve.Estimate > 0 || c.Op != algorithm.Force ||
			c.Verdict.Err != nil {
			continue
		}
		l.learn(c.CounterKey, c.RequestedAmount)
		if h := l.historyOf(c.Rule); h != nil {
			h.add(c.RequestedAmount)
		}
	}
}

func (l *Learner) historyOf(r *rules.Rule) *history {
	if all := l.rules.Load(); all != nil {
		return (*all)[r.Owner]
	}
	return nil
}

// slot returns the slot of a counter, and the bits above its units.
func (l *Learner) slot(counters *[slots]atomic.Uint64, key []byte) (slot *atomic.Uint64, tag uint64) {
	hash := maphash.Bytes(l.seed, key)
	return &counters[hash%slots], hash &^ unitMask
}

// learn adjusts the estimate of a counter. It follows a larger charge at once, and a smaller one by an eighth of the
// difference.
func (l *Learner) learn(key []byte, units uint64) {
	counters := l.counters.Load()
	if counters == nil {
		l.counters.CompareAndSwap(nil, new([slots]atomic.Uint64))
		counters = l.counters.Load()
	}
	slot, tag := l.slot(counters, key)
	if known := slot.Load(); known&^unitMask == tag && known&unitMask > units {
		was := known & unitMask
		units = was - (was-units+7)/8
	}
	slot.Store(tag | units)
}

// Estimate implements limiter.Estimates. It is about the most that the last charges of the counter have used; for a
// counter that was not charged lately, what 95 % of the charges of the rule stay below; and 0 before the first charge.
func (l *Learner) Estimate(c *limiter.Charge) uint64 {
	if counters := l.counters.Load(); counters != nil {
		slot, tag := l.slot(counters, c.CounterKey)
		if known := slot.Load(); known&^unitMask == tag && known&unitMask > 0 {
			return known & unitMask
		}
	}
	if h := l.historyOf(c.Rule); h != nil {
		return h.high.Load()
	}
	return 0
}

// history counts the charges of a rule by their size. Its zero value is ready to use.
type history struct {
	high   atomic.Uint64 // what 95 % of the charges stay below, at least; 0 before the first
	mu     sync.Mutex    // guards the fields below
	counts [4 * 49]uint32
	total  uint32
}

// maxTotal is when older charges lose half of their weight.
const maxTotal = 4096

// bucketOf returns the bucket of a number of units, and bucketEnd the largest number of a bucket. There are four for
// each power of two.
func bucketOf(units uint64) int {
	if units < 4 {
		return int(units)
	}
	exponent := bits.Len64(units) - 3
	return 4*exponent + int(units>>exponent)
}

func bucketEnd(bucket int) uint64 {
	if bucket < 8 {
		return uint64(bucket)
	}
	exponent := bucket/4 - 1
	return (uint64(bucket%4)+5)<<exponent - 1
}

// add counts a charge.
func (h *history) add(units uint64) {
	if !h.mu.TryLock() {
		return // Another goroutine counts one; some are enough.
	}
	defer h.mu.Unlock()
	h.counts[min(bucketOf(units), len(h.counts)-1)]++
	h.total++
	if h.total > 100 && h.total%32 != 0 {
		return
	}
	if h.total >= maxTotal {
		h.total = 0
		for i := range h.counts {
			h.counts[i] /= 2
			h.total += h.counts[i]
		}
	}
	above := uint32(0)
	for i := len(h.counts) - 1; i >= 0; i-- {
		if above += h.counts[i]; above*20 > h.total {
			h.high.Store(max(bucketEnd(i), 1))
			return
		}
	}
}
