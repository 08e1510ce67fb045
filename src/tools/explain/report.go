// Package explain says which rules a request meets, and why: the walk of each
// descriptor through the rules, level by level, what is charged where it ends,
// and how the counters stand.
//
// It asks nobody and changes nothing. It reads what the limiter answered, be it
// a look or a decision.
package explain

import (
	"slices"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Report explains a request. Its JSON form is stable: fields are only added.
type Report struct {
	Domain      string       `json:"domain"`
	DomainKnown bool         `json:"domain_known"`
	Descriptors []Descriptor `json:"descriptors"`
	Now         *Decision    `json:"now,omitempty"`
}

// Decision is what would become of the request.
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

// Rule is a rule of an ordered list that was asked whether it matches. Key and
// Pattern are what the request does not meet, Value what it has instead.
type Rule struct {
	Rule    string  `json:"rule"`
	At      string  `json:"at"`
	Outcome string  `json:"outcome"`
	Key     string  `json:"key,omitempty"`
	Pattern string  `json:"pattern,omitempty"`
	Value   *string `json:"value,omitempty"`
}

// What becomes of a rule of an ordered list that matches; else it is NoMatch.
const (
	Decides = "decides"
	Canary  = "canary" // it is charged, and another decides
)

// Candidate is a descriptor of the rules that a step came to.
type Candidate struct {
	Key     string `json:"key"`
	Value   string `json:"value"`
	At      string `json:"at"`
	How     string `json:"how"`
	Outcome string `json:"outcome"`
	Leads   string `json:"leads,omitempty"`
}

// What becomes of a candidate.
const (
	Taken   = "taken"
	NoMatch = "no_match"
	Behind  = "behind" // it matches, but one before it was taken
)

// Charge is a limit that applies, or would if no other rule replaced it.
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

// Status is what would become of a descriptor.
type Status struct {
	Code         string `json:"code"`
	RetryAfterUS *int64 `json:"retry_after_us"`
	ResetAfterUS int64  `json:"reset_after_us"`
	Binding      *int   `json:"binding"`
	Degraded     string `json:"degraded,omitempty"` // as in State, of the first limit that has one
}

// State is how a counter stands.
type State struct {
	// Before and Remaining are nil when nothing was counted: no store answered.
	Before       *uint64  `json:"before,omitempty"`
	Remaining    *uint64  `json:"remaining,omitempty"`
	Over         bool     `json:"over"`
	RetryAfterUS *int64   `json:"retry_after_us"`
	ResetAfterUS int64    `json:"reset_after_us"`
	Reasons      []string `json:"reasons"`
	Cached       bool     `json:"cached"`
	// Degraded is what decided for want of an answer of the store.
	Degraded string `json:"degraded,omitempty"`
}

// Source is where an answer comes from, and so what its verdicts mean.
type Source uint8

const (
	// Rules: from a limiter without counters; the verdicts mean nothing.
	Rules Source = iota
	// Looked: from limiter.Look.
	Looked
	// Decided: from limiter.Check, which has charged. What is told of the counters
	// is how each was before its charge.
	Decided
)

// Of explains req by what the limiter answered. Neither is kept.
func Of(req *limiter.Request, a *limiter.Answer, from Source) *Report {
	x := explainer{req: req, a: a, from: from}
	r := &Report{Domain: string(req.Domain), DomainKnown: a.Domain != nil, Descriptors: make([]Descriptor, len(req.Descriptors))}
	x.walk()
	for i := range req.Descriptors {
		r.Descriptors[i] = x.descriptor(i)
	}
	if from != Rules {
		r.Now = &Decision{Code: code(a.Over), Shadowed: a.Shadowed}
		if a.Over && a.RetryAfter != algorithm.Never {
			r.Now.RetryAfterUS = micros(a.RetryAfter)
		}
		if f := a.Fallback; f != backend.FallbackError {
			r.Now.Degraded = f.String()
		}
	}
	return r
}

// explainer is the memory of one explanation.
type explainer struct {
	req   *limiter.Request
	a     *limiter.Answer
	from  Source
	walks []*rules.Walk            // nil for a descriptor that brings its limit
	by    map[string][]*rules.Rule // the rules of the request that replace a name
}

// walk goes through the rules with all descriptors: they replace each other's.
func (x *explainer) walk() {
	x.walks = make([]*rules.Walk, len(x.req.Descriptors))
	if x.a.Domain == nil {
		return
	}
	x.by = make(map[string][]*rules.Rule)
	seen := make(map[*rules.Rule]bool)
	for i := range x.req.Descriptors {
		d := &x.req.Descriptors[i]
		if d.HasLimit {
			continue
		}
		w := x.a.Domain.Explain(d.Entries)
		x.walks[i] = w
		for _, r := range charged(w) {
			for _, name := range r.Replaces() {
				if !seen[r] {
					x.by[name] = append(x.by[name], r)
				}
			}
			seen[r] = true
		}
	}
}

// charged are the rules that are charged at the end of a walk.
func charged(w *rules.Walk) (list []*rules.Rule) {
	for _, r := range append(slices.Clone(w.Canaries), w.Rule) {
		switch {
		case r == nil:
		case r.Charges == nil:
			list = append(list, r)
		default:
			list = append(list, r.Charges...)
		}
	}
	return list
}

func (x *explainer) descriptor(i int) Descriptor {
	request, st := &x.req.Descriptors[i], &x.a.Statuses[i]
	d := Descriptor{Entries: []Entry{}, Steps: []Step{}, Charges: []Charge{}, Quota: st.Quota, Outcome: Unmatched}
	for _, e := range request.Entries {
		d.Entries = append(d.Entries, Entry{string(e.Key), string(e.Value)})
	}
	if x.from != Rules {
		d.Now = status(st)
	}
	w := x.walks[i]
	switch {
	case x.a.Domain == nil:
		x.unknownDomain(&d)
		return d
	case w == nil: // the request brings a limit
		d.Outcome = Limited
		d.Charges = append(d.Charges, x.ownLimit(request, st))
		if d.Now != nil {
			d.Now.Binding = new(int)
		}
		return d
	}
	for j := range w.Steps {
		d.Steps = append(d.Steps, step(&w.Steps[j]))
	}
	for j := range w.Asked {
		d.Rules = append(d.Rules, asked(w, &w.Asked[j]))
	}
	d.Unlisted = w.Unlisted
	if w.Rule == nil {
		d.Reason = w.End.String()
		d.Why, d.Hint = why(w, len(request.Entries))
		return d
	}
	d.Rule, d.At = w.Rule.Key, w.Rule.Pos.String()
	list := charged(w)
	canary := len(list) - max(1, len(w.Rule.Charges)) // of canaries
	d.AllOrNone = w.Rule.AllOrNone && len(list)-canary > 1
	for i, r := range list {
		d.Charges = append(d.Charges, x.charge(request, st, r))
		d.Charges[i].Canary = i < canary
		if c := st.Binding; c != nil && c.Rule == r && d.Now != nil {
			binding := len(d.Charges) - 1
			d.Now.Binding = &binding
		}
	}
	switch {
	case st.Binding != nil:
		d.Outcome = Limited
	case st.Rule != nil:
		d.Outcome = Unlimited
	default:
		d.Outcome, d.Reason = Replaced, Replaced
		d.Why = "other rules of the request replace it"
	}
	return d
}

func asked(w *rules.Walk, a *rules.Asked) Rule {
	out := Rule{Rule: a.Rule.Key, At: a.Rule.Pos.String(), Outcome: NoMatch, Key: a.Unmet.Key, Pattern: a.Unmet.Pattern}
	switch {
	case a.Matches && a.Rule == w.Rule:
		out.Outcome = Decides
	case a.Matches:
		out.Outcome = Canary
	case a.Value != nil:
		value := string(a.Value)
		out.Value = &value
	}
	return out
}

func step(s *rules.Step) Step {
	out := Step{Entry: Entry{string(s.Entry.Key), string(s.Entry.Value)}, Word: s.Word, Candidates: []Candidate{}, Unlisted: s.Unlisted}
	for i := range s.Candidates {
		c := &s.Candidates[i]
		shown := Candidate{Key: c.Key, Value: c.Value, At: c.Pos.String(), How: c.How.String()}
		switch {
		case i == s.Taken:
			shown.Outcome = Taken
		case c.Tried:
			shown.Outcome = NoMatch
		default:
			shown.Outcome = Behind
		}
		if c.Leads != nil {
			shown.Leads = c.Leads.Key
		}
		out.Candidates = append(out.Candidates, shown)
	}
	return out
}

// ownLimit is the charge of a descriptor that brings its limit.
func (x *explainer) ownLimit(asked *limiter.Descriptor, st *limiter.Status) Charge {
	c := Charge{Words: asked.Limit.Words(), Limit: uint64(asked.Limit.Requests)}
	if limit, err := asked.Limit.Window(); err == nil { // else the limiter had refused the request
		x.charges(&c, asked, st, nil, &limit)
	}
	return c
}

// charge is what r, one of the rules that asked is charged to, has to do with
// it.
func (x *explainer) charge(asked *limiter.Descriptor, st *limiter.Status, r *rules.Rule) Charge {
	c := Charge{
		Rule: r.Key, At: r.Pos.String(), Name: r.Name, Words: r.Words(),
		Unlimited: r.Unlimited, Shadow: r.Shadow,
	}
	if r.Unlimited {
		return c
	}
	c.Limit = uint64(r.Requests)
	if r.Fallback != backend.FallbackError {
		c.Fallback = r.Fallback.String()
	}
	for _, l := range r.Path {
		if l.ShareThreshold {
			c.Shared = append(c.Shared, pair(l.Key(), l.Value()))
		}
	}
	if slices.ContainsFunc(st.Charges, func(asked limiter.Charge) bool { return asked.Rule == r }) {
		x.charges(&c, asked, st, r, &r.Limit)
		return c
	}
	x.arithmetic(&c, &r.Limit)
	for _, by := range x.by[r.Name] {
		c.ReplacedBy = append(c.ReplacedBy, by.Key)
	}
	return c
}

func (x *explainer) arithmetic(c *Charge, limit *algorithm.Limit) {
	c.Algorithm = limit.Kind.String()
	c.PeriodUS, c.MinIntervalUS = limit.Period.Microseconds(), limit.MinInterval.Microseconds()
	c.CountBlocked = limit.CountBlocked
	if limit.Kind == algorithm.GCRA {
		c.AtOnce = limit.Capacity()
	}
}

// charges fills in what is charged to the counter of r, and how it stands.
func (x *explainer) charges(c *Charge, asked *limiter.Descriptor, st *limiter.Status, r *rules.Rule, limit *algorithm.Limit) {
	x.arithmetic(c, limit)
	for i := range st.Charges {
		if st.Charges[i].Rule == r {
			x.read(c, st, &st.Charges[i])
		}
	}
}

func (x *explainer) read(c *Charge, st *limiter.Status, from *limiter.Charge) {
	c.Key, c.Amount, c.Op, c.Earlier = string(from.Key), st.Amount, st.Op.String(), from.Asked-st.Amount
	if x.from != Rules {
		c.Now = stateOf(from, from.Algorithm)
	}
}

// stateOf is how the counter of c stands.
func stateOf(c *limiter.Charge, limit *algorithm.Limit) *State {
	v := &c.Verdict
	s := &State{Over: v.Over, Reasons: c.Reasons(), Cached: v.Cached}
	if wait, ok := c.Retry(); ok {
		s.RetryAfterUS = micros(wait)
	}
	if v.Fallback != backend.FallbackError {
		s.Degraded = v.Fallback.String()
	}
	if c.Counted() {
		before, most := v.Before, limit.Capacity()
		remaining := most - min(most, before)
		s.Before, s.Remaining, s.ResetAfterUS = &before, &remaining, *micros(v.ResetAfter)
	}
	return s
}

func status(st *limiter.Status) *Status {
	s := &Status{Code: code(st.Over), ResetAfterUS: *micros(st.ResetAfter)}
	if f := st.Fallback; f != backend.FallbackError {
		s.Degraded = f.String()
	}
	if st.Over && st.RetryAfter != algorithm.Never {
		s.RetryAfterUS = micros(st.RetryAfter)
	}
	return s
}

func micros(d time.Duration) *int64 {
	n := limiter.Microseconds(d)
	return &n
}

func code(over bool) string {
	if over {
		return "OVER_LIMIT"
	}
	return "OK"
}
