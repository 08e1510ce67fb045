package limiter

import (
	"errors"
	"fmt"
	"time"

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
	// Independent decides each descriptor as if it came in a request of its own, after
	// the one before it: no rule replaces the rule of another descriptor, and each
	// Status stands alone. So several requests of one domain share one call of the store.
	Independent bool
	// Now is the instant at which the request happens. Zero is the clock of
	// the store; anything else is virtual time.
	Now time.Time
}

// Descriptor is one question of a request.
type Descriptor struct {
	// Entries are keys and values in order.
	Entries []rules.Entry
	// HasHits says that Hits counts for this descriptor. Hits of 0 look at the counter
	// and charge nothing.
	HasHits bool
	Hits    uint64
	// Refund gives the hits back.
	Refund bool
	// HasLimit says that Limit replaces whatever is configured.
	HasLimit bool
	Limit    rules.Quantity
}

// The classes of errors that Check returns. Their texts are safe to send to
// callers: they name no key and no value.
var (
	// ErrRequest: the request is invalid; asking again will not help.
	ErrRequest = errors.New("bad request")
	// ErrTooLarge: the request asks for more than one request may, such as too many
	// descriptors. It is an ErrRequest.
	ErrTooLarge = fmt.Errorf("%w: too large", ErrRequest)
	// ErrNotReady: no rules are loaded yet.
	ErrNotReady = errors.New("no rules are loaded yet")
	// ErrStore: the counters could not be reached.
	ErrStore = errors.New("the store did not answer")

	errNoDomain      = fmt.Errorf("%w: the domain is empty", ErrRequest)
	errNoDescriptors = fmt.Errorf("%w: there are no descriptors", ErrRequest)
)
