package algorithm

// State is the state of a counter of any kind. A counter uses only the field of its kind. The
// zero value is a counter without hits.
type State struct {
	FixedWindow    FixedState // the current fixed window.
	FirstHit       FirstHitState
	SlidingCounter SlidingCounterState
	GCRA           GCRAState
	SlidingLog     Log
}

// Take applies op to s with the Take function of the limit's kind.
func (s *State) Take(l *Limit, at int64, op Op, amount uint64) (v Outcome) {
	switch l.Kind {
	case FixedWindow:
		v = s.FixedWindow.Take(l, at, op, amount)
	case FirstHitWindow:
		s.FirstHit, v = TakeFirstHit(l, s.FirstHit, at, op, amount)
	case SlidingWindow:
		v = TakeSliding(l, &s.SlidingLog, at, op, amount)
	case SlidingWindowCounter:
		s.SlidingCounter, v = TakeSlidingCounter(l, s.SlidingCounter, at, op, amount)
	case GCRA:
		s.GCRA, v = TakeGCRA(l, s.GCRA, at, op, amount)
	case Concurrency:
		v = takeUnheld(l, op, amount)
	}
	return v
}

// takeUnheld applies op to a Concurrency without its holds, which is always empty.
func takeUnheld(l *Limit, op Op, amount uint64) Outcome {
	v := Outcome{Over: op.isOver(l, amount), Remaining: l.Max}
	v.setRetryAfter(l, amount, 0)
	return v
}
