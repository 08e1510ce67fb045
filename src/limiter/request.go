package limiter

import (
	"errors"
	"fmt"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// MaxDescriptors is how many descriptors a request may have at most. Envoy sends a
// handful. Config.MaxDescriptors lowers it.
const MaxDescriptors = 1000

// Request asks whether something may happen. Its bytes belong to the caller;
// the limiter keeps none of them.
type Request struct {
	Domain      []byte
	Descriptors []Descriptor
	// Hits is charged to every descriptor that has no Hits of its own. 0 means
	// 1, as in Envoy's API.
	Hits uint64
	// Independent says that the descriptors have nothing to do with each other, as if
	// each came in a request of its own behind the one before: no rule replaces
	// another's, and each passes or is refused alone, as its Status says. Questions
	// that came one after the other so go to the store in one call, in their order.
	Independent bool
	// Now is the instant at which the request happens. Zero is the clock of
	// the store; anything else is virtual time.
	Now time.Time
}

// Descriptor is one question of a request.
type Descriptor struct {
	// Entries are keys and values in order.
	Entries []rules.Entry
	// HasHits says that Hits counts for this descriptor, 0 included: a look
	// that charges nothing.
	HasHits bool
	Hits    uint64
	// Refund gives the hits back.
	Refund bool
	// HasLimit says that Limit takes the place of whatever is configured.
	HasLimit bool
	Limit    rules.Quantity
}

// Answer is the decision on one request. Check fills it and reuses the memory
// it finds in it.
type Answer struct {
	// Over says that the request may not happen; of descriptors Independent, that some
	// may not.
	Over bool
	// Statuses has one element per descriptor, in order.
	Statuses []Status
	// Charges are those of all Statuses, in order.
	Charges []Charge
	// Set is the configuration the request was decided by.
	Set *rules.Set
	// Domain is the request's domain in the Set; nil when it has none of that
	// name.
	Domain *rules.Domain
	// Shadowed says that the limiter's own shadow mode turned over into not
	// over; the statuses still say which.
	Shadowed bool
}

// Retry is how long the request has to wait before it passes; not ok when it is
// not refused, or never will. All must pass that refuse by themselves, and of
// those in quota mode, if all are over, any one.
func (a *Answer) Retry() (wait time.Duration, ok bool) {
	if !a.Over {
		return 0, false
	}
	quotas, quotasOver := 0, 0
	first := algorithm.Never // of the quotas
	for i := range a.Statuses {
		st := &a.Statuses[i]
		after := st.Wait
		switch {
		case st.Quota && !st.Over:
			quotas++
		case st.Quota:
			quotas++
			quotasOver++
			if after != algorithm.Never && (first == algorithm.Never || after < first) {
				first = after
			}
		case !st.Over:
		case after == algorithm.Never:
			return 0, false
		default:
			wait = max(wait, after)
		}
	}
	if quotas == 0 || quotasOver < quotas {
		return wait, true
	}
	return max(wait, first), first != algorithm.Never
}

// Status is the decision on one descriptor.
type Status struct {
	// Over says that a limit of this descriptor is exceeded that is not in
	// shadow mode.
	Over bool
	// Refused says that a request of this descriptor alone may not happen: Over,
	// and the limiter's own shadow mode is off.
	Refused bool
	// Rule is what the descriptor met, in an ordered list the rule that answers;
	// nil for nothing (a rule that another of the request replaces included), and
	// for a limit that came with the request.
	Rule *rules.Rule
	// Quota says that the request is refused only if all its descriptors in
	// quota mode are over.
	Quota bool
	// Amount is what was charged, or given back with Op Refund.
	Amount uint64
	Op     algorithm.Op
	// Charges are the limits that were asked, in the order of the rules; none
	// where none applies.
	Charges []Charge
	// Binding is the one of them that callers are told of, -1 for none: see
	// Bound.
	Binding int
	// Wait is how long the same request has to wait for this descriptor to pass
	// when it is Over: algorithm.Never when it cannot.
	Wait time.Duration
	// Until is what callers are told as the time until reset: when Over the
	// longest wait of the limits that refuse, for one that can never pass its
	// reset, else the longest time until a limit is whole again. In whole
	// seconds for fixed windows, as Envoy has them, and in whole microseconds
	// for others, rounded up.
	Until time.Duration
}

// Charge is one limit that was asked, and its verdict.
type Charge struct {
	// Rule is whose limit it is; nil for one that came with the request.
	Rule  *rules.Rule
	Limit rules.Quantity
	// Over says that the limit refuses: exceeded, and not in shadow mode.
	Over    bool
	Verdict backend.Verdict
	// Canary says that the rule, in an ordered list, was passed over: it is in
	// shadow mode, and what it says is counted and nothing more.
	Canary bool
}

// Bound is the charge that says most: of those that refuse the one with the
// longest wait, else the one with the fewest remaining, the first of equals, but
// none that is Canary. It is nil when no limit was asked.
func (st *Status) Bound() *Charge {
	if len(st.Charges) == 0 || st.Binding < 0 {
		return nil
	}
	return &st.Charges[st.Binding]
}

// Unlimited reports whether an unlimited rule matched, and no limit was asked.
func (st *Status) Unlimited() bool {
	return st.Rule != nil && st.Rule.Unlimited && st.Bound() == nil
}

// Failed reports whether a limit was asked that its store did not answer for, so
// that the descriptor was not decided.
func (st *Status) Failed() bool {
	for i := range st.Charges {
		if c := &st.Charges[i]; c.Verdict.Err != nil && !c.Canary {
			return true
		}
	}
	return false
}

// Fallback is what was done for want of an answer of the store, of the first
// charge that had none. Zero: the store answered, or Failed says that it did not.
func (st *Status) Fallback() backend.Fallback {
	for i := range st.Charges {
		if c := &st.Charges[i]; c.Verdict.Fallback != backend.FallbackError && !c.Canary {
			return c.Verdict.Fallback
		}
	}
	return backend.FallbackError
}

// Fallback is the same of the first Status that has one.
func (a *Answer) Fallback() backend.Fallback {
	for i := range a.Statuses {
		if f := a.Statuses[i].Fallback(); f != backend.FallbackError {
			return f
		}
	}
	return backend.FallbackError
}

// The classes of errors that Check returns. Their texts are safe to send to
// callers: they name no key and no value.
var (
	// ErrRequest: the request makes no sense; asking again will not help.
	ErrRequest = errors.New("bad request")
	// ErrTooLarge: the request asks for more than one request may, such as too many
	// descriptors. It is an ErrRequest.
	ErrTooLarge = fmt.Errorf("%w: too large", ErrRequest)
	// ErrNotReady: no rules are loaded yet.
	ErrNotReady = errors.New("no rules are loaded yet")
	// ErrStore: the counters could not be reached.
	ErrStore = errors.New("the store did not answer")
)
