package metrics

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// ruleCounter is a counter of a rule or of a domain. Each charge of a descriptor counts as one of the outcomes, and so
// does a descriptor without a charge.
type ruleCounter uint8

// The part "rule" of figures.txt has a line for each of them, in this order.
const (
	outcomeWithin ruleCounter = iota
	outcomeNear
	outcomeOver
	outcomeShadow // over the limit, but allowed: the rule is in shadow mode, or not enforced for the counter.
	outcomeUnlimited
	outcomeRefunded
	outcomeUnmatched // the descriptor has no rule.
	outcomeUncharged // within the limit, but another limit refused the request.
	outcomeSettled   // the descriptor settled a hold.
	quotaAdmitted    // requests that proxies decided by quotas.
	quotaDenied
	unanswered // charges that the store did not answer. A Fallback f counts as unanswered+f.
	_
	_
	_
	holdsOpened
	holdsClosed
	holdsExpired
	holdUnits   // units that rules with holds charged.
	excessUnits // units by which settlements exceeded their reservations.
	unenforced  // decisions on counters that enforce_percent leaves out.
	leaseMisses // decisions on leased limits that needed the store.
	requests    // a RequestResult r counts as requests+r.
	_
	_
	_
	_
	ruleCounterCount
)

// RuleName names a rule in figures, also after the rule has gone. Rule is its full name; empty for a domain.
type RuleName struct{ Domain, Rule string }

// NameOf returns the name of r.
func NameOf(r *rules.Rule) RuleName { return RuleName{r.Domain, r.FullName} }

// requestLimits stands for the limits that came with requests, where a rule is named.
var requestLimits = RuleName{Rule: "(request)"}

// ruleStats has the counters of all rules with the same name, or of a domain. It does not refer to a rule, so that a
// Set can be freed after a reload.
type ruleStats struct {
	name           RuleName
	namedHits      *namedHits // nil if countsByKey is false for all rules with this name.
	counts         [ruleCounterCount]Counter
	hasHolds       atomic.Bool // true if a rule with this name in force has holds.
	hasEnforcement atomic.Bool // true if a rule with this name in force has enforce_percent.
	removedAt      time.Time   // when a reload removed the rule, or zero. Registry.ruleStatsMu guards it.
}

func (s *ruleStats) add(c ruleCounter, n uint64) {
	if n > 0 {
		s.counts[c].Add(n)
	}
}

// addRequest counts the request of a by what became of it.
func (s *ruleStats) addRequest(a *limiter.Answer) {
	if result, hasOne := ResultOf(a); hasOne {
		s.add(requests+ruleCounter(result), 1)
	}
}

// countHold adds what a hit did to holds, and the units that it charged.
func (s *ruleStats) countHold(v *algorithm.Outcome, charged uint64) {
	s.add(holdUnits, charged)
	if v.HoldOpened {
		s.add(holdsOpened, 1)
	}
	if v.HoldClosed {
		s.add(holdsClosed, 1)
	}
	s.add(holdsExpired, uint64(v.HoldsExpired))
	s.add(excessUnits, v.HoldExcess)
}

// appendFigures appends the counters. It leaves out those that are 0, except those of holds and of enforce_percent,
// which only rules in force have.
func (s *ruleStats) appendFigures(list []Figure) []Figure {
	rule := strings.TrimPrefix(strings.TrimPrefix(s.name.Rule, s.name.Domain), ".")
	labels := []string{"domain", s.name.Domain, "rule", rule}
	for i, f := range declarations()["rule"] {
		n := s.counts[i].Load()
		isShown := n > 0
		switch c := ruleCounter(i); {
		case c >= requests:
			labels = labels[:2] // Requests are the last counters, and belong to no rule.
		case c == leaseMisses:
		case c == unenforced:
			isShown = s.hasEnforcement.Load()
		case c >= holdsOpened:
			isShown = s.hasHolds.Load()
		}
		if isShown {
			f.Value, f.Labels = int64(n), slices.Concat(labels, f.Labels)
			list = append(list, f)
		}
	}
	return list
}

// countsByKey reports whether the hits of r count under the key of r. Hits of per-value
// rules count under values of the request; hits of unlimited rules have no hit counters.
func countsByKey(r *rules.Rule) bool {
	return (!r.Unlimited || hasLimitsOfFile(r)) && !r.MetricNameHasValues
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
	// LeaseMisses are those on leased limits that needed the store, because this replica held too few units.
	LeaseMisses uint64
	// Unmatched are the descriptors of a domain that no rule applies to. Only domains have some, and nothing else.
	Unmatched uint64
}

func (s *ruleStats) decisions() (d Decisions) {
	sum := func(counters ...ruleCounter) (n uint64) {
		for _, c := range counters {
			n += s.counts[c].Load()
		}
		return n
	}
	d.Near, d.Shadow = sum(outcomeNear), sum(outcomeShadow)
	d.Admitted = d.Near + d.Shadow + sum(outcomeWithin, outcomeUnlimited, outcomeUncharged, quotaAdmitted)
	d.Denied = sum(outcomeOver, quotaDenied)
	d.Failed, d.LeaseMisses = sum(unanswered), sum(leaseMisses)
	d.Fallback = sum(unanswered+ruleCounter(backend.FallbackAllow), unanswered+ruleCounter(backend.FallbackDeny),
		unanswered+ruleCounter(backend.FallbackLocal))
	return d
}

// ForEachDecisions calls yield for each rule and domain that has decided something, unless it was removed more than an
// hour ago. name is the full name of the rule, or empty for a domain. Limits that came with requests are one rule
// without a domain, named "(request)"; all domains without rules are one domain without a name. Decisions never
// decrease while the rule or the domain is known.
func (r *Registry) ForEachDecisions(yield func(domain, name string, d Decisions)) {
	ofDomain := func(s *ruleStats) {
		if n := s.counts[outcomeUnmatched].Load(); n > 0 {
			yield(s.name.Domain, "", Decisions{Unmatched: n})
		}
	}
	for _, s := range r.knownStats() {
		if s.name.Rule != "" {
			yield(s.name.Domain, s.name.Rule, s.decisions())
		} else {
			ofDomain(s)
		}
	}
	ofDomain(&r.unknownDomains.totalStats)
	yield("", requestLimits.Rule, r.requestLimitStats.decisions())
}

// Holds are the holds of a rule that this process opened, since its start.
type Holds struct {
	Open    uint64 `json:"open"`    // how many are open now.
	Expired uint64 `json:"expired"` // how many expired, because nothing settled or released them.
	Charged uint64 `json:"charged"` // how many units were charged: by settlements, and by requests without a hold.
}

// String returns the holds for people: "3 open, 1 expired, 900 charged".
func (h *Holds) String() string {
	return fmt.Sprintf("%d open, %d expired, %d charged", h.Open, h.Expired, h.Charged)
}

// Holds returns the holds of all rules in force that have some. Open is 0 if this process closed more than it opened,
// because holds of other processes or of an earlier start are among them.
func (r *Registry) Holds() map[RuleName]*Holds {
	holds := make(map[RuleName]*Holds)
	for _, s := range r.knownStats() {
		if s.hasHolds.Load() {
			opened, expired := s.counts[holdsOpened].Load(), s.counts[holdsExpired].Load()
			ended := s.counts[holdsClosed].Load() + expired
			holds[s.name] = &Holds{opened - min(opened, ended), expired, s.counts[holdUnits].Load()}
		}
	}
	return holds
}
