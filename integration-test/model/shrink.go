package model

import (
	"slices"
	"time"
)

// Shrink makes s smaller as long as fails says that what is left still does, and
// asks that at most so many times.
func Shrink(s *Script, tries int, fails func(*Script) bool) *Script {
	for again := true; again && tries > 0; {
		again = false
		for _, smaller := range []func(*Script, func(*Script) bool) *Script{
			shrinkSteps, shrinkAsks, shrinkRules,
			shrinkTimes,
		} {
			next := smaller(s, func(c *Script) bool {
				tries--
				return tries >= 0 && fails(c)
			})
			if next != s {
				s, again = next, true
			}
		}
	}
	return s
}

// clone copies s down to what the shrinkers change.
func (s *Script) clone() *Script {
	out := &Script{s.Store, slices.Clone(s.Steps)}
	for i := range out.Steps {
		st := &out.Steps[i]
		if st.Rules != nil {
			st.Rules = append(Rules{}, st.Rules...)
			for r := range st.Rules {
				st.Rules[r].Limits = slices.Clone(st.Rules[r].Limits)
			}
		}
		if st.Asks != nil {
			st.Asks = slices.Clone(st.Asks)
			for a := range st.Asks {
				st.Asks[a] = slices.Clone(st.Asks[a])
			}
		}
	}
	return out
}

// attempt is s with a change if it still fails, else s.
func attempt(s *Script, fails func(*Script) bool, change func(*Script)) (*Script, bool) {
	c := s.clone()
	change(c)
	if fails(c) {
		return c, true
	}
	return s, false
}

// shrinkSteps removes steps, first many and then one at a time.
func shrinkSteps(s *Script, fails func(*Script) bool) *Script {
	for size := len(s.Steps) / 2; size > 0; size /= 2 {
		for i := len(s.Steps) - size; i >= 0; i-- {
			if i+size <= len(s.Steps) {
				s, _ = attempt(s, fails, func(c *Script) { c.Steps = slices.Delete(c.Steps, i, i+size) })
			}
		}
	}
	return s
}

// shrinkAsks removes requests and descriptors, and makes amounts plain.
func shrinkAsks(s *Script, fails func(*Script) bool) *Script {
	for i := range s.Steps {
		for a := len(s.Steps[i].Asks) - 1; a >= 0; a-- {
			if len(s.Steps[i].Asks) > 1 {
				var gone bool
				if s, gone = attempt(s, fails, func(c *Script) { c.Steps[i].Asks = slices.Delete(c.Steps[i].Asks, a, a+1) }); gone {
					continue
				}
			}
			for d := len(s.Steps[i].Asks[a]) - 1; d >= 0; d-- {
				if len(s.Steps[i].Asks[a]) > 1 {
					var gone bool
					if s, gone = attempt(s, fails, func(c *Script) {
						c.Steps[i].Asks[a] = slices.Delete(c.Steps[i].Asks[a], d, d+1)
					}); gone {
						continue
					}
				}
				s = shrinkAmount(s, fails, i, a, d)
			}
		}
	}
	return s
}

func shrinkAmount(s *Script, fails func(*Script) bool, i, a, d int) *Script {
	amount := func() int64 { return s.Steps[i].Asks[a][d].Amount }
	for _, plain := range []int64{1, 0, -1, 2, 3} {
		if n := amount(); n == plain || max(n, -n) < max(plain, -plain) ||
			plain < 0 && s.Steps[i].Asks[a][d].Action == Settle {
			break
		}
		var done bool
		if s, done = attempt(s, fails, func(c *Script) { c.Steps[i].Asks[a][d].Amount = plain }); done {
			break
		}
	}
	if s.Steps[i].Asks[a][d].Action != "" {
		s, _ = attempt(s, fails, func(c *Script) { c.Steps[i].Asks[a][d].Action = "" })
	}
	if s.Steps[i].Asks[a][d].Hold != "" && s.Steps[i].Asks[a][d].Action == "" {
		s, _ = attempt(s, fails, func(c *Script) { c.Steps[i].Asks[a][d].Hold = "" })
	}
	if s.Steps[i].Asks[a][d].Value != "1" {
		s, _ = attempt(s, fails, func(c *Script) { c.Steps[i].Asks[a][d].Value = "1" })
	}
	return s
}

// shrinkRules removes rules, limits and flags, and makes numbers small.
func shrinkRules(s *Script, fails func(*Script) bool) *Script {
	for i := range s.Steps {
		for r := len(s.Steps[i].Rules) - 1; r >= 0; r-- {
			var gone bool
			if s, gone = attempt(s, fails, func(c *Script) {
				c.Steps[i].Rules = slices.Delete(c.Steps[i].Rules, r,
					r+1)
			}); gone {
				continue
			}
			for l := len(s.Steps[i].Rules[r].Limits) - 1; l >= 0 && len(s.Steps[i].Rules[r].Limits) > 1; l-- {
				s, _ = attempt(s, fails, func(c *Script) {
					c.Steps[i].Rules[r].Limits = slices.Delete(c.Steps[i].Rules[r].Limits,
						l, l+1)
				})
			}
			if s.Steps[i].Rules[r].None {
				s, _ = attempt(s, fails, func(c *Script) { c.Steps[i].Rules[r].None = false })
			}
			if s.Steps[i].Rules[r].Percent > 0 {
				s, _ = attempt(s, fails, func(c *Script) { c.Steps[i].Rules[r].Percent = 0 })
			}
			if s.Steps[i].Rules[r].Shadow {
				s, _ = attempt(s, fails, func(c *Script) { c.Steps[i].Rules[r].Shadow = false })
			}
			for l := range s.Steps[i].Rules[r].Limits {
				s = shrinkLimit(s, fails, i, r, l)
			}
		}
	}
	return s
}

func shrinkLimit(s *Script, fails func(*Script) bool, i, r, l int) *Script {
	limit := func(c *Script) *Limit { return &c.Steps[i].Rules[r].Limits[l] }
	for _, change := range []func(*Limit){
		func(l *Limit) { l.Interval = 0 },
		func(l *Limit) { l.Release = false },
		func(l *Limit) { l.Hold = min(l.Hold, 30*time.Second) },
		func(l *Limit) { l.Counting = l.Kind == Fixed && l.Hold == 0 },
		func(l *Limit) {
			if l.Fallback != "" {
				l.Fallback = "local"
			}
		},
		func(l *Limit) { l.Burst = min(l.Burst, max(l.Max-1, 0)) },
		func(l *Limit) { l.Burst = 0 },
		func(l *Limit) {
			if l.Kind != Concurrency {
				l.Period, l.Calendar = time.Minute, Calendar{}
			}
		},
		func(l *Limit) {
			if l.Calendar.Unit != "" {
				l.Calendar.Units, l.Calendar.Zone = 1, "UTC"
			}
		},
		func(l *Limit) { l.Max = min(l.Max, 1) },
		func(l *Limit) { l.Max = min(l.Max, 2) },
		func(l *Limit) { l.Max /= 2 },
	} {
		changed := *limit(s)
		change(&changed)
		clash := !changed.sharesCounter(limit(s)) && s.Steps[i].Rules[r].any(changed.sharesCounter)
		if changed != *limit(s) && !clash && changed.check() == nil {
			s, _ = attempt(s, fails, func(c *Script) { *limit(c) = changed })
		}
	}
	return s
}

// shrinkTimes makes instants early and round.
func shrinkTimes(s *Script, fails func(*Script) bool) *Script {
	for i := range s.Steps {
		if !s.Steps[i].Clock {
			continue
		}
		for _, change := range []func(time.Duration) time.Duration{
			func(at time.Duration) time.Duration { return at % time.Hour },
			func(at time.Duration) time.Duration { return at % time.Minute },
			func(at time.Duration) time.Duration { return at.Truncate(time.Minute) },
			func(at time.Duration) time.Duration { return at.Truncate(time.Second) },
			func(at time.Duration) time.Duration { return at.Truncate(time.Millisecond) },
		} {
			if at := change(s.Steps[i].At); at != s.Steps[i].At {
				s, _ = attempt(s, fails, func(c *Script) { c.Steps[i].At = at })
			}
		}
	}
	return s
}
