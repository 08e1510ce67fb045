package operator

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// CounterEntry is one key and value of a descriptor.
type CounterEntry struct {
	Key string `json:"key"`
	// Value is the whole value. It is not used if Prefix is set.
	Value string `json:"value,omitempty"`
	// Prefix, if not nil, is the start of the value, and the entry stands for all values that begin with it. Only the last
	// entry of a descriptor may have one.
	Prefix *string `json:"prefix,omitempty"`
}

// CounterChange says what to do with the counters of a descriptor.
type CounterChange struct {
	// Action is get, reset or set.
	Action     string         `json:"action"`
	Domain     string         `json:"domain"`
	Descriptor []CounterEntry `json:"descriptor"`
	// Used is how many units the counters hold after set. Other actions have none.
	Used *uint64 `json:"used,omitempty"`
	// DryRun changes nothing, and only reports.
	DryRun bool `json:"dry_run,omitempty"`
}

// The actions of a CounterChange.
const (
	ActionGet   = "get"
	ActionReset = "reset"
	ActionSet   = "set"
)

// IsPattern reports whether c stands for all counters that begin with its descriptor.
func (c *CounterChange) IsPattern() bool {
	n := len(c.Descriptor)
	return n > 0 && c.Descriptor[n-1].Prefix != nil
}

// Changes reports whether c changes counters.
func (c *CounterChange) Changes() bool { return c.Action != ActionGet && !c.DryRun }

// Counter is one counter of a descriptor, and the limit that it belongs to.
type Counter struct {
	// Rule is the full name of the rule.
	Rule string `json:"rule"`
	// Key is the counter's key. Stores may add to it, such as the start of a window.
	Key       string `json:"key"`
	Algorithm string `json:"algorithm"`
	// Limit is how many units pass at once, in PeriodSeconds if the algorithm is not gcra.
	Limit uint64 `json:"limit"`
	// PeriodSeconds is 0 if the limit has a calendar, and for a concurrency.
	PeriodSeconds float64 `json:"period_seconds,omitempty"`
	// CalendarWindow is the window of a limit with a calendar, in words. It is empty for other limits.
	CalendarWindow string `json:"calendar_window,omitempty"`
	// HoldSeconds is the time after which a hold expires. It is 0 for limits without holds.
	HoldSeconds float64 `json:"hold_seconds,omitempty"`
	// Share is this replica's share of Limit, which counts while Fallback is local. It is 0 otherwise.
	Share uint64 `json:"share,omitempty"`
	// Used is the count, and Remaining what is left of the limit, or of Share.
	Used      uint64 `json:"used"`
	Remaining uint64 `json:"remaining"`
	// Held are those of Used that this replica has taken ahead, and no request has used yet. Only leased limits have some.
	Held uint64 `json:"held,omitempty"`
	// ResetAfterSeconds is the time until the count is 0.
	ResetAfterSeconds float64 `json:"reset_after_seconds"`
	// Refuses says that the limit would refuse a request for one unit. RetryAfterSeconds is the time until it passes: 0 if
	// it passes now, -1 if it never does.
	Refuses           bool    `json:"refuses"`
	RetryAfterSeconds float64 `json:"retry_after_seconds"`
	// Shadow says that a refusal has no effect: the rule is in shadow mode, or its enforce_percent leaves out the counter.
	Shadow bool `json:"shadow,omitempty"`
	// Fallback is how the limit is decided because the store does not answer. It is empty if the store answers.
	Fallback string `json:"fallback,omitempty"`
}

// CounterReport is the result of a CounterChange.
type CounterReport struct {
	CounterChange
	// Counters are those of the descriptor, after the change. A pattern has none.
	Counters []Counter `json:"counters,omitempty"`
	// Before are the same counters before the change. It is empty if nothing was changed.
	Before []Counter `json:"before,omitempty"`
	// Matching is how many counters a pattern matches, and Names are the names of at most MaxNames of them, as the store
	// has them.
	Matching int      `json:"matching,omitempty"`
	Names    []string `json:"names,omitempty"`
	// Warning says what the change has not done.
	Warning string `json:"warning,omitempty"`
}

// MaxNames is how many names of counters a report lists.
const MaxNames = 10

// Client is the sender of a request.
type Client struct {
	Addr string
	// User is the user name of basic authentication. Nothing checks it.
	User string
}

// Refusal is an error that the client can fix.
type Refusal struct {
	Status int // the HTTP status code.
	Reason string
}

func (e *Refusal) Error() string { return e.Reason }

// Refuse returns a *Refusal.
func Refuse(status int, format string, args ...any) error {
	return &Refusal{status, fmt.Sprintf(format, args...)}
}

// Bounds on a change.
const (
	maxEntries   = 32
	maxTextBytes = 4 << 10
	// MaxUsed is the most units that a counter can be set to.
	MaxUsed = 1 << 48
)

// BadChange returns an error of a client that has sent no valid change.
func BadChange(format string, args ...any) error {
	return Refuse(http.StatusBadRequest, format, args...)
}

// Check returns an error if c is not a valid change.
func (c *CounterChange) Check() error {
	switch {
	case !slices.Contains([]string{ActionGet, ActionReset, ActionSet}, c.Action):
		return BadChange("action %.100q is not known; write get, reset or set", c.Action)
	case c.Domain == "":
		return BadChange("domain is missing")
	case len(c.Domain) > maxTextBytes:
		return BadChange("domain has %d bytes; at most %d are allowed", len(c.Domain), maxTextBytes)
	case len(c.Descriptor) == 0:
		return BadChange("descriptor is missing; write a list of entries, each with a key and a value")
	case len(c.Descriptor) > maxEntries:
		return BadChange("descriptor has %d entries; at most %d are allowed", len(c.Descriptor), maxEntries)
	case c.Action == ActionSet && c.Used == nil:
		return BadChange("set needs used, the number of units that the counters shall hold")
	case c.Action != ActionSet && c.Used != nil:
		return BadChange("used belongs to the action set")
	case c.Used != nil && *c.Used > MaxUsed:
		return BadChange("used is %d; at most %d units are allowed", *c.Used, uint64(MaxUsed))
	case c.Action == ActionSet && c.IsPattern():
		return BadChange("a pattern can only be reset; name one descriptor to set its counters")
	}
	for i, e := range c.Descriptor {
		switch {
		case e.Prefix != nil && i < len(c.Descriptor)-1:
			return BadChange("entry %d has a prefix; only the last entry may have one", i+1)
		case e.Prefix != nil && e.Value != "":
			return BadChange("entry %d has both a value and a prefix", i+1)
		case len(e.Key)+len(e.Value) > maxTextBytes || e.Prefix != nil && len(*e.Prefix) > maxTextBytes:
			return BadChange("entry %d has more than %d bytes", i+1, maxTextBytes)
		}
	}
	return nil
}

// ParseCounterEntry returns the entry that a text such as user=alex or user=al* stands for.
func ParseCounterEntry(text string) CounterEntry {
	key, value, _ := strings.Cut(text, "=")
	if prefix, isPattern := strings.CutSuffix(value, "*"); isPattern {
		return CounterEntry{Key: key, Prefix: &prefix}
	}
	return CounterEntry{Key: key, Value: value}
}
