package limiter

import (
	"cmp"
	"fmt"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// Charge adds a charge, and its hit, for each limit that applies to descriptor i of req. Find has found the rules.
// Descriptors are charged in their order; one without Charge has no charges.
func (l *Limiter) Charge(req *Request, a *Answer, i int) error {
	if a.Domain == nil && req.CallerLimit == nil {
		return nil
	}
	d, st := &req.Descriptors[i], &a.Statuses[i]
	st.Amount, st.Op = d.amount(req), operationOf(d, rules.TakeHold)
	first, err := len(a.Charges), error(nil)
	switch {
	case req.CallerLimit != nil:
		l.chargeCallerLimit(req, a, i)
	case d.HasLimit:
		err = l.chargeRequestLimit(req, a, i)
	default:
		for _, canary := range st.canaryRules {
			_, _ = l.chargeMatch(req, a, i, canary, true) // A canary that cannot be charged has no effect.
		}
		if st.Match != nil {
			st.Op, err = l.chargeMatch(req, a, i, st.Match, false)
		}
	}
	if n := len(a.Charges); n > first {
		st.Charges = a.Charges[first:n:n]
	}
	if stopped := a.batch.searchError(); stopped != nil {
		return stopped
	}
	if err != nil {
		return fmt.Errorf("%w: descriptor %d: %w", ErrInvalidRequest, i, err)
	}
	return nil
}

// amount returns how many units d charges, refunds or settles.
func (d *Descriptor) amount(req *Request) uint64 {
	if d.HasAmount {
		return min(d.Amount, algorithm.MaxAmount)
	}
	return min(max(req.DefaultAmount, 1), algorithm.MaxAmount)
}

// operationOf returns what d does to the counters of its limits. A refund gives back the whole hold that it names.
func operationOf(d *Descriptor, action rules.HoldAction) algorithm.Op {
	switch {
	case d.IsRefund || action == rules.ReleaseHold:
		return algorithm.Refund
	case action == rules.SettleHold:
		return algorithm.Force
	}
	return algorithm.Charge
}

// chargeCallerLimit adds the charge of req.CallerLimit for descriptor i. Its counter is that of no rule.
func (l *Limiter) chargeCallerLimit(req *Request, a *Answer, i int) {
	b, st := a.batch, &a.Statuses[i]
	start := len(b.counterKeys)
	b.counterKeys = append(append(append(b.counterKeys, l.cfg.KeyPrefix...), req.Domain...), ':')
	b.counterKeys = append(b.counterKeys, req.Descriptors[i].Entries[0].Value...)
	key := b.counterKeys[start:len(b.counterKeys):len(b.counterKeys)]
	c := Charge{Op: st.Op, Algorithm: req.CallerLimit, CounterKey: key, RequestedAmount: st.Amount}
	a.Charges = append(a.Charges, c)
	b.add(backend.Hit{Key: key, Limit: req.CallerLimit, Amount: st.Amount, Op: st.Op, GroupID: b.nextGroupID()})
}

// chargeRequestLimit adds the charge of the limit that came with descriptor i.
func (l *Limiter) chargeRequestLimit(req *Request, a *Answer, i int) error {
	b, d := a.batch, &req.Descriptors[i]
	limit, err := d.Limit.FixedWindowLimit()
	if err != nil {
		return fmt.Errorf("limit: %w", err)
	}
	b.requestLimits = append(b.requestLimits, limit)
	inBatch := &b.requestLimits[len(b.requestLimits)-1]
	l.addCharge(req, a, i, Charge{Limit: d.Limit, Op: a.Statuses[i].Op, Algorithm: inBatch})
	return nil
}

// chargeMatch adds a charge for each limit of m, which descriptor i matches, and returns the operation. A descriptor
// that settles or releases a hold is charged only to limits with holds. The error says what is wrong with the entries;
// nothing is added then.
func (l *Limiter) chargeMatch(
	req *Request, a *Answer, i int, m *rules.Match, isCanary bool,
) (op algorithm.Op, err error) {
	d, b := &req.Descriptors[i], a.batch
	var holdName []byte
	action := rules.TakeHold
	if !req.IgnoresHolds {
		if holdName, action, err = m.HoldOf(d.Entries); err != nil {
			return algorithm.Charge, err
		}
	}
	op = operationOf(d, action)
	holdID := backend.NewHoldID(holdName)
	isUnnamed := action == rules.TakeHold && len(holdName) == 0 && !d.IsRefund && !req.IgnoresHolds
	group, replacing := b.nextGroupID(), a.Domain.HasReplacingRules
	for _, r := range m.Limits {
		isHeld, reserves := r.HoldIDKey != "", r.Reserve != nil && isUnnamed
		if r.Unlimited || replacing && b.replaced.IsReplaced(r) || action != rules.TakeHold && !isHeld {
			continue
		}
		c := Charge{Rule: r, Limit: r.Rate, Op: op, Algorithm: &r.Limit, IsCanary: isCanary}
		if reserves && !d.isCheck(req) {
			c.Op = algorithm.Force
		}
		hit := l.addCharge(req, a, i, c)
		if isHeld {
			hit.HoldID = holdID
		}
		if reserves {
			l.reserve(&a.Charges[len(a.Charges)-1], hit)
		}
		if m.ChargesAllOrNone && !l.cfg.ChargeAllOrNothing {
			hit.GroupID, hit.Atomic = group, hit.Op == algorithm.Charge
		}
	}
	return op, nil
}

// isCheck reports whether d asks first, so that a later request charges: it is for 0 units, or says no amount at all,
// as a gateway's policy without a cost of requests does.
func (d *Descriptor) isCheck(req *Request) bool {
	return d.HasAmount && d.Amount == 0 || !d.HasAmount && req.DefaultAmount == 0
}

// reserve makes hit, a check, take a hold of the estimate. A hit that charges settles the oldest such hold.
func (l *Limiter) reserve(c *Charge, hit *backend.Hit) {
	hit.HoldID = algorithm.Unnamed
	if hit.Op != algorithm.Charge {
		return
	}
	estimate := c.Rule.Reserve.Estimate
	if estimate == 0 && l.cfg.Estimates != nil {
		estimate = l.cfg.Estimates.Estimate(c)
	}
	most := max(c.Algorithm.Capacity(), 1)
	c.IsReserving = true
	c.RequestedAmount = min(cmp.Or(estimate, most/100, 1), most)
	hit.Amount = c.RequestedAmount
}

// addCharge adds charge, which is one of descriptor i, and its hit. It returns the hit, which is valid until the next
// one is added. Hits of one group are adjacent. With ChargeAllOrNothing the whole request is one group, else each hit
// is a group of its own.
func (l *Limiter) addCharge(req *Request, a *Answer, i int, charge Charge) *backend.Hit {
	d, st, b := &req.Descriptors[i], &a.Statuses[i], a.batch
	a.Charges = append(a.Charges, charge)
	c, start := &a.Charges[len(a.Charges)-1], len(b.counterKeys)
	var tag int
	b.counterKeys, tag = l.keyFormat.AppendKey(b.counterKeys, a.Domain, c.Rule, d.Entries)
	c.CounterKey, c.RequestedAmount = b.counterKeys[start:len(b.counterKeys):len(b.counterKeys)], st.Amount
	hit := backend.Hit{
		Key: c.CounterKey, TagLength: tag, Limit: c.Algorithm, Amount: st.Amount, Op: c.Op,
		GroupID: b.nextGroupID(), Fallback: a.Domain.Fallback,
		Counting: a.Domain.Counting, OnContention: a.Domain.OnContention,
	}
	if c.Rule != nil {
		hit.Fallback, hit.Counting, hit.OnContention = c.Rule.Fallback, c.Rule.Counting, c.Rule.OnContention
		c.NotEnforced = c.Rule.Enforcement != nil && !c.Rule.IsEnforced(a.Domain, d.Entries, &b.search)
		hit.SharesKey, hit.NoVeto = c.Rule.ChargedWithOthers, c.InShadowMode()
		hit.StoresRemaining, hit.Owner = c.Rule.PeerKey != nil, c.Rule.Owner
	}
	if l.cfg.ChargeAllOrNothing {
		hit.Atomic = c.Op == algorithm.Charge
		if len(a.Charges) > 1 {
			hit.GroupID-- // The hit belongs to the group of the previous one.
		}
	}
	return b.add(hit)
}

// add adds hit, and returns it.
func (b *Batch) add(hit backend.Hit) *backend.Hit {
	b.Hits = append(b.Hits, hit)
	return &b.Hits[len(b.Hits)-1]
}
