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
			s.returnUnits(sh, l, h.Amount-given)
		}
		v.Outcome = l.outcome(algorithm.Look, 0, now)
		return
	}
	v.Charged, v.After = false, v.Before
}

// learn adds the units that the store gave for a, and completes the verdict of its hit.
func (s *Store) learn(b *backend.Batch, t *scratch, a ask, asked instant, mayRetry bool) (until int64) {
	h, v := &b.Hits[a.hit], &b.Verdicts[a.hit]
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
	if v.Over && a.amount > h.Amount && !v.Charged {
		t.retried = append(t.retried, a.hit) // The units of the hit alone may pass.
		if !l.isNone() {
			s.credit(sh, l, h, &v.Outcome, asked, 0)
		}
		return 0
	}
	if a.asLook && !v.Over {
		t.retried = append(t.retried, a.hit)
		return 0
	}
	surplus := settle(h, v, a.amount)
	s.returns.addOf(h, v.WindowEnd, surplus)
	extra := uint64(0)
	if !v.Over && v.Charged {
		extra = a.amount - surplus - h.Amount
	}
	if l.isNone() {
		s.returns.addOf(h, v.WindowEnd, extra)
		return 0
	}
	s.credit(sh, l, h, &v.Outcome, asked, extra)
	if !v.Over {
		if v.Charged && v.WindowEnd == l.windowEnd {
			l.countUse(h.Amount, tickOf(asked))
			v.Outcome = l.outcome(h.Op, h.Amount, asked)
		}
		if l.isLow(s.replicas(), asked) {
			s.contend(a.ref, l, asked)
		}
		if h.Atomic && !l.isAsking() && l.isUp(asked) && l.wanted(0, s.replicas(), asked) > 1 {
			s.askForMore(a.ref, l) // A hit of a group asks for its own units only.
		}
		return 0
	}
	return s.refuse(h, v, t, a, l, asked, mayRetry)
}

// settle makes v, the verdict on a charge of asked units, that of h alone, and returns the units that h cannot use.
// asked is at least h.Amount. A limit that counts refused hits was charged with all of asked, though less passes; a
// refused hit is given back, too, so that units that other replicas give back can be used.
func settle(h *backend.Hit, v *backend.Verdict, asked uint64) (surplus uint64) {
	if !v.Over || !v.Charged {
		return 0
	}
	granted := min(asked, h.Limit.Max-min(h.Limit.Max, v.Before))
	if granted < h.Amount {
		if v.After, v.Charged = v.Before, false; h.Limit.CanPass(h.Amount) {
			v.RetryAfter = v.ResetAfter
		}
		return asked
	}
	v.Over, v.RetryAfter, v.FullUntil, v.After = false, 0, 0, v.Before+granted
	return asked - granted
}

// credit adds granted units, and what the outcome v says of the counter, to l. Units that cannot be used go back.
func (s *Store) credit(sh *shard, l lease, h *backend.Hit, v *algorithm.Outcome, asked instant, granted uint64) {
	held := uint64(l.held)
	back := l.learn(v, asked, granted)
	sh.held += uint64(l.held) - held
	s.returns.addOf(h, v.WindowEnd, back)
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

// refuse completes the verdict on a hit that the store refuses. Other replicas may hold units: until they had time to
// give them back, the refusal is not final, and must not be cached.
func (s *Store) refuse(
	h *backend.Hit, v *backend.Verdict, t *scratch, a ask, l lease, asked instant, mayRetry bool,
) (until int64) {
	s.figures.refused.Add(1)
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
	if mayRetry && (until > 0 || ownHelps) {
		t.retried = append(t.retried, a.hit)
		if ownHelps {
			a.ref.shard.held -= uint64(l.held)
			s.returnUnits(a.ref.shard, l, uint64(l.held))
			l.held = 0
		}
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
			return nil
		}
		s.figures.waited.Add(uint64(len(t.retried)))
	}
	s.flushReturns(ctx)
	s.addGroups(b, t)
	asks := t.asks
	t.asks = t.asks[:0]
	for _, i := range t.retried {
		k := slices.IndexFunc(asks, func(a ask) bool { return a.hit == i })
		t.forwarded.Add(b, i, false)
		if k >= 0 {
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

// addGroups adds to t.retried the other atomic hits of those groups of retried hits that were refused: they were not
// charged. A group that a hit refuses which is not retried stays refused. In a group that passed, hits without a veto
// are retried alone.
func (s *Store) addGroups(b *backend.Batch, t *scratch) {
	retried := slices.Clone(t.retried)
	slices.Sort(retried)
	t.retried = t.retried[:0]
	for i := 0; i < len(b.Hits); {
		start, end, any, refused, final := i, b.GroupEnd(i), false, false, false
		for ; i < end; i++ {
			_, found := slices.BinarySearch(retried, i)
			any = any || found
			if v := &b.Verdicts[i]; !b.Hits[i].NoVeto && (v.Over || v.Err != nil) {
				refused, final = true, final || !found
			}
		}
		for j := start; any && j < end; j++ {
			_, found := slices.BinarySearch(retried, j)
			if found && !(b.Hits[j].Atomic && final) || b.Hits[j].Atomic && refused && !final {
				t.retried = append(t.retried, j)
			}
		}
	}
}
