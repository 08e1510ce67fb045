package backend

import (
	"encoding/binary"
	"fmt"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/siphash"
)

// Hit is one charge of a request against one limit.
type Hit struct {
	// Key names the counter. It is the caller's memory, valid only during Take.
	Key []byte
	// TagLength is the length of the front part of Key that chooses the server, in a store of several servers. With 0
	// all of Key chooses it. Hits on equal keys with different tags may or may not share a counter.
	TagLength int
	// SharesKey says that a descriptor charges several limits under the same Key. The store must
	// add the limit to the names of their counters, and keep these counters on one server.
	SharesKey bool
	// StoresRemaining says that the store keeps, under Key as it stands, how much of the limit remains, and that this
	// key expires with the window. The limit is a first-hit window of whole seconds. Other programs can share such a
	// counter.
	StoresRemaining bool
	// Limit is the rule's arithmetic; never nil.
	Limit *algorithm.Limit
	// Amount is at most algorithm.MaxAmount.
	Amount uint64
	Op     algorithm.Op
	// HoldID names the hold that Op opens (Charge), settles with Amount (Force) or releases (Refund). It is zero for a
	// hit that is none. Only limits with a Hold have one. See algorithm.HeldState.
	HoldID algorithm.HoldID
	// GroupID is the same number for hits that pass or fail together. They are neighbours in the batch.
	GroupID uint16
	// Atomic hits are charged only if every hit of their group passes, even if the limit has CountBlocked.
	Atomic bool
	// NoVeto hits (shadow mode) are decided and charged, but do not refuse their group.
	NoVeto bool
	// Fallback says how the hit is decided if the store does not answer. Stores ignore it; package fallback reads it.
	Fallback Fallback
}

// AnyAtomic reports whether at least one of the hits is atomic.
func AnyAtomic(hits []Hit) bool {
	for i := range hits {
		if hits[i].Atomic {
			return true
		}
	}
	return false
}

// AsLook returns a look that asks whether h would pass. For a refund or a force it asks for 0.
func (h Hit) AsLook() Hit {
	if !h.Op.CanBeRefused() {
		h.Amount = 0
	}
	h.Op, h.Atomic = algorithm.Look, false
	return h
}

// NewHoldID returns the HoldID of a caller's name of a hold. It is zero for an empty name.
func NewHoldID(name []byte) (id algorithm.HoldID) {
	if len(name) > 0 {
		low, high := siphash.Key{}.Sum128(uint64(len(name)), name)
		binary.LittleEndian.PutUint64(id[:8], low|1) // An id is never zero.
		binary.LittleEndian.PutUint64(id[8:], high)
	}
	return id
}

// Fallback says how a hit is decided when its store does not answer.
type Fallback uint8

const (
	// FallbackError leaves the decision to the caller: the verdict has an Err.
	FallbackError Fallback = iota
	// FallbackAllow lets the hit pass.
	FallbackAllow
	// FallbackDeny refuses the hit.
	FallbackDeny
	// FallbackLocal counts the hit in this process, against this replica's share of the limit.
	FallbackLocal

	numFallbacks
)

var fallbackNames = [numFallbacks]string{"error", "allow", "deny", "local"}

// String returns the word that rule files use.
func (f Fallback) String() string {
	if f < numFallbacks {
		return fallbackNames[f]
	}
	return fmt.Sprintf("fallback %d", uint8(f))
}

// ParseFallback returns the fallback with that word.
func ParseFallback(word string) (f Fallback, ok bool) {
	i := slices.Index(fallbackNames[:], word)
	return Fallback(max(i, 0)), i >= 0
}

// FallbackNames returns the words of all fallbacks.
func FallbackNames() []string { return slices.Clone(fallbackNames[:]) }
