package metrics

import (
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// Outcome is the result of one descriptor.
type Outcome uint8

// Unmatched descriptors have no rule. All other outcomes are those of a rule.
const (
	OutcomeWithin Outcome = iota
	OutcomeNear
	OutcomeOver
	// OutcomeShadow hits are over the limit, but allowed because the rule is in shadow mode or not enforced for the
	// counter.
	OutcomeShadow
	OutcomeUnlimited
	OutcomeRefunded
	OutcomeUnmatched
	OutcomeUncharged // OutcomeUncharged hits are within the limit, but another limit refused the request.
	OutcomeSettled   // OutcomeSettled descriptors settled a hold.
	outcomeCount
)

var outcomeNames = [outcomeCount]string{
	"within", "near", "over", "shadow", "unlimited", "refunded", "unmatched",
	"uncharged", "settled",
}

// String returns the outcome in lower case, such as "within".
func (o Outcome) String() string { return outcomeNames[o] }

// ruleStats has the counters of all rules with the same key, or of a domain. It does not
// refer to a rule, so that a Set can be freed after a reload.
type ruleStats struct {
	key               statsKey
	fullName          string     // the full name of the rules, or the name of the domain.
	namedHits         *namedHits // nil if countsByKey is false for all rules with this key.
	outcomeCounts     [outcomeCount]Counter
	holdCounts        holdCounts
	unansweredCharges [4]Counter // counts charges that the store did not answer. The index is a backend.Fallback.
	quotaAdmitted     Counter    // count requests that proxies decided by quotas.
	quotaDenied       Counter
	unenforced        Counter     // counts decisions on counters that enforce_percent leaves out.
	hasHolds          atomic.Bool // true if a rule with this key in force has holds.
	hasEnforcement    atomic.Bool // true if a rule with this key in force has enforce_percent.
	removedAt         time.Time   // when a reload removed the rule, or zero. Registry.ruleStatsMu guards it.
}

// holdCounts counts what became of the holds of a rule.
type holdCounts struct{ opened, closed, expired, chargedUnits, excessUnits Counter }

// add adds what a hit did to holds, and the units that it charged.
func (h *holdCounts) add(v *algorithm.Outcome, charged uint64) {
	if charged > 0 {
		h.chargedUnits.Add(charged)
	}
	if v.HoldOpened {
		h.opened.Add(1)
	}
	if v.HoldClosed {
		h.closed.Add(1)
	}
	if v.HoldsExpired > 0 {
		h.expired.Add(uint64(v.HoldsExpired))
	}
	if v.HoldExcess > 0 {
		h.excessUnits.Add(v.HoldExcess)
	}
}

// statsKey identifies a rule in its domain. The counters of a domain have an empty rule.
type statsKey struct{ domain, rule string }

// countsByKey reports whether the hits of r count under the key of r. Hits of per-value
// rules count under values of the request; hits of unlimited rules have no hit counters.
func countsByKey(r *rules.Rule) bool {
	return (!r.Unlimited || hasLimitsOfFile(r)) && !r.MetricNameHasValues()
}

// hasLimitsOfFile reports whether r has limits_from. Some lines of the file may be unlimited, and others not.
func hasLimitsOfFile(r *rules.Rule) bool {
	return len(r.Path) > 0 && r.Path[len(r.Path)-1].Kind == rules.LevelLimitsFrom
}

// Decisions counts the decisions on a rule. Each charge of a descriptor is one decision, which is Admitted, Denied or
// Failed. Near and Shadow are parts of Admitted, and Fallback is a part of Admitted and Denied.
type Decisions struct {
	// Admitted are the decisions in which the rule did not refuse, also if another rule did. Denied are those in which it
	// refused. Config.ShadowMode of the limiter does not matter here. Both include what proxies decided by quotas.
	Admitted, Denied uint64

	Near uint64 // those above Config.NearRatio of the limit.
	// those over a limit that was not enforced: the rule is in shadow mode, or enforce_percent left out the counter.
	Shadow   uint64
	Fallback uint64 // those that on_store_failure decided, because the store did not answer.
	Failed   uint64 // those that got an error as an answer, because the store did not answer.
}

// ForEachDecisions calls yield for each rule that has decided something, unless it was removed more than an hour ago.
// name is the full name of the rule. Limits that came with requests are one rule without a domain, named "(request)".
// Decisions never decrease while the rule is known.
func (r *Registry) ForEachDecisions(yield func(domain, name string, d Decisions)) {
	for _, s := range r.knownStats() {
		if s.key.rule != "" {
			yield(s.key.domain, s.fullName, s.decisions())
		}
	}
	yield("", requestLimitsName, r.requestLimitStats.decisions())
}

// Holds are the holds of a rule that this process opened, and found closed or expired.
type Holds struct {
	Opened, Expired uint64
	Closed          uint64 // those that were settled or released.
	ChargedUnits    uint64 // the units that were charged; see limiter.Charge.ChargedUnits.
	ExcessUnits     uint64 // the units by which settlements exceeded their reservations.
}

// Open returns how many holds are open. It is 0 if this process closed more than it opened, because holds of other
// processes or of an earlier start are among them.
func (h Holds) Open() uint64 { return h.Opened - min(h.Opened, h.Closed+h.Expired) }

// RuleName names a rule in figures, also after the rule has gone. Rule is its full name.
type RuleName struct{ Domain, Rule string }

// NameOf returns the name of r.
func NameOf(r *rules.Rule) RuleName { return RuleName{r.Domain, r.FullName} }

// ForEachHolds calls yield for each rule in force that has holds. name is the full name of the rule.
func (r *Registry) ForEachHolds(yield func(domain, name string, h Holds)) {
	for _, s := range r.knownStats() {
		if s.hasHolds.Load() {
			yield(s.key.domain, s.fullName, s.holdCounts.read())
		}
	}
}

func (h *holdCounts) read() Holds {
	return Holds{
		Opened: h.opened.Load(), Closed: h.closed.Load(), Expired: h.expired.Load(),
		ChargedUnits: h.chargedUnits.Load(), ExcessUnits: h.excessUnits.Load(),
	}
}

// requestLimitsName stands for the limits that came with requests, where a rule is named.
const requestLimitsName = "(request)"

func (s *ruleStats) decisions() Decisions {
	o := func(outcome Outcome) uint64 { return s.outcomeCounts[outcome].Load() }
	d := Decisions{Denied: o(OutcomeOver), Near: o(OutcomeNear), Shadow: o(OutcomeShadow)}
	d.Admitted = o(OutcomeWithin) + d.Near + d.Shadow + o(OutcomeUnlimited) + o(OutcomeUncharged) + s.quotaAdmitted.Load()
	d.Denied += s.quotaDenied.Load()
	for f := range s.unansweredCharges {
		if n := s.unansweredCharges[f].Load(); backend.Fallback(f) == backend.FallbackError {
			d.Failed = n
		} else {
			d.Fallback += n
		}
	}
	return d
}
