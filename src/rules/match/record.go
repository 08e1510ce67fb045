package match

import "ratelimit/src/rules"

// Record records how FindRule searched a domain for one descriptor. Its JSON tags are those of explain's report.
type Record struct {
	// Steps are the levels of a tree in order: one for each entry, or for each word in a tree of limits. The last step may
	// have found nothing. An ordered list has no Steps.
	Steps []Step
	// TriedRules are the rules of an ordered list in order, up to the one that decides. At most 20 of them do not match;
	// UnlistedCount counts the others that do not.
	TriedRules      []TriedRule
	UnlistedCount   int
	ChargedCanaries []*rules.Match // those that FindRule appends
	// HoldIDKey is the key of the entry that names a hold. It is set with EndReasonWrongHold, and with
	// EndReasonTooManyEntries if the rule where the rules end has holds.
	HoldIDKey string
	Found     *rules.Match // the result of FindRule; nil for no rule
	EndReason EndReason
}

// EndReason tells why a search ended.
type EndReason string

const (
	EndReasonRuleFound      EndReason = "rule"             // The search found a rule.
	EndReasonNoEntries      EndReason = "no_entries"       // The descriptor has no entries.
	EndReasonNoSuchKey      EndReason = "no_such_key"      // The level has no descriptor with the entry's key.
	EndReasonNoSuchValue    EndReason = "no_such_value"    // The level has the entry's key, but not with its value.
	EndReasonTooManyEntries EndReason = "rules_end_above"  // The request has more entries than the tree has levels.
	EndReasonTooFewEntries  EndReason = "rules_are_deeper" // The last descriptor has no limit, but descriptors below it.
	EndReasonNoRateLimit    EndReason = "no_rate_limit"    // The last descriptor has no limit and no descriptors below it.
	EndReasonWrongHold      EndReason = "wrong_hold"       // The last entries are about a hold, but not as HoldOf needs.
	EndReasonNoRuleMatches  EndReason = "no_rule_matches"  // No rule of the ordered list matches.
)

// CandidateOutcome is what the search did with a descriptor or rule.
type CandidateOutcome string

const (
	OutcomeSearchedBelow CandidateOutcome = "taken"    // The search went on below this descriptor.
	OutcomeEarlierTaken  CandidateOutcome = "behind"   // The descriptor matches, but the search had taken an earlier one.
	OutcomeNoMatch       CandidateOutcome = "no_match" // The descriptor or rule does not match.
	OutcomeRuleDecides   CandidateOutcome = "decides"  // The rule of an ordered list decides the request.
	OutcomeCanaryCharged CandidateOutcome = "canary"   // The rule of an ordered list is charged, and another rule decides.
)

// TriedRule is a rule of an ordered list that the search tried.
type TriedRule struct {
	RuleName string           `json:"rule"` // the FullName of the rule
	Position string           `json:"at"`   // the position of the rule as file:line:col
	Outcome  CandidateOutcome `json:"outcome"`
	// If the rule does not match, FailedKey and FailedPattern are its first pair that the request does not match, and
	// RequestValue is the request's value for FailedKey; nil if the request has no such key.
	FailedKey     string  `json:"key,omitempty"`
	FailedPattern string  `json:"pattern,omitempty"`
	RequestValue  *string `json:"value,omitempty"`
}

// Step is the search of one level for one entry.
type Step struct {
	Entry  rules.EntryText `json:"entry"`
	IsWord bool            `json:"word,omitempty"` // set in a tree of limits, where Entry.Key is the word
	// Candidates are in the order in which the search tries them: exact key and value, files in file order, networks from
	// the longest, regular expressions and then wildcards in file order, key alone. All candidates behind the taken one
	// match.
	Candidates []Candidate `json:"candidates"`
	// UnlistedCount counts descriptors that do not match and are not in Candidates, which has at most 20 of these, and at
	// most 40 in all.
	UnlistedCount int `json:"unlisted"`
	TakenIndex    int `json:"-"` // the index of the taken candidate; -1 for none
	LevelKeyCount int `json:"-"` // the number of keys on the level
	// SuggestedText is the known key (EndReasonNoSuchKey) or value (EndReasonNoSuchValue) that the caller probably meant;
	// empty if none is similar.
	SuggestedText string `json:"-"`
	// SameKeyBelow is the first descriptor on a lower level that has the entry's key. It is set with EndReasonNoSuchKey;
	// nil for none.
	SameKeyBelow *rules.Descriptor `json:"-"`
}

// Candidate is a descriptor that the search compared with an entry.
type Candidate struct {
	Key       string           `json:"key"`
	Value     string           `json:"value"` // empty if the descriptor matches any value
	Position  string           `json:"at"`    // the position as file:line:col
	MatchKind MatchKind        `json:"how"`
	Outcome   CandidateOutcome `json:"outcome"`
	Reason    MatchReason      `json:"why,omitempty"`  // empty if there is nothing to say
	DataLine  string           `json:"line,omitempty"` // the line of the value in a data file, as file:line
	// LeadsToRule is the name of the rule that the search would have found through this candidate. It is set only if the
	// candidate has OutcomeEarlierTaken and the search found no rule.
	LeadsToRule string `json:"leads,omitempty"`

	node *Node // nil in a tree of limits
}

// MatchKind is how a descriptor is compared with an entry: one of these, or "values_from" or "limits_from",
// which search the value in a file.
type MatchKind string

const (
	MatchExact    MatchKind = "exact"    // compares key and value for equality.
	MatchCIDR     MatchKind = "cidr"     // compares the value, an address, with networks.
	MatchRegex    MatchKind = "regex"    // compares the value with a regular expression.
	MatchWildcard MatchKind = "wildcard" // compares "key_value" with a pattern.
	MatchKeyAlone MatchKind = "key"      // compares the key for equality and ignores the value.
	MatchHoldID   MatchKind = "hold_id"  // compares the key with the hold_id of the level above.
	MatchHold     MatchKind = "hold"     // compares the entry with hold=settle and hold=release.
)

// MatchReason tells more about a comparison.
type MatchReason string

const (
	WhyNotAddress      MatchReason = "not_an_address"   // The value is not an IP address.
	WhyOutsideNetworks MatchReason = "outside_networks" // The address is in none of the networks.
	WhyNotInFile       MatchReason = "not_in_file"      // The value is not in the file.
	WhyValueCut        MatchReason = "value_cut"        // Only the first MaxRegexValue bytes were compared.
)
