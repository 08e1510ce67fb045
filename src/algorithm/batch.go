package algorithm

import (
	"errors"
	"fmt"
	"time"
)

// MaxAmount is the largest amount of one hit, 2^48 (281 trillion). Front ends
// saturate at it, so that sums of many hits stay far from overflow.
const MaxAmount = 1 << 48

// Op is what a hit does to its counter.
type Op uint8

const (
	// Charge asks for Amount and counts it as the limit says.
	Charge Op = iota
	// Look asks whether Amount would pass, and writes nothing.
	Look
	// Refund gives Amount back. It is never over, never goes below empty and
	// never creates a key.
	Refund
	// Force adds Amount without asking. It is never over.
	Force
)

// String is the constant's name in lower case.
func (o Op) String() string {
	switch o {
	case Charge:
		return "charge"
	case Look:
		return "look"
	case Refund:
		return "refund"
	case Force:
		return "force"
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// Hit is one charge of a request against one limit.
type Hit struct {
	// Key is what the store counts under. It is the caller's memory, valid
	// only during Take.
	Key []byte
	// Tag is how many bytes of Key, from its front, name what a store of several
	// servers keeps on one of them. 0: all of Key. Whether hits on equal keys
	// with different tags share a counter is the store's business.
	Tag int
	// Together says that the hit is one of several charges of a descriptor, so
	// that its counter has to be apart from those of other limits on Key, and
	// beside them.
	Together bool
	// Divvy says that Key is one of Button's divvy, and the limit a first-hit
	// window of whole seconds: a store that divvy has too keeps the counter as it
	// does, so that both can count there.
	Divvy bool
	// Limit is the rule's arithmetic; never nil.
	Limit *Limit
	// Amount is in [0, MaxAmount].
	Amount uint64
	Op     Op
	// Group joins the hits that stand or fall together. The hits of one group
	// stand side by side in a batch.
	Group uint16
	// Atomic hits are charged only if every hit of their group passes; then
	// also a limit with CountBlocked does not count what was refused.
	Atomic bool
	// NoVeto hits (shadow mode) are judged and charged, but their refusal
	// stops nobody else.
	NoVeto bool
	// OnFailure is what becomes of the hit if its store does not answer. Stores
	// themselves look past it: it is for what stands in front of them.
	OnFailure OnFailure
}

// AnyAtomic reports whether hits, the hits of one group, stand or fall together.
func AnyAtomic(hits []Hit) bool {
	for i := range hits {
		if hits[i].Atomic {
			return true
		}
	}
	return false
}

// AsLook is h without its effect: would it pass? What asks for nothing, a refund
// or a force, looks at the state as it is.
func (h Hit) AsLook() Hit {
	if h.Op == Refund || h.Op == Force {
		h.Amount = 0
	}
	h.Op, h.Atomic = Look, false
	return h
}

// ErrOverload is wrapped by the Err of hits for which a store that works had no time:
// they waited behind the other hits of their request, or behind other requests. The
// store itself is in order.
var ErrOverload = errors.New("the request needs more time of the store than there is")

// Verdict is the store's answer to one hit. The zero value is "passed, nothing
// known".
type Verdict struct {
	// Over says that the hit was refused.
	Over bool
	// Charged says that the counter was written for this hit.
	Charged bool
	// Cached says that a cache answered and the store was not asked.
	Cached bool
	// Before and After are the counter before and after this hit. They are
	// equal when nothing was charged.
	Before, After uint64
	// Remaining is what would still pass after this hit, or after the minimum
	// interval. A refused hit on a GCRA, a first-hit window or a sliding window is
	// told what a smaller one could still take; on a fixed window or an estimate it
	// is told 0, as callers of envoyproxy/ratelimit expect.
	Remaining uint64
	// RetryAfter is how long the same hit has to wait before it passes: 0 when
	// it passed, -1 when it can never pass.
	RetryAfter time.Duration
	// ResetAfter is the time until the limit is whole again, over or not.
	ResetAfter time.Duration
	// Interval says that the minimum interval refused the hit.
	Interval bool
	// FullUntil is the instant before which not even one unit passes; zero
	// when some might: then nothing may be cached.
	FullUntil time.Time
	// Instead says that the store did not answer, and what was done instead. Zero:
	// it did, or there is an Err.
	Instead OnFailure
	// Err says that this hit's store did not answer. What was charged is then
	// unknown, and the other fields mean nothing. It wraps ErrOverload if the store
	// works and had too much to do.
	Err error
}

// Reasons says why v is over: for the count, which amount did not fit into, for
// the minimum interval, or for both.
func (v *Verdict) Reasons(amount, capacity uint64) (count, interval bool) {
	return v.Over && (v.Before+amount > capacity || !v.Interval), v.Interval
}

// Never is the RetryAfter of a hit that can never pass.
const Never time.Duration = -1

// Uncharged is the verdict on an atomic hit on l whose group was refused, so that
// nothing was charged. look is the verdict on the hit AsLook, on the state as it
// is; tried the one it had as if the hits of its group before it had been
// charged, because of which alone it may be over.
func Uncharged(l *Limit, look, tried Verdict) Verdict {
	v := look
	v.Over, v.Interval = tried.Over, tried.Interval
	switch {
	case !tried.Over:
		v.RetryAfter = 0
	case !look.Over:
		v.RetryAfter = tried.RetryAfter
		if !l.Kind.tellsRest() {
			v.Remaining = 0
		}
	}
	return v
}

// Looked is the verdict on h of v, which may be that on h AsLook: a refund or a
// forced hit that was only looked at may seem over, but never is.
func (h *Hit) Looked(v Verdict) Verdict {
	if h.Op == Refund || h.Op == Force {
		v.Over, v.Interval, v.RetryAfter = false, false, 0
	}
	return v
}

// Batch is all that one request charges. It goes to the store in one call.
type Batch struct {
	Hits []Hit
	// Verdicts has the length and order of Hits; Take fills it.
	Verdicts []Verdict
	// Now is the instant at which the batch happens. Zero is the store's own
	// clock; anything else is virtual time, which every algorithm honours.
	Now time.Time
}

// The instants a batch may happen at: int64 nanoseconds with room for the
// longest period beyond them.
var (
	minNow = time.Unix(0, 0)
	maxNow = time.Date(2150, 1, 1, 0, 0, 0, 0, time.UTC)
)

// ValidNow reports whether a batch may happen at t: in the years 1970 to 2149.
func ValidNow(t time.Time) bool { return !t.Before(minNow) && !t.After(maxNow) }

// Check reports misuse of b: what a caller got wrong, never what a client
// sent. Every store calls it first.
func (b *Batch) Check() error {
	if len(b.Verdicts) != len(b.Hits) {
		return fmt.Errorf("algorithm: %d verdicts for %d hits", len(b.Verdicts), len(b.Hits))
	}
	if !b.Now.IsZero() && !ValidNow(b.Now) {
		return fmt.Errorf("algorithm: the instant %v is not between the years 1970 and 2150", b.Now)
	}
	for i := range b.Hits {
		h := &b.Hits[i]
		switch {
		case h.Limit == nil:
			return errors.New("algorithm: a hit without a limit")
		case h.Tag < 0 || h.Tag > len(h.Key):
			return fmt.Errorf("algorithm: a tag of %d bytes for a key of %d", h.Tag, len(h.Key))
		case h.Amount > MaxAmount:
			return fmt.Errorf("algorithm: an amount of %d is above 2^48", h.Amount)
		case h.Op > Force:
			return fmt.Errorf("algorithm: %v is not known", h.Op)
		case h.OnFailure >= onFailures:
			return fmt.Errorf("algorithm: %v is not known", h.OnFailure)
		case h.Limit.Kind >= kinds:
			return fmt.Errorf("algorithm: %v is not known", h.Limit.Kind)
		case h.Limit.Period <= 0:
			return errors.New("algorithm: a limit without a period")
		}
	}
	return nil
}

// GroupEnd returns the index behind the last hit of the group that begins at
// hit i.
func (b *Batch) GroupEnd(i int) int {
	end := i + 1
	for end < len(b.Hits) && b.Hits[end].Group == b.Hits[i].Group {
		end++
	}
	return end
}

// Err is the first error in the verdicts; nil: there is none.
func (b *Batch) Err() error {
	for i := range b.Verdicts {
		if err := b.Verdicts[i].Err; err != nil {
			return err
		}
	}
	return nil
}
