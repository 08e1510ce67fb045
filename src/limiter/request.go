package limiter

import (
	"errors"
	"fmt"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
)

// MaxDescriptors is the most descriptors of a request. Envoy sends a handful.
const MaxDescriptors = 1000

// Request asks whether a caller may use what its descriptors name. Its bytes belong to the
// caller of Check; the limiter keeps none of them.
type Request struct {
	Domain      []byte
	Descriptors []Descriptor
	// DefaultAmount is how many units a descriptor without its own Amount charges. 0 means 1, as in Envoy.
	DefaultAmount uint64
	// IgnoresHolds says that the entries name counters: they need not name a hold, and a hold that they name has no
	// effect. It is for programs that look at counters.
	IgnoresHolds bool
	// CallerLimit, if set, is the only limit of each descriptor, and no rules apply to the request, as with CL.THROTTLE.
	// It is a GCRA with an Emission. Domain and the value of the first entry of a descriptor name its counter.
	CallerLimit *algorithm.Limit
	Now         time.Time // when the store decides the request. The zero time means the store's own clock.
	// Protocol is that of the front end, such as "grpc". It is for Recorders, and has no effect on the decision.
	Protocol string
}

// Descriptor is one question of a request: may units pass that match these entries?
type Descriptor struct {
	Entries []rules.Entry // in order.
	// Amount replaces Request.DefaultAmount for this descriptor if HasAmount is set. Then 0 units are
	// a look at the counter, which charges nothing, or the settlement of a hold that nothing was used of.
	Amount    uint64
	HasAmount bool
	// IsRefund returns the units to the counter instead of charging them. If the entries name a hold, it releases the
	// hold.
	IsRefund bool
	HasLimit bool // true if Limit replaces the limits of the rules for this descriptor.
	Limit    rules.Rate
}

// These are the errors that Check wraps. Their texts name no counter, so callers may see them.
var (
	ErrInvalidRequest = errors.New("bad request") // The same request always fails.
	// ErrRequestTooLarge says that the request is too large, as with too many descriptors. It wraps ErrInvalidRequest.
	ErrRequestTooLarge = fmt.Errorf("%w: too large", ErrInvalidRequest)
	ErrNoRules         = errors.New("no rules are loaded yet")
	ErrStoreFailed     = errors.New("the store did not answer") // for a descriptor.
	// ErrCallerLeft says that the caller canceled the request before the store answered. That is no failure of the store.
	ErrCallerLeft = errors.New("the request was canceled")

	errNoDomain      = fmt.Errorf("%w: the domain is empty", ErrInvalidRequest)
	errNoDescriptors = fmt.Errorf("%w: there are no descriptors", ErrInvalidRequest)
)
