package limiter

import (
	"fmt"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// charge finds the rules of all descriptors and adds a charge for each limit.
func (l *Limiter) charge(req *Request, a *Answer) error {
	a.Statuses = append(a.Statuses, make([]Status, len(req.Descriptors))...)
	if a.Domain == nil {
		return nil
	}
	together := len(req.Descriptors)
	if req.Independent {
		together = 1
	}
	for begin := 0; begin < len(req.Descriptors); begin += together {
		end := begin + together
		a.findRules(req.Descriptors[begin:end], a.Statuses[begin:end])
		for i := begin; i < end; i++ {
			if err := l.chargeDescriptor(req, a, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// findRules sets the rules of statuses, except those that another rule of them replaces.
func (a *Answer) findRules(descriptors []Descriptor, statuses []Status) {
	m := &a.memory
	for i := range statuses {
		d, st := &descriptors[i], &statuses[i]
		if !d.HasLimit {
			first := len(m.canaries)
			st.Rule, m.canaries = a.Domain.Find(d.Entries, &m.matching, m.canaries)
			st.found.canaries = m.canaries[first:]
		}
	}
	if !a.Domain.Replacing {
		return
	}
	m.replaced.Reset()
	for i := range statuses {
		for _, canary := range statuses[i].found.canaries {
			m.addReplaced(canary)
		}
		if rule := statuses[i].Rule; rule != nil {
			m.addReplaced(rule)
		}
	}
	for i := range statuses {
		if rule := statuses[i].Rule; rule != nil && !slices.ContainsFunc(m.limitsOf(rule), m.stays) {
			statuses[i].Rule = nil
		}
	}
}

// stays reports whether no rule of the request replaces r.
func (m *memory) stays(r *rules.Rule) bool { return !m.replaced.Has(r) }

// limitsOf returns the rules of all limits that rule stands for: valid until the next call.
func (m *memory) limitsOf(rule *rules.Rule) []*rules.Rule {
	if rule.Charges != nil {
		return rule.Charges
	}
	m.alone[0] = rule
	return m.alone[:]
}

// addReplaced notes the rules that rule replaces.
func (m *memory) addReplaced(rule *rules.Rule) {
	for _, r := range m.limitsOf(rule) {
		m.replaced.Add(r)
	}
}

// chargeDescriptor adds the charges of descriptor i.
func (l *Limiter) chargeDescriptor(req *Request, a *Answer, i int) error {
	d, st := &req.Descriptors[i], &a.Statuses[i]
	st.found.begin = len(a.Charges)
	st.Amount = max(req.Hits, 1)
	if d.HasHits {
		st.Amount = d.Hits
	}
	st.Amount = min(st.Amount, algorithm.MaxAmount)
	if d.Refund {
		st.Op = algorithm.Refund
	}
	if d.HasLimit {
		limit, err := a.memory.requestLimit(d, len(req.Descriptors)-i)
		if err != nil {
			return fmt.Errorf("%w: descriptor %d: limit: %w", ErrRequest, i, err)
		}
		l.addCharge(req, a, i, Charge{Limit: d.Limit, Algorithm: limit})
	} else {
		for _, canary := range st.found.canaries {
			l.chargeRule(req, a, i, canary, true)
		}
		if st.Rule != nil {
			l.chargeRule(req, a, i, st.Rule, false)
		}
	}
	st.found.end = len(a.Charges)
	return nil
}

// chargeRule adds a charge for each limit of rule, which descriptor i matches; see
// Charge.Canary.
func (l *Limiter) chargeRule(req *Request, a *Answer, i int, rule *rules.Rule, canary bool) {
	first, replacing := uint16(len(a.Charges)), a.Domain.Replacing
	for _, r := range a.memory.limitsOf(rule) {
		if r.Unlimited || replacing && a.memory.replaced.Has(r) {
			continue
		}
		hit := l.addCharge(req, a, i, Charge{Rule: r, Limit: r.Quantity, Algorithm: &r.Limit, Canary: canary})
		if rule.AllOrNone && !l.cfg.AllOrNothing {
			hit.Group, hit.Atomic = first, !req.Descriptors[i].Refund
		}
	}
}

// addCharge adds c to descriptor i, and its hit to the batch. It returns the hit, which is
// valid until the next one is added. Hits of one group are adjacent. With AllOrNothing the
// whole request is one group, else each hit is one.
func (l *Limiter) addCharge(req *Request, a *Answer, i int, c Charge) *backend.Hit {
	d, st, m := &req.Descriptors[i], &a.Statuses[i], &a.memory
	start := len(m.keys)
	var tag int
	m.keys, tag = l.keys.Append(m.keys, a.Domain, c.Rule, d.Entries)
	c.Key, c.Asked = m.keys[start:len(m.keys):len(m.keys)], st.Amount
	hit := backend.Hit{
		Key:      c.Key,
		Tag:      tag,
		Limit:    c.Algorithm,
		Amount:   st.Amount,
		Op:       st.Op,
		Group:    uint16(len(a.Charges)), // wraps; neighbours still differ
		Fallback: a.Domain.Fallback,
	}
	if c.Rule != nil {
		hit.Fallback = c.Rule.Fallback
		hit.Joint, hit.NoVeto, hit.CountDown = c.Rule.Joint, c.Rule.Shadow, l.keys.AsDivvy(c.Rule)
	}
	if l.cfg.AllOrNothing {
		hit.Group, hit.Atomic = 0, !d.Refund
		if req.Independent {
			hit.Group = uint16(i)
		}
	}
	a.grow()
	a.Charges = append(a.Charges, c)
	m.batch.Verdicts = append(m.batch.Verdicts, backend.Verdict{})
	m.batch.Hits = append(m.batch.Hits, hit)
	return &m.batch.Hits[len(m.batch.Hits)-1]
}

// requestLimit returns the limit that came with d. left is how many descriptors, d
// included, may still bring one.
func (m *memory) requestLimit(d *Descriptor, left int) (*algorithm.Limit, error) {
	limit, err := d.Limit.Window()
	if err != nil {
		return nil, err
	}
	if cap(m.limits) == len(m.limits) { // pointers to earlier limits must stay valid
		m.limits = slices.Grow([]algorithm.Limit(nil), left)
	}
	m.limits = append(m.limits, limit)
	return &m.limits[len(m.limits)-1], nil
}
