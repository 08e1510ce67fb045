package backend

import (
	"encoding/binary"

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
	// Owner tells hits of different rules apart in figures. It is 0 for a hit of no rule. Stores ignore it; package leased
	// counts by it.
	Owner uint32
	// Limit is the rule's arithmetic; never nil.
	Limit *algorithm.Limit
	// Amount is at most algorithm.MaxAmount.
	Amount uint64
	Op     algorithm.Op
	// HoldID names the hold that Op opens (Charge), settles with Amount (Force) or releases (Refund). It is
	// algorithm.Unnamed for the oldest one of those that have no name, and zero for a
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
	// Counting says where the hit is counted, and OnContention what happens to a leased one if nothing is left but what
	// replicas may hold. Stores ignore both; package leased reads them.
	Counting     Counting
	OnContention Contention
	// Window is 0, or the Outcome.WindowEnd of the window that counted the units of a Refund. The store compares it with
	// the window of the counter when it applies the refund, in the same step. In another window the units are no longer
	// counted, so the hit is a refund of 0. That is also so if a clock was set back, which gives a window another end.
	// Only limits with Limit.HasWindowEnd have one, without StoresRemaining: the key of such a counter has the end in
	// whole milliseconds, which do not tell a window from one that starts after a reset.
	Window int64
}

// Counting says where a hit is counted.
type Counting uint8

const (
	// Exact sends each hit to the store.
	Exact Counting = iota
	// Leased charges hits to units that this replica has taken from the store before.
	Leased
)

// Countings has the words of all countings.
var Countings = Words[Counting]{"counting", []string{"exact", "leased"}}

// String returns the word that rule files use.
func (c Counting) String() string { return Countings.Of(c) }

// Contention says what happens to a hit if the store has nothing left, and other replicas may hold units.
type Contention uint8

const (
	// Wait waits, within the caller's deadline, until the other replicas have given back what they do not need.
	Wait Contention = iota
	// Refuse refuses the hit at once.
	Refuse
)

// Contentions has the words of all contentions.
var Contentions = Words[Contention]{"on_contention", []string{"wait", "refuse"}}

// String returns the word that rule files use.
func (c Contention) String() string { return Contentions.Of(c) }

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
	h.Op, h.Atomic, h.Window = algorithm.Look, false, 0
	return h
}

// AmountIn returns the amount that h asks of a counter in the state st at the instant at: 0 for a refund of units that
// another window counted, and else h.Amount.
func (h *Hit) AmountIn(st *algorithm.State, at int64) uint64 {
	if h.Window != 0 && h.Window != st.WindowEnd(h.Limit, at) {
		return 0
	}
	return h.Amount
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
)

// Fallbacks has the words of all fallbacks.
var Fallbacks = Words[Fallback]{"on_store_failure", []string{"error", "allow", "deny", "local"}}

// String returns the word that rule files use.
func (f Fallback) String() string { return Fallbacks.Of(f) }
