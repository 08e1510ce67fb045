package overlimit

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// counterID identifies a counter: 128 bits of keyed hash over its key and its algorithm.Window. It does not depend
// on the rule, so a refund drops the entry of its counter whatever rule it comes with.
type counterID [16]byte

// idHasher computes ids and hashes of limits.
type idHasher [2]maphash.Seed

func newIDHasher() idHasher { return idHasher{maphash.MakeSeed(), maphash.MakeSeed()} }

func (h *idHasher) counterIDOf(hit *backend.Hit) (id counterID) {
	c := struct {
		key    [2]uint64
		window algorithm.Window
	}{[2]uint64{maphash.Bytes(h[0], hit.Key), maphash.Bytes(h[1], hit.Key)}, hit.Limit.Window()}
	binary.LittleEndian.PutUint64(id[:8], maphash.Comparable(h[0], c))
	binary.LittleEndian.PutUint64(id[8:], maphash.Comparable(h[1], c))
	return id
}

// ruleHash returns a hash of all fields of l. Equal calendars have equal hashes, although a reload of the rules
// replaces them.
func (h *idHasher) ruleHash(l *algorithm.Limit) uint64 {
	fields := struct {
		window       algorithm.Window
		max, burst   uint64
		minInterval  time.Duration
		emission     time.Duration
		countBlocked bool
		keepsDebt    bool
	}{l.Window(), l.Max, l.Burst, l.MinInterval, l.Emission, l.CountBlocked, l.KeepsDebt}
	return maphash.Comparable(h[0], fields)
}

// cacheEntry says that a counter is full under one rule, from the instant since up to the instant
// until, in nanoseconds since the Unix epoch.
type cacheEntry struct {
	validSince, validUntil int64
	// counterState is the count of a fixed or a first-hit window, the Arrival.TAT of a GCRA, or the
	// instant at which a sliding window is empty.
	counterState uint64
	ruleHash     uint64 // is that of the limit and the generation; see Cache.ruleHash
	// windowEnd is the Outcome.WindowEnd of a first-hit window, by the clock of the store; 0 for other kinds.
	windowEnd int64
}

// newEntry returns the entry that the store's verdict on h allows; ok is false if it allows none. since is when the
// store was asked. The entry adds the waits of the verdict to since, because the store's clock may differ from ours.
//
// A sliding window gets an entry if exactly Max units count and h asks for one unit. Then nothing changes until the
// oldest hit leaves the window, after RetryAfter. No limit gets an entry whose later outcomes depend on refused hits or
// on a minimum interval. A sliding window counter gets none, because its estimate shrinks all the time.
func newEntry(h *backend.Hit, v *backend.Verdict, since int64) (e cacheEntry, ok bool) {
	if v.Err != nil || !v.Over || v.FullUntil == 0 {
		return e, false
	}
	l := h.Limit
	e.validSince = since
	if l.Kind != algorithm.FixedWindow && (l.CountBlocked || l.MinInterval > 0 || l.Max == 0) {
		return e, false
	}
	empty := since + int64(v.ResetAfter)
	switch l.Kind {
	case algorithm.FixedWindow:
		// the fixed windows of all stores follow this process' clock
		e.validUntil, e.counterState = v.FullUntil, v.After
		return e, true
	case algorithm.FirstHitWindow:
		e.validUntil, e.counterState, e.windowEnd = empty, v.After, v.WindowEnd
		return e, true
	case algorithm.GCRA:
		e.validUntil, e.counterState = empty+l.EmissionInterval()-l.BurstTolerance(), uint64(empty)
		// A TAT further ahead is from a larger limit, or from before a clock was set back.
		return e, int64(v.ResetAfter) < l.BurstTolerance()
	case algorithm.SlidingWindow:
		e.validUntil, e.counterState = since+int64(v.RetryAfter), uint64(empty)
		return e, h.Amount == 1 && v.After == l.Max
	}
	return e, false
}

// entryBytes is the size of the longest encoding of an entry. Without a windowEnd it has 8 bytes less.
const entryBytes = 40

func (e *cacheEntry) encode(b *[entryBytes]byte) []byte {
	for i, n := range [...]uint64{
		uint64(e.validSince), uint64(e.validUntil), e.counterState, e.ruleHash, uint64(e.windowEnd),
	} {
		binary.LittleEndian.PutUint64(b[8*i:], n)
	}
	if e.windowEnd == 0 {
		return b[:entryBytes-8]
	}
	return b[:]
}

func decodeEntry(b []byte) cacheEntry {
	n := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	e := cacheEntry{validSince: int64(n(0)), validUntil: int64(n(1)), counterState: n(2), ruleHash: n(3)}
	if len(b) == entryBytes {
		e.windowEnd = int64(n(4))
	}
	return e
}

// verdict returns the verdict on h, a charge or a look, at the instant at; ok is false if the store must decide.
func (e *cacheEntry) verdict(h *backend.Hit, at int64) (v backend.Verdict, ok bool) {
	l, look, left := h.Limit, algorithm.Look, time.Duration(e.validUntil-at)
	switch l.Kind {
	case algorithm.FixedWindow:
		// While the count is at most Max, a hit of 0 passes unless Max is 0, and a hit that counts although it is
		// refused changes later verdicts: the store must decide both. Beyond Max all hits are over, and counting more
		// changes nothing. Refused hits of a leased limit need not count.
		counts := h.Op == algorithm.Charge && l.CountBlocked && (!h.Atomic || h.NoVeto) && h.Counting != backend.Leased
		if e.counterState <= l.Max && (h.Amount == 0 || counts) {
			return v, false
		}
		v.Outcome = algorithm.Outcome{
			Over: true, Before: e.counterState, After: e.counterState, RetryAfter: left,
			ResetAfter: left, FullUntil: e.validUntil, WindowEnd: e.validUntil,
		}
		if !l.CanPass(h.Amount) {
			v.RetryAfter = algorithm.Never
		}
	case algorithm.FirstHitWindow:
		_, v.Outcome = algorithm.TakeFirstHit(l, algorithm.FirstHitState{
			Count:     e.counterState,
			WindowEnd: e.validUntil,
		}, at, look, h.Amount)
		v.WindowEnd = e.windowEnd
	case algorithm.GCRA:
		_, v.Outcome = algorithm.TakeGCRA(l, algorithm.GCRAState{TAT: int64(e.counterState)}, at, look, h.Amount)
	case algorithm.SlidingWindow:
		if h.Amount > 1 && h.Amount <= l.Max {
			return v, false // the entry knows only how long one unit must wait
		}
		age := l.Period - time.Duration(int64(e.counterState)-at)
		s := algorithm.SlidingSnapshot{
			Now: at, UnitsInWindow: l.Max, NewestAge: age, NewestAgeAfter: age,
			WaitForAmount: left, WaitForOneUnit: left,
		}
		v.Outcome = s.Outcome(l, look, h.Amount)
	}
	v.Cached = true
	return v, v.Over // a hit with an amount of 0 may pass
}

// expirySeconds returns how long freecache keeps the entry, by its own clock. That only frees memory, because since and
// until say when the entry holds. Virtual time may pass more slowly, so entries of virtual time are kept for at least
// an hour. The result is at most a month, since freecache adds up seconds in 32 bits.
func (e *cacheEntry) expirySeconds(virtualTime bool) int {
	const hour, month = 60 * 60, 30 * 24 * 60 * 60
	n := (e.validUntil - e.validSince + int64(time.Second) - 1) / int64(time.Second)
	if virtualTime {
		n = max(n, hour)
	}
	return int(min(n, month))
}
