// Package explain tells which rules a request matches, and why: the search of each descriptor through the levels of
// rules, the limits where it ends, and the states of their counters. It reads the limiter's Answer and changes nothing.
package explain

import (
	"ratelimit/src/backend"
	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

// Report explains a request. Its JSON form is stable: later versions only add fields.
type Report struct {
	Domain      string       `json:"domain"`
	DomainKnown bool         `json:"domain_known"`
	Descriptors []Descriptor `json:"descriptors"`
	Decision    *Decision    `json:"now,omitempty"`
	Bucket      *Bucket      `json:"bucket,omitempty"` // set for a quota bucket.
}

// Decision is the decision on the request.
type Decision struct {
	Code         string `json:"code"` // OK, OVER_LIMIT or CodeError.
	RetryAfterUS *int64 `json:"retry_after_us"`
	Shadowed     bool   `json:"shadowed"`
	// Degraded is that of the first limit that has one; see State.
	Degraded string `json:"degraded,omitempty"`
	// Failure says why the counts are unknown, with CodeError. Else it is empty.
	Failure string `json:"failure,omitempty"`
}

// CodeError is the code of a request that gets an error, because the store does not answer.
const CodeError = "ERROR"

// errorFallback is State.Degraded of a hit that gets an error.
var errorFallback = backend.FallbackError.String()

// Descriptor explains one descriptor of the request.
type Descriptor struct {
	Entries []rules.EntryText `json:"entries"`
	// Subject has the entries as commands take them, whole: user="bot,7",path=/pay.
	Subject string            `json:"subject"`
	Steps   []match.Step      `json:"steps"`
	Rules   []match.TriedRule `json:"rules,omitempty"`
	// UnlistedRules is the number of rules that do not match and are missing in Rules.
	UnlistedRules int      `json:"unlisted,omitempty"`
	Outcome       string   `json:"outcome"`
	Reason        string   `json:"reason,omitempty"`
	Why           string   `json:"why,omitempty"`
	Hint          string   `json:"hint,omitempty"`
	Rule          string   `json:"rule,omitempty"`
	At            string   `json:"at,omitempty"`
	Quota         bool     `json:"quota"`
	AllOrNone     bool     `json:"all_or_none"`
	Charges       []Charge `json:"charges"`
	Status        *Status  `json:"now,omitempty"`
	// Reset is the command that resets the counters of the descriptor; empty if they count nothing. See AddResets.
	Reset string `json:"reset,omitempty"`
	// NoReset says why counters that count something cannot be reset now; empty if they can.
	NoReset string `json:"no_reset,omitempty"`
}

// The outcomes of a descriptor.
const (
	OutcomeLimited   = "limited"   // means that limits apply to the descriptor.
	OutcomeUnlimited = "unlimited" // means that the rule of the descriptor has no limit.
	OutcomeReplaced  = "replaced"  // means that other rules of the request replace all rules of the descriptor.
	OutcomeUnmatched = "unmatched" // means that no rule applies to the descriptor.
)

// Charge is a limit that applies, or would apply if no other rule replaced it.
type Charge struct {
	Rule         string `json:"rule,omitempty"`
	At           string `json:"at,omitempty"`
	Name         string `json:"name,omitempty"`
	LimitInWords string `json:"words"`
	Unlimited    bool   `json:"unlimited"`
	Algorithm    string `json:"algorithm,omitempty"`
	Limit        uint64 `json:"limit"`
	// AtOnce is the number of units that a gcra limit allows at once: its burst and one.
	AtOnce   uint64 `json:"at_once,omitempty"`
	PeriodUS int64  `json:"period_us,omitempty"` // 0 for windows of a calendar.
	// Calendar is the calendar of the windows, such as 1month/15/Europe/Berlin; empty for windows of equal length.
	Calendar      string `json:"calendar,omitempty"`
	MinIntervalUS int64  `json:"min_interval_us,omitempty"`
	CountBlocked  bool   `json:"count_blocked"`
	Shadow        bool   `json:"shadow"`
	Canary        bool   `json:"canary,omitempty"`
	// EnforcePercent is the percentage of counters for which the limit is enforced; nil for all. NotEnforced says that
	// this counter is none of them.
	EnforcePercent *float64 `json:"enforce_percent,omitempty"`
	NotEnforced    bool     `json:"not_enforced,omitempty"`
	// Fallback is the rule's on_store_failure; empty for error.
	Fallback string `json:"on_store_failure,omitempty"`
	// Counting is leased, or empty for exact. OnContention is that of a leased limit. WhyExact says why the limit is exact
	// although its domain or file asks for leases; empty if nothing does.
	Counting     string `json:"counting,omitempty"`
	OnContention string `json:"on_contention,omitempty"`
	WhyExact     string `json:"why_exact,omitempty"`
	// Notify says when somebody is told about subjects that use much of the limit, as rule files do; empty for never.
	Notify string `json:"notify,omitempty"`
	// Override says what replaced the limit of the rule at run time: the change, who made it, until when, and why. It is
	// empty if nothing did.
	Override string `json:"override,omitempty"`
	// SharedValues lists the parts of the rule, as key=value, whose values share one counter.
	SharedValues []string `json:"shared,omitempty"`
	ReplacedBy   []string `json:"replaced_by,omitempty"`
	Key          string   `json:"key,omitempty"`
	// HoldName is the name of the hold that the request opens, settles or releases; empty if it names none.
	HoldName  string `json:"hold,omitempty"`
	Operation string `json:"op,omitempty"`
	Amount    uint64 `json:"amount"`
	// ReservedAmount is what a request for 0 units reserves. SettlesOldest says that a request for more ends the oldest
	// reservation.
	ReservedAmount uint64 `json:"reserves,omitempty"`
	SettlesOldest  bool   `json:"settles_oldest,omitempty"`
	// EarlierAmount is the amount that earlier descriptors of the request charge to the same counter.
	EarlierAmount uint64 `json:"earlier,omitempty"`
	State         *State `json:"now,omitempty"`
}

// Status is the decision on a descriptor.
type Status struct {
	Code         string `json:"code"`
	RetryAfterUS *int64 `json:"retry_after_us"`
	ResetAfterUS int64  `json:"reset_after_us"`
	// Binding is the index in Charges of the limit that callers are told about.
	Binding *int `json:"binding"`
	// Degraded is that of the first limit that has one; see State.
	Degraded string `json:"degraded,omitempty"`
}

// State is the state of a counter.
type State struct {
	// Before and Remaining are nil if the store did not answer, so the count is unknown.
	Before    *uint64 `json:"before,omitempty"`
	Remaining *uint64 `json:"remaining,omitempty"`
	// Held are those of Before that this replica has taken ahead, and no request has used yet; 0 unless the limit is
	// leased.
	Held uint64 `json:"held,omitempty"`
	// Share is this replica's share of the limit, which Before and Remaining count against; 0 unless Degraded is local.
	Share        uint64   `json:"share,omitempty"`
	Over         bool     `json:"over"`
	RetryAfterUS *int64   `json:"retry_after_us"`
	ResetAfterUS int64    `json:"reset_after_us"`
	Reasons      []string `json:"reasons"`
	Cached       bool     `json:"cached"`
	// Degraded is the fallback that decided the hit, because the store did not answer; empty if it did.
	Degraded string `json:"degraded,omitempty"`
}
