package overlimit

import (
	"encoding/binary"
	"hash/maphash"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// id is what an entry is found under: 128 bits of keyed hash over what makes a
// counter one of its own, which are its key and the kind and length of its
// window. Not the rule: a refund ends the entry of its counter whatever rule
// it comes with, and the entry of a rule that has changed makes room for the
// next.
type id [16]byte

// hasher hashes with keys of its own.
type hasher [2]maphash.Seed

func newHasher() hasher { return hasher{maphash.MakeSeed(), maphash.MakeSeed()} }

func (h *hasher) id(hit *backend.Hit) (id id) {
	type counter struct {
		key    [2]uint64
		period time.Duration
		kind   algorithm.Kind
	}
	c := counter{
		key:    [2]uint64{maphash.Bytes(h[0], hit.Key), maphash.Bytes(h[1], hit.Key)},
		period: hit.Limit.Period,
		kind:   hit.Limit.Kind,
	}
	binary.LittleEndian.PutUint64(id[:8], maphash.Comparable(h[0], c))
	binary.LittleEndian.PutUint64(id[8:], maphash.Comparable(h[1], c))
	return id
}

// rule tells the arithmetic of one rule from another's, by every field there
// is.
func (h *hasher) rule(l *algorithm.Limit) uint64 { return maphash.Comparable(h[0], *l) }

// entry says that a counter is full. It holds from the instant at which that
// was seen until not even that is true, for the rule it was seen under.
type entry struct {
	since, until int64 // nanoseconds since the Unix epoch; since <= now < until
	// state is what else there is to know: of a fixed and a first-hit window the
	// count, of a bucket its arrival time, and of a sliding window when it is
	// empty; instants as above.
	state uint64
	rule  uint64
}

// learnt is what the store's verdict on h tells, asked at the instant since; not
// ok if that is not enough to answer for it. All is reckoned from what the store
// said it takes from then on, not by its clock, which may go differently.
//
// Of a sliding window it is enough if it holds just what it may, as then nothing
// changes until its oldest hit leaves, and if a single unit was asked for, whose
// wait that is. What refused hits change, or a distance to the last one, is not
// told at all, nor how the estimate of two buckets shrinks.
//
// A sliding window stands still at its newest hit while the clock is behind that,
// after it stepped back. Waits that are told from here pass meanwhile, and those of the
// store do not: they are too short, and the store is asked when they have passed.
func learnt(h *backend.Hit, v *backend.Verdict, since int64) (e entry, ok bool) {
	if v.Err != nil || !v.Over || v.FullUntil.IsZero() {
		return e, false
	}
	l := h.Limit
	e.since = since
	switch {
	case l.Kind == algorithm.FixedWindow:
		e.until, e.state = v.FullUntil.UnixNano(), v.After // both clocks are ours
		return e, true
	case l.CountBlocked || l.MinInterval > 0 || l.Max == 0:
		return e, false
	}
	whole := since + int64(v.ResetAfter)
	switch l.Kind {
	case algorithm.FirstHitWindow:
		e.until, e.state = whole, v.After
	case algorithm.GCRA:
		if int64(v.ResetAfter) >= l.Tolerance() {
			return e, false // what is kept may be further ahead: of a larger limit, or a clock that stepped back
		}
		e.until, e.state = whole+l.Emission()-l.Tolerance(), uint64(whole)
	case algorithm.SlidingWindow:
		if h.Amount != 1 || v.After != l.Max {
			return e, false
		}
		e.until, e.state = since+int64(v.RetryAfter), uint64(whole)
	default:
		return e, false
	}
	return e, true
}

const entryBytes = 32

func (e *entry) encode(b *[entryBytes]byte) {
	binary.LittleEndian.PutUint64(b[0:], uint64(e.since))
	binary.LittleEndian.PutUint64(b[8:], uint64(e.until))
	binary.LittleEndian.PutUint64(b[16:], e.state)
	binary.LittleEndian.PutUint64(b[24:], e.rule)
}

func decode(b []byte) entry {
	return entry{
		since: int64(binary.LittleEndian.Uint64(b[0:])),
		until: int64(binary.LittleEndian.Uint64(b[8:])),
		state: binary.LittleEndian.Uint64(b[16:]),
		rule:  binary.LittleEndian.Uint64(b[24:]),
	}
}

// verdict is that on h, which is a charge or a look, at the instant at; not ok
// if e does not settle it.
func (e *entry) verdict(h *backend.Hit, at int64) (v backend.Verdict, ok bool) {
	l, look := h.Limit, algorithm.Look
	switch l.Kind {
	case algorithm.FixedWindow:
		return e.fixed(h, at)
	case algorithm.FirstHitWindow:
		_, v.Outcome = algorithm.TakeFirstHit(l, algorithm.FirstHit{Count: e.state, End: e.until}, at, look, h.Amount)
	case algorithm.GCRA:
		_, v.Outcome = algorithm.TakeGCRA(l, algorithm.Arrival{TAT: int64(e.state)}, at, look, h.Amount)
	case algorithm.SlidingWindow:
		if h.Amount > 1 && h.Amount <= l.Max {
			return v, false // how long that takes is not known
		}
		age := l.Period - time.Duration(int64(e.state)-at)
		leaves := time.Duration(e.until - at)
		s := algorithm.SlidingState{Now: at, Used: l.Max, Newest: age, NewestAfter: age, Leaves: leaves, OneLeaves: leaves}
		v.Outcome = s.Outcome(l, look, h.Amount)
	}
	v.Cached = true
	return v, v.Over // a hit of nothing may pass
}

// fixed is verdict for a fixed window. It is full, so every unit is refused; two
// cases are left to the store while the count is no more than Max:
//
//   - A hit of nothing, which passes. Beyond Max it is over.
//   - A charge that counts although it is refused. It takes the count beyond
//     Max; from then on counting more changes no answer.
//
// The window is empty when it is no longer full, so the wait is the same for
// every amount that can pass at all, and for the limit to be whole.
func (e *entry) fixed(h *backend.Hit, at int64) (v backend.Verdict, ok bool) {
	if e.state <= h.Limit.Max {
		vetoes := h.Atomic && !h.NoVeto // then its refusal is not counted
		if h.Amount == 0 || h.Op == algorithm.Charge && h.Limit.CountBlocked && !vetoes {
			return v, false
		}
	}
	wait := time.Duration(e.until - at)
	v = backend.Verdict{Outcome: algorithm.Outcome{Over: true, Before: e.state, After: e.state, RetryAfter: wait, ResetAfter: wait, FullUntil: time.Unix(0, e.until)}, Cached: true}
	if h.Amount > h.Limit.Max {
		v.RetryAfter = algorithm.Never
	}
	return v, true
}

// seconds is when freecache may forget the entry, by its own clock of whole
// seconds. It only frees memory: what holds is judged by since and until.
// Virtual time goes at a pace of its own, so there it is at least an hour; it
// is a month at most, as freecache adds it up in 32 bits.
func (e *entry) seconds(virtual bool) int {
	const hour, month = 60 * 60, 30 * 24 * 60 * 60
	n := (e.until - e.since + int64(time.Second) - 1) / int64(time.Second)
	if virtual {
		n = max(n, hour)
	}
	return int(min(n, month))
}
