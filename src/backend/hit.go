package backend

import (
	"ratelimit/src/algorithm"
)

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
	// CountDown says that the store keeps, under Key as it stands, how much of the
	// limit remains, and that this key expires with the window. The limit is a
	// first-hit window of whole seconds. Other programs can share such a counter.
	CountDown bool
	// Limit is the rule's arithmetic; never nil.
	Limit *algorithm.Limit
	// Amount is in [0, MaxAmount].
	Amount uint64
	Op     algorithm.Op
	// Group joins the hits that stand or fall together. The hits of one group
	// stand side by side in a batch.
	Group uint16
	// Atomic hits are charged only if every hit of their group passes; then
	// also a limit with CountBlocked does not count what was refused.
	Atomic bool
	// NoVeto hits (shadow mode) are judged and charged, but their refusal
	// stops nobody else.
	NoVeto bool
	// Fallback says how the hit is decided if the store does not answer. Stores
	// ignore it; the layer in front of them reads it.
	Fallback Fallback
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
	if h.Op == algorithm.Refund || h.Op == algorithm.Force {
		h.Amount = 0
	}
	h.Op, h.Atomic = algorithm.Look, false
	return h
}
