package leased

import (
	"context"
	"slices"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// learnAll adds the units that the store gave, and completes the verdicts of b. If mayRetry is set, it adds to
// t.retried the hits that may pass when they are sent again, and returns until when other replicas can give back units
// for them, by instant.mono; 0: there is nothing to wait for.
func (s *Store) learnAll(b *backend.Batch, t *scratch, asked instant, mayRetry bool) (until int64) {
	t.retried = t.retried[:0]
	for _, a := range t.asks {
		until = max(until, s.learn(b, t, a, asked, mayRetry))
	}
	for _, r := range t.reserved {
		if isRefused(b, r.hit) {
			s.giveReservedBack(b, r, asked)
		}
	}
	t.reserved = t.reserved[:0]
	return until
}

// isRefused reports whether the group of hit i is refused, or is not decided completely.
func isRefused(b *backend.Batch, i int) bool {
	start := i
	for start > 0 && b.Hits[start-1].GroupID == b.Hits[i].GroupID {
		start--
	}
	for j := start; j < len(b.Hits) && b.Hits[j].GroupID == b.Hits[i].GroupID; j++ {
		if v := &b.Verdicts[j]; v.Err != nil || v.Over && !b.Hits[j].NoVeto {
			return true
		}
	}
	return false
}

// giveReservedBack gives back the units of a hit whose group was refused. If their window has ended meanwhile, they
// ended with it.
func (s *Store) giveReservedBack(b *backend.Batch, r reservation, now instant) {
	h, sh := &b.Hits[r.hit], r.ref.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	v := &b.Verdicts[r.hit]
	if l := r.ref.lease(); !l.isNone() && l.windowEnd == r.windowEnd {
		given := uint64(0)
		if !l.limit.RefillsSteadily() || l.end <= r.end {
			given = l.giveBack(h.Amount, now)
		}
		if sh.held += given; given < h.Amount { // The limit changed, or the units that are held now end later.
			s.returns.add(refundOf(h, l.windowEnd, h.Amount-given), r.end)
		}
		v.Outcome = l.outcome(algorithm.Look, 0, now)
		return
	}
	v.Charged, v.After = false, v.Before
}

// learn adds the units that the store gave for a, and completes the verdict of its hit.
func (s *Store) learn(b *backend.Batch, t *scratch, a ask, asked instant, mayRetry bool) (until int64) {
	h, v := &b.Hits[a.hit], &b.Verdicts[a.hit]
	v.LeaseMissed = true
	if a.ref.shard == nil { // There was no room for a lease.
		return 0
	}
	sh := a.ref.shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	l := a.ref.lease()
	if !l.isNone() && a.amount > h.Amount && h.Op == algorithm.Charge {
		l.setAsking(false)
	}
	if v.Err != nil {
		return 0
	}
	if !l.isNone() && !sameLimit(l.limit, h.Limit) {
		l = lease{} // The limit changed while the store was asked, and these units were taken under the old one.
	}
	if h.Op != algorithm.Charge {
		s.learnOther(sh, l, h, v, a, asked)
		return 0
	}
	mayPassAlone := a.isOfMore(h) && (l.isNone() || v.After+h.Amount <= h.Limit.Capacity())
	if v.Over && mayPassAlone || a.asLook && !v.Over {
		t.retried = append(t.retried, a.hit)
		s.keep(a.ref, l, h, &v.Outcome, asked, 0)
		return 0
	}
	surplus := settle(h.Limit, v, h.Amount, a.amount)
	s.returns.addOf(h, v.WindowEnd, surplus, asked)
	extra := uint64(0)
	if !v.Over && v.Charged {
		extra = a.amount - surplus - h.Amount
	}
	s.keep(a.ref, l, h, &v.Outcome, asked, extra)
	switch {
	case l.isNone():
		return 0
	case v.Over:
		return s.refuse(h, v, t, a, l, asked, mayRetry)
	case v.Charged && v.WindowEnd == l.windowEnd:
		l.countUse(h.Amount, tickOf(asked))
		v.Outcome = l.outcome(h.Op, h.Amount, asked)
	}
	if h.Atomic && !l.isAsking() && l.isUp(asked) && l.wanted(0, s.replicas(), asked) > 1 {
		s.askForMore(a.ref, l) // A hit of a group asks for its own units only.
	}
	return 0
}

// settle makes v, the verdict on a charge of asked units, that on the needed ones, and returns the units that cannot be
// used. A limit that counts refused hits was charged with all of asked, though less passes; if even the needed ones do
// not pass, all are given back, so that units that other replicas give back can be used.
func settle(l *algorithm.Limit, v *backend.Verdict, needed, asked uint64) (surplus uint64) {
	if !v.Over || !v.Charged {
		return 0
	}
	granted := min(asked, l.Max-min(l.Max, v.Before))
	if granted < needed {
		if v.After, v.Charged = v.Before, false; l.CanPass(needed) {
			v.RetryAfter = v.ResetAfter
		}
		return asked
	}
	v.Over, v.RetryAfter, v.FullUntil, v.After = false, 0, 0, v.Before+granted
	return asked - granted
}

// keep adds granted units to l, and tells others if little is left. Without l, the units go back. The caller holds mu
// of the shard of r, which names l.
func (s *Store) keep(r ref, l lease, h *backend.Hit, v *algorithm.Outcome, asked instant, granted uint64) {
	if l.isNone() {
		s.returns.addOf(h, v.WindowEnd, granted, asked)
		return
	}
	s.credit(r.shard, l, h, v, asked, granted)
	if old := l.limitID; s.limits.ownerOf(old) != h.Owner { // The rule was renamed.
		l.limitID = s.limits.intern(h.Limit, h.Owner)
		s.limits.release(old)
	}
	if l.isLow(s.replicas(), asked) {
		s.contend(r, l, asked)
	}
}

// credit adds granted units, and what the outcome v says of the counter, to l. Units that cannot be used go back.
func (s *Store) credit(sh *shard, l lease, h *backend.Hit, v *algorithm.Outcome, asked instant, granted uint64) {
	held, end := uint64(l.held), l.end
	back := l.learn(v, asked, granted)
	sh.held += uint64(l.held) - held
	s.returns.add(refundOf(h, v.WindowEnd, back), end)
	if granted > 0 {
		s.figures.leases.Add(1)
		s.figures.unitsTaken.Add(granted)
	}
}

// learnOther completes the verdict of a look, a refund or a forced hit.
func (s *Store) learnOther(
	sh *shard, l lease, h *backend.Hit, v *backend.Verdict, a ask, asked instant,
) {
	if l.isNone() {
		return
	}
	s.credit(sh, l, h, &v.Outcome, asked, 0)
	switch h.Op {
	case algorithm.Force:
		l.countUse(h.Amount, tickOf(asked))
	case algorithm.Refund:
		l.used -= uint32(min(uint64(l.used), a.amount))
	case algorithm.Look: // An operator's, or a divider's: the count is the store's.
		if v.Over && l.held > 0 && h.Amount <= l.left(asked)+l.usable(asked) {
			before := v.Before
			v.Outcome = l.outcome(h.Op, h.Amount, asked)
			v.Before, v.After = before, before
		}
		v.HeldHere = l.usable(asked)
	}
}

// refuse completes the verdict on a hit that the store refuses. This replica may hold units by now, which admit it.
// Other replicas may hold some: until they had time to give them back, the refusal is not final, and must not be
// cached.
func (s *Store) refuse(
	h *backend.Hit, v *backend.Verdict, t *scratch, a ask, l lease, asked instant, mayRetry bool,
) (until int64) {
	now, isSame := s.now(), v.WindowEnd == l.windowEnd
	if isSame && !h.Atomic && h.Amount > 0 && l.use(h.Amount, now, tickOf(now)) {
		a.ref.shard.held -= h.Amount
		*v = backend.Verdict{Outcome: l.outcome(h.Op, h.Amount, now)}
		return 0
	}
	if replicas := s.replicas(); replicas > 1 && l.canBeHeld(replicas) {
		s.contend(a.ref, l, asked)
		if wait := s.resolveTime() - l.contendedFor(asked); wait > 0 {
			v.FullUntil = 0
			if mayRetry && h.OnContention == backend.Wait && !h.NoVeto && h.Limit.CanPass(h.Amount) {
				until = asked.mono + int64(wait)
			}
		}
	}
	ownHelps := l.held > 0 && h.Amount <= l.left(asked)+l.usable(asked)
	if !mayRetry || until == 0 && !ownHelps && !a.isOfMore(h) {
		s.figures.refused.Add(1)
		return 0
	}
	t.retried = append(t.retried, a.hit)
	if ownHelps {
		a.ref.shard.held -= uint64(l.held)
		s.returnUnits(a.ref.shard, l, uint64(l.held))
		l.held = 0
	}
	return until
}

// stopAsking takes back that units were asked for.
func (s *Store) stopAsking(t *scratch) {
	for _, a := range t.asks {
		if a.ref.shard == nil {
			continue
		}
		a.ref.shard.mu.Lock()
		if l := a.ref.lease(); !l.isNone() {
			l.setAsking(false)
		}
		a.ref.shard.mu.Unlock()
	}
}

// retry sends the hits t.retried again, each for its own units, after others had until then to give back units. It does
// not wait if ctx ends before.
func (s *Store) retry(ctx context.Context, b *backend.Batch, t *scratch, until int64) error {
	if wait := time.Duration(until - s.now().mono); until > 0 && wait > 0 {
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait+tick/2 || !s.sleep(ctx, wait) {
			s.dropRefused(b, t)
		} else {
			s.figures.waited.Add(uint64(len(t.retried)))
		}
	}
	if len(t.retried) == 0 {
		return nil
	}
	s.flushReturns(ctx)
	t.addGroups(b)
	asks := t.asks
	t.asks = t.asks[:0]
	for _, i := range t.retried {
		t.forwarded.Add(b, i, false)
		if k := askOf(asks, i); k >= 0 {
			t.asks = append(t.asks, ask{hit: i, amount: b.Hits[i].Amount, ref: asks[k].ref})
		}
	}
	asked := s.now()
	if err := t.forwarded.Send(ctx, s.cfg.Next, b); err != nil {
		return err
	}
	s.learnAll(b, t, asked, false)
	return nil
}

// askOf returns the index of the ask of hit i, or -1.
func askOf(asks []ask, i int) int {
	return slices.IndexFunc(asks, func(a ask) bool { return a.hit == i })
}

// dropRefused removes the hits from t.retried that only units of other replicas could let pass. Their verdicts hold.
func (s *Store) dropRefused(b *backend.Batch, t *scratch) {
	retried := len(t.retried)
	t.retried = slices.DeleteFunc(t.retried, func(i int) bool {
		return b.Verdicts[i].Over && !t.asks[askOf(t.asks, i)].isOfMore(&b.Hits[i])
	})
	s.figures.refused.Add(uint64(retried - len(t.retried)))
}

// fate is what becomes of a group when some of its hits are sent again.
type fate int

const (
	passed  fate = iota
	mayPass      // only hits that are sent again refuse it
	refused
)

// fateOf returns the fate of the hits [start:end), which are a group.
func fateOf(b *backend.Batch, start, end int, isRetried func(i int) bool) (f fate) {
	for i := start; i < end; i++ {
		if v := &b.Verdicts[i]; b.Hits[i].NoVeto || !v.Over && v.Err == nil {
			continue
		}
		if f = mayPass; !isRetried(i) {
			return refused
		}
	}
	return f
}

// addGroups adds to t.retried the other atomic hits of those groups of retried hits that were refused: they were not
// charged. A group that a hit refuses which is not retried stays refused. In a group that passed, hits without a veto
// are retried alone.
func (t *scratch) addGroups(b *backend.Batch) {
	retried := slices.Sorted(slices.Values(t.retried))
	isRetried := func(i int) bool {
		_, found := slices.BinarySearch(retried, i)
		return found
	}
	t.retried = t.retried[:0]
	for i := 0; i < len(b.Hits); {
		end := b.GroupEnd(i)
		group := fateOf(b, i, end, isRetried)
		for ; i < end; i++ {
			if isAtomic := b.Hits[i].Atomic; isAtomic && group == mayPass || isRetried(i) && !(isAtomic && group == refused) {
				t.retried = append(t.retried, i)
			}
		}
	}
}
