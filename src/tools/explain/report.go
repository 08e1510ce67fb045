// Package explain tells which rules a request matches, and why: the walk of each
// descriptor through the rules, level by level, the limits where it ends, and how their
// counters stand. It reads the limiter's Answer and changes nothing.
package explain

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
	Entries   []Entry  `json:"entries"`
	Steps     []Step   `json:"steps"`
	Rules     []Rule   `json:"rules,omitempty"`
	Unlisted  int      `json:"unlisted,omitempty"`
	Outcome   string   `json:"outcome"`
	Reason    string   `json:"reason,omitempty"`
	Why       string   `json:"why,omitempty"`
	Hint      string   `json:"hint,omitempty"`
	Rule      string   `json:"rule,omitempty"`
	At        string   `json:"at,omitempty"`
	Quota     bool     `json:"quota"`
	AllOrNone bool     `json:"all_or_none"`
	Charges   []Charge `json:"charges"`
	Now       *Status  `json:"now,omitempty"`
}

// The outcomes of a descriptor.
const (
	Limited   = "limited"   // limits apply
	Unlimited = "unlimited" // the rule has none
	Replaced  = "replaced"  // by other rules of the request, all of them
	Unmatched = "unmatched" // no rule applies
)

// Entry is a key and a value of the request.
type Entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Step is one level of the walk.
type Step struct {
	Entry      Entry       `json:"entry"`
	Word       bool        `json:"word,omitempty"`
	Candidates []Candidate `json:"candidates"`
	Unlisted   int         `json:"unlisted"`
}

// Rule is a rule of an ordered list that was tried. Key and Pattern are what the request
// does not match, and Value is the value it has instead.
type Rule struct {
	Rule    string  `json:"rule"`
	At      string  `json:"at"`
	Outcome string  `json:"outcome"`
	Key     string  `json:"key,omitempty"`
	Pattern string  `json:"pattern,omitempty"`
	Value   *string `json:"value,omitempty"`
}

// The outcomes of a rule of an ordered list that matches; else it is NoMatch.
const (
	Decides = "decides"
	Canary  = "canary" // it is charged, and another decides
)

// Candidate is a descriptor of the rules that a step tried.
type Candidate struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	At      string `json:"at"`
	How     string `json:"how"`
	Outcome string `json:"outcome"`
	Leads   string `json:"leads,omitempty"`
}

// The outcomes of a candidate.
const (
	Taken   = "taken"
	NoMatch = "no_match"
	Behind  = "behind" // it matches, and an earlier one was taken
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
