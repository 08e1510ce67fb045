// Package explain tells which rules a request matches, and why: the walk of each
// descriptor through the rules, level by level, the limits where it ends, and how their
// counters stand. It reads the limiter's Answer and changes nothing.
package explain

import "ratelimit/src/rules"

// Report explains a request. Its JSON form is stable: fields are only added.
type Report struct {
	Domain      string       `json:"domain"`
	DomainKnown bool         `json:"domain_known"`
	Descriptors []Descriptor `json:"descriptors"`
	Now         *Decision    `json:"now,omitempty"`
}

// Decision is the decision on the request.
type Decision struct {
	Code         string `json:"code"`
	RetryAfterUS *int64 `json:"retry_after_us"`
	Shadowed     bool   `json:"shadowed"`
	// Degraded is as in State, of the first limit that has one.
	Degraded string `json:"degraded,omitempty"`
}

// Descriptor explains one descriptor of the request.
type Descriptor struct {
	Entries   []rules.EntryText `json:"entries"`
	Steps     []rules.Step      `json:"steps"`
	Rules     []rules.TriedRule `json:"rules,omitempty"`
	Unlisted  int               `json:"unlisted,omitempty"` // rules that do not match and are not in Rules
	Outcome   string            `json:"outcome"`
	Reason    string            `json:"reason,omitempty"`
	Why       string            `json:"why,omitempty"`
	Hint      string            `json:"hint,omitempty"`
	Rule      string            `json:"rule,omitempty"`
	At        string            `json:"at,omitempty"`
	Quota     bool              `json:"quota"`
	AllOrNone bool              `json:"all_or_none"`
	Charges   []Charge          `json:"charges"`
	Now       *Status           `json:"now,omitempty"`
}

// The outcomes of a descriptor.
const (
	Limited   = "limited"   // limits apply
	Unlimited = "unlimited" // the rule has none
	Replaced  = "replaced"  // by other rules of the request, all of them
	Unmatched = "unmatched" // no rule applies
)

// Charge is a limit that applies, or would apply if no other rule replaced it.
type Charge struct {
	Rule          string   `json:"rule,omitempty"`
	At            string   `json:"at,omitempty"`
	Name          string   `json:"name,omitempty"`
	Words         string   `json:"words"`
	Unlimited     bool     `json:"unlimited"`
	Algorithm     string   `json:"algorithm,omitempty"`
	Limit         uint64   `json:"limit"`
	AtOnce        uint64   `json:"at_once,omitempty"` // of a bucket: burst and one
	PeriodUS      int64    `json:"period_us,omitempty"`
	MinIntervalUS int64    `json:"min_interval_us,omitempty"`
	CountBlocked  bool     `json:"count_blocked"`
	Shadow        bool     `json:"shadow"`
	Canary        bool     `json:"canary,omitempty"`
	Fallback      string   `json:"on_store_failure,omitempty"` // empty: error
	Shared        []string `json:"shared,omitempty"`
	ReplacedBy    []string `json:"replaced_by,omitempty"`
	Key           string   `json:"key,omitempty"`
	Op            string   `json:"op,omitempty"`
	Amount        uint64   `json:"amount"`
	Earlier       uint64   `json:"earlier,omitempty"`
	Now           *State   `json:"now,omitempty"`
}

// Status is the decision on a descriptor.
type Status struct {
	Code         string `json:"code"`
	RetryAfterUS *int64 `json:"retry_after_us"`
	ResetAfterUS int64  `json:"reset_after_us"`
	Binding      *int   `json:"binding"`
	Degraded     string `json:"degraded,omitempty"` // as in State, of the first limit that has one
}

// State is how a counter stands.
type State struct {
	// Before and Remaining are nil if nothing was counted, because no store answered.
	Before       *uint64  `json:"before,omitempty"`
	Remaining    *uint64  `json:"remaining,omitempty"`
	Over         bool     `json:"over"`
	RetryAfterUS *int64   `json:"retry_after_us"`
	ResetAfterUS int64    `json:"reset_after_us"`
	Reasons      []string `json:"reasons"`
	Cached       bool     `json:"cached"`
	// Degraded is how the hit was decided because the store did not answer.
	Degraded string `json:"degraded,omitempty"`
}
