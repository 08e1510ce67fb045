package limiter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// addCharges finds the rules of all descriptors and adds a charge for each limit. It stops when ctx ends.
func (l *Limiter) addCharges(ctx context.Context, req *Request, a *Answer) error {
	together, search := len(req.Descriptors), &a.workspace.findRuleScratch
	a.Statuses = append(a.Statuses, make([]Status, together)...)
	if a.Domain == nil {
		return nil
	}
	a.workspace.requestLimits = slices.Grow(a.workspace.requestLimits, together) // Charges point into requestLimits, so it must not grow later.
	if req.IndependentDescriptors {
		together = 1
	}
	for begin := 0; begin < len(req.Descriptors); begin += together {
		end := begin + together
		search.Begin(ctx)
		a.findRules(req.Descriptors[begin:end], a.Statuses[begin:end])
		a.makeRoom(req, begin, end)
		for i := begin; i < end; i++ {
			err := l.addDescriptorCharges(req, a, i)
			if searchErr := search.Err(); searchErr != nil {
				err = stoppedSearch(searchErr)
			}
			if err != nil && (!req.IndependentDescriptors || ctx.Err() != nil) {
				return err
			}
			if err != nil {
				a.refuseDescriptor(i, err)
			}
		}
	}
	return nil
}

// makeRoom makes room for the charges of descriptors begin to end, and for one of each that follows, so that adding them does not grow
// the slices again and again. Their rules are found.
func (a *Answer) makeRoom(req *Request, begin, end int) {
	const (
		keyOverhead = 24      // keyOverhead is about what a key has beside the domain and the entries, such as the window.
		maxKeyRoom  = 2 << 20 // Not each rule is charged, so room for long keys is made when they come.
	)
	charges, keyBytes := len(req.Descriptors)-end, 0
	for i := begin; i < end; i++ {
		st := &a.Statuses[i]
		n := 1
		if st.Rule != nil {
			n = len(st.Rule.LimitsToCharge())
		}
		for _, canary := range st.canaryRules {
			n += len(canary.LimitsToCharge())
		}
		charges += n
		if n > 1 {
			keyLength := keyOverhead + len(req.Domain)
			for _, e := range req.Descriptors[i].Entries {
				keyLength += len(e.Key) + len(e.Value) + len("__")
			}
			keyBytes += n * keyLength
		}
	}
	w := &a.workspace
	a.Charges, w.counterKeys = slices.Grow(a.Charges, charges), slices.Grow(w.counterKeys, min(keyBytes, maxKeyRoom))
	w.batch.Hits, w.batch.Verdicts = slices.Grow(w.batch.Hits, charges), slices.Grow(w.batch.Verdicts, charges)
}

// stoppedSearch returns the error of a request whose search for rules has stopped with err.
func stoppedSearch(err error) error {
	if errors.Is(err, rules.ErrTooMuchRegexWork) {
		return fmt.Errorf("%w: %w", ErrRequestTooLarge, err)
	}
	return fmt.Errorf("limiter: %w", err)
}

// refuseDescriptor sets the Err of independent descriptor i, and removes the charges that it has so far.
func (a *Answer) refuseDescriptor(i int, err error) {
	first, batch := a.Statuses[i].firstChargeIndex, a.workspace.batch
	a.Charges = a.Charges[:first]
	n := a.workspace.firstHit + first
	batch.Hits, batch.Verdicts = batch.Hits[:n], batch.Verdicts[:n]
	a.Statuses[i] = Status{Err: err, Rule: a.Statuses[i].Rule, firstChargeIndex: first, endChargeIndex: first}
}

// findRules sets the rules of statuses, except those that another rule of statuses replaces.
func (a *Answer) findRules(descriptors []Descriptor, statuses []Status) {
	w := &a.workspace
	for i := range statuses {
		d, st := &descriptors[i], &statuses[i]
		if !d.HasLimit {
			first := len(w.canaryRules)
			st.Rule, w.canaryRules = a.Domain.FindRule(d.Entries, &w.findRuleScratch, w.canaryRules)
			st.canaryRules = w.canaryRules[first:]
		}
	}
	if !a.Domain.HasReplacingRules {
		return
	}
	w.replacedRules.Reset()
	addReplaced := func(rule *rules.Rule) {
		for _, r := range rule.LimitsToCharge() {
			w.replacedRules.AddReplacedBy(r)
		}
	}
	for i := range statuses {
		for _, canary := range statuses[i].canaryRules {
			addReplaced(canary)
		}
		if rule := statuses[i].Rule; rule != nil {
			addReplaced(rule)
		}
	}
	applies := func(r *rules.Rule) bool { return !w.replacedRules.IsReplaced(r) }
	for i := range statuses {
		if rule := statuses[i].Rule; rule != nil && !slices.ContainsFunc(rule.LimitsToCharge(), applies) {
			statuses[i].Rule = nil
		}
	}
}

func (l *Limiter) addDescriptorCharges(req *Request, a *Answer, i int) error {
	d, st := &req.Descriptors[i], &a.Statuses[i]
	st.firstChargeIndex = len(a.Charges)
	st.Amount = d.amount(req)
	st.Op = operationOf(d, rules.TakeHold)
	if a.workspace.live != nil {
		if st.basis = l.candidateBasis(d, a, i); st.basis != basisHits {
			st.endChargeIndex = st.firstChargeIndex
			if st.basis == basisNone && st.Rule != nil && !req.IgnoresHolds {
				_, _, err := st.Rule.HoldOf(d.Entries)
				return invalidDescriptor(req, i, err)
			}
			return nil
		}
	}
	if d.HasLimit {
		limit, err := d.Limit.FixedWindowLimit()
		if err != nil {
			return invalidDescriptor(req, i, fmt.Errorf("limit: %w", err))
		}
		a.workspace.requestLimits = append(a.workspace.requestLimits, limit)
		l.addCharge(req, a, i, Charge{Limit: d.Limit, Op: st.Op, Algorithm: &a.workspace.requestLimits[len(a.workspace.requestLimits)-1]})
	} else {
		for _, canary := range st.canaryRules {
			_, _ = l.addRuleCharges(req, a, i, canary, true) // A canary that cannot be charged has no effect.
		}
		if st.Rule != nil {
			var err error
			if st.Op, err = l.addRuleCharges(req, a, i, st.Rule, false); err != nil {
				return invalidDescriptor(req, i, err)
			}
		}
	}
	st.endChargeIndex = len(a.Charges)
	return nil
}

// addCallerCharges adds the charges of req.CallerLimits. Their counters are those of no rule.
func (l *Limiter) addCallerCharges(req *Request, a *Answer) {
	w := &a.workspace
	for i := range req.Descriptors {
		d, limit, start := &req.Descriptors[i], &req.CallerLimits[i], len(w.counterKeys)
		w.counterKeys = append(append(append(append(w.counterKeys, l.cfg.KeyPrefix...), req.Domain...), ':'), d.Entries[0].Value...)
		key := w.counterKeys[start:len(w.counterKeys):len(w.counterKeys)]
		st := Status{Op: operationOf(d, rules.TakeHold), Amount: d.amount(req), firstChargeIndex: i, endChargeIndex: i + 1}
		a.Statuses = append(a.Statuses, st)
		a.Charges = append(a.Charges, Charge{Op: st.Op, Algorithm: limit, CounterKey: key, RequestedAmount: st.Amount})
		w.batch.Hits = append(w.batch.Hits, backend.Hit{Key: key, Limit: limit, Amount: st.Amount, Op: st.Op, GroupID: nextGroupID(w.batch)})
		w.batch.Verdicts = append(w.batch.Verdicts, backend.Verdict{})
	}
}

// amount returns how many units d charges, refunds or settles.
func (d *Descriptor) amount(req *Request) uint64 {
	if d.HasAmount {
		return min(d.Amount, algorithm.MaxAmount)
	}
	return min(max(req.DefaultAmount, 1), algorithm.MaxAmount)
}

// invalidDescriptor returns the error of a request whose descriptor i has err; nil if that is nil. An independent descriptor is the only one
// of its request.
func invalidDescriptor(req *Request, i int, err error) error {
	if err == nil {
		return nil
	}
	if req.IndependentDescriptors {
		i = 0
	}
	return fmt.Errorf("%w: descriptor %d: %w", ErrInvalidRequest, i, err)
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

// addRuleCharges adds a charge for each limit of rule, which req.Descriptors[i] matches. A descriptor that settles or releases a hold
// is charged only to limits with holds. addRuleCharges returns the operation. The error says what is wrong with the entries; nothing is
// added then.
func (l *Limiter) addRuleCharges(req *Request, a *Answer, i int, rule *rules.Rule, canary bool) (op algorithm.Op, err error) {
	d := &req.Descriptors[i]
	var holdName []byte
	action := rules.TakeHold
	if !req.IgnoresHolds {
		if holdName, action, err = rule.HoldOf(d.Entries); err != nil {
			return algorithm.Charge, err
		}
	}
	op = operationOf(d, action)
	holdID := backend.NewHoldID(holdName)
	group, replacing := nextGroupID(a.workspace.batch), a.Domain.HasReplacingRules
	for _, r := range rule.LimitsToCharge() {
		isHeld := r.HoldIDKey != ""
		if r.Unlimited || replacing && a.workspace.replacedRules.IsReplaced(r) || action != rules.TakeHold && !isHeld {
			continue
		}
		hit := l.addCharge(req, a, i, Charge{Rule: r, Limit: r.Rate, Op: op, Algorithm: &r.Limit, IsCanary: canary})
		if isHeld {
			hit.HoldID = holdID
		}
		if rule.ChargesAllOrNone && !l.cfg.ChargeAllOrNothing {
			hit.GroupID, hit.Atomic = group, op == algorithm.Charge
		}
	}
	return op, nil
}

// addCharge adds c to the charges of req.Descriptors[i], and its hit to the batch. It returns
// the hit, which is valid until the next one is added. Hits of one group are adjacent. With
// ChargeAllOrNothing the whole request is one group, else each hit is a group of its own.
func (l *Limiter) addCharge(req *Request, a *Answer, i int, charge Charge) *backend.Hit {
	d, st, w := &req.Descriptors[i], &a.Statuses[i], &a.workspace
	a.Charges = append(a.Charges, charge)
	c, start := &a.Charges[len(a.Charges)-1], len(w.counterKeys)
	var tag int
	w.counterKeys, tag = l.keyFormat.AppendKey(w.counterKeys, a.Domain, c.Rule, d.Entries)
	c.CounterKey, c.RequestedAmount = w.counterKeys[start:len(w.counterKeys):len(w.counterKeys)], st.Amount
	if w.live != nil && l.isLiveCounter(a, i, c, d.Entries) {
		w.counterKeys = append(w.counterKeys, candidateMarker...)
	}
	hit := backend.Hit{
		Key:       w.counterKeys[start:len(w.counterKeys):len(w.counterKeys)],
		TagLength: tag,
		Limit:     c.Algorithm,
		Amount:    st.Amount,
		Op:        c.Op,
		GroupID:   nextGroupID(w.batch),
		Fallback:  a.Domain.Fallback,
	}
	if c.Rule != nil {
		hit.Fallback = c.Rule.Fallback
		c.NotEnforced = c.Rule.Enforcement != nil && !c.Rule.IsEnforced(a.Domain, d.Entries, &w.findRuleScratch)
		hit.SharesKey, hit.NoVeto, hit.StoresRemaining = c.Rule.ChargedWithOthers, c.InShadowMode(), l.keyFormat.WritesDivvyKey(c.Rule)
	}
	if w.live != nil {
		hit.Fallback = backend.FallbackError // An answer that the store did not decide is not compared.
	}
	if l.cfg.ChargeAllOrNothing {
		hit.Atomic = c.Op == algorithm.Charge
		if len(a.Charges) > 1 && (!req.IndependentDescriptors || len(a.Charges)-1 > st.firstChargeIndex) {
			hit.GroupID-- // The hit belongs to the group of the previous one.
		}
	}
	w.batch.Verdicts = append(w.batch.Verdicts, backend.Verdict{})
	w.batch.Hits = append(w.batch.Hits, hit)
	return &w.batch.Hits[len(w.batch.Hits)-1]
}

// nextGroupID returns the GroupID of a group that starts behind the last hit of b. Numbers may wrap around, but adjacent groups
// differ.
func nextGroupID(b *backend.Batch) uint16 {
	if n := len(b.Hits); n > 0 {
		return b.Hits[n-1].GroupID + 1
	}
	return 0
}
