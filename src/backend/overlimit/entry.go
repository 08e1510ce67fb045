package overlimit

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// id identifies a counter: 128 bits of keyed hash over its key and the kind and period of
// its window. It does not depend on the rule, so a refund drops the entry of its counter
// whatever rule it comes with.
type id [16]byte

// hasher holds the keys of the hashes.
type hasher [2]maphash.Seed

func newHasher() hasher { return hasher{maphash.MakeSeed(), maphash.MakeSeed()} }

func (h *hasher) id(hit *backend.Hit) (id id) {
	c := struct {
		key    [2]uint64
		period time.Duration
		kind   algorithm.Kind
	}{[2]uint64{maphash.Bytes(h[0], hit.Key), maphash.Bytes(h[1], hit.Key)}, hit.Limit.Period, hit.Limit.Kind}
	binary.LittleEndian.PutUint64(id[:8], maphash.Comparable(h[0], c))
	binary.LittleEndian.PutUint64(id[8:], maphash.Comparable(h[1], c))
	return id
}

// rule returns a hash over all fields of l.
func (h *hasher) rule(l *algorithm.Limit) uint64 { return maphash.Comparable(h[0], *l) }

// entry says that a counter is full under one rule, from the instant since up to until, in
// nanoseconds since the Unix epoch.
type entry struct {
	since, until int64
	// state is the count of a fixed or a first-hit window, the arrival time of a GCRA, and
	// of a sliding window the instant at which it is empty.
	state uint64
	rule  uint64 // see hasher.rule
}

// newEntry returns the entry that the store's verdict on h allows; ok is false if there is
// none. since is when the store was asked. The entry reckons from then with the waits of the
// verdict, not with the store's clock, which may differ.
//
// Of a sliding window there is an entry if exactly Max units count and one was asked for:
// nothing changes until the oldest hit leaves, and RetryAfter is when. There is none if
// refused hits or a minimum interval change later outcomes, nor of a sliding window counter,
// whose estimate shrinks steadily.
//
// While its clock is behind its newest hit, a sliding window stands still, but the waits of
// the entry pass. Then the entry ends too early, and the store is asked.
func newEntry(h *backend.Hit, v *backend.Verdict, since int64) (e entry, ok bool) {
	if v.Err != nil || !v.Over || v.FullUntil.IsZero() {
		return e, false
	}
	l := h.Limit
	e.since = since
	if l.Kind != algorithm.FixedWindow && (l.CountBlocked || l.MinInterval > 0 || l.Max == 0) {
		return e, false
	}
	empty := since + int64(v.ResetAfter)
	switch l.Kind {
	case algorithm.FixedWindow:
		e.until, e.state = v.FullUntil.UnixNano(), v.After // both follow this process' clock
		return e, true
	case algorithm.FirstHitWindow:
		e.until, e.state = empty, v.After
		return e, true
	case algorithm.GCRA:
		e.until, e.state = empty+l.Emission()-l.Tolerance(), uint64(empty)
		// Beyond the tolerance the arrival time is of a larger limit or of a clock that was set back.
		return e, int64(v.ResetAfter) < l.Tolerance()
	case algorithm.SlidingWindow:
		e.until, e.state = since+int64(v.RetryAfter), uint64(empty)
		return e, h.Amount == 1 && v.After == l.Max
	}
	return e, false
}

const entryBytes = 32

func (e *entry) encode(b *[entryBytes]byte) {
	for i, n := range [...]uint64{uint64(e.since), uint64(e.until), e.state, e.rule} {
		binary.LittleEndian.PutUint64(b[8*i:], n)
	}
}

func decode(b []byte) entry {
	n := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return entry{since: int64(n(0)), until: int64(n(1)), state: n(2), rule: n(3)}
}

// verdict returns the verdict on h, a charge or a look, at the instant at; ok is false if
// the store must decide.
func (e *entry) verdict(h *backend.Hit, at int64) (v backend.Verdict, ok bool) {
	l, look := h.Limit, algorithm.Look
	switch l.Kind {
	case algorithm.FixedWindow:
		// While the count is at most Max, a hit of 0 passes, and a hit that counts although
		// it is refused changes later verdicts: the store must decide both. Beyond Max all
		// hits are over, and counting more changes nothing.
		counts := h.Op == algorithm.Charge && l.CountBlocked && (!h.Atomic || h.NoVeto)
		if e.state <= l.Max && (h.Amount == 0 || counts) {
			return v, false
		}
		wait := time.Duration(e.until - at) // then the count is 0, so all amounts wait for that
		v.Outcome = algorithm.Outcome{Over: true, Before: e.state, After: e.state, RetryAfter: wait, ResetAfter: wait, FullUntil: time.Unix(0, e.until)}
		if h.Amount > l.Max {
			v.RetryAfter = algorithm.Never
		}
	case algorithm.FirstHitWindow:
		_, v.Outcome = algorithm.TakeFirstHit(l, algorithm.FirstHit{Count: e.state, End: e.until}, at, look, h.Amount)
	case algorithm.GCRA:
		_, v.Outcome = algorithm.TakeGCRA(l, algorithm.Arrival{TAT: int64(e.state)}, at, look, h.Amount)
	case algorithm.SlidingWindow:
		if h.Amount > 1 && h.Amount <= l.Max {
			return v, false // the entry has only the wait of one unit
		}
		age := l.Period - time.Duration(int64(e.state)-at)
		leaves := time.Duration(e.until - at)
		s := algorithm.SlidingState{Now: at, Used: l.Max, Newest: age, NewestAfter: age, Wait: leaves, WaitForOne: leaves}
		v.Outcome = s.Outcome(l, look, h.Amount)
	}
	v.Cached = true
	return v, v.Over // a hit of 0 may pass
}

// seconds returns for how long freecache keeps the entry, by its own clock. That only frees
// memory; since and until decide. Virtual time may pass slower, so there it is at least an
// hour. It is at most a month, since freecache adds it up in 32 bits.
func (e *entry) seconds(virtual bool) int {
	const hour, month = 60 * 60, 30 * 24 * 60 * 60
	n := (e.until - e.since + int64(time.Second) - 1) / int64(time.Second)
	if virtual {
		n = max(n, hour)
	}
	return int(min(n, month))
}
