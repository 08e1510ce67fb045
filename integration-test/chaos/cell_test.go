package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// cell is a fault on a store, and what was seen.
type cell struct {
	fault      *fault
	store      storeName
	with       times
	unmeasured string // why there is nothing to see on this machine
	disturbed  bool   // calls failed before the fault
	broken     bool   // too much was admitted, or refused without a reason, which no busy machine explains
	problems   []string
	virtual    *fullness // for faults of the clock, which have no phases

	at struct{ begin, fault, recovery, end time.Time }

	calls, shed  int
	during       tally         // what became of calls while the fault lasted
	late         int           // in all
	longest      time.Duration // call
	p99          [2]time.Duration
	vitals       [3]vitals // before, the highest, after
	first, again time.Duration
	fullest      fullness // in the fullest stretch of all keys
	admitted     int      // in all, but for holds
	ideally      int      // by a store that does not fail
	refusals     int      // of holds, each of which must have a reason
}

// tally is how many calls ended in which way.
type tally struct {
	all, byStore, locally int
	of                    [outcomes]int
}

func count(calls []call) (n tally) {
	for _, c := range calls {
		n.all++
		n.of[c.what]++
		if c.normal() {
			n.byStore++
		}
		if c.locally {
			n.locally++
		}
	}
	return n
}

// What is held against a trial. The machine may be busy with other things, so
// these are what no fault of the machine brings about; the figures are in the
// report.
const (
	mostGoroutines = 2 * inFlight // one waits for each call, and one for each of its store's
	mostFiles      = 40
	mostMemory     = 96 << 20
	mostLate       = 0.05 // of all calls
	mostRecovery   = 10 * time.Second
	mostSlower     = 10 // times, and the store's timeout more: calls at the 99th percentile
)

// settling is how long after the recovery calls may still fail because of the fault, for
// example on a connection that has not been used since.
const settling = 500 * time.Millisecond

// about reports whether v is about the same as before. Some figures vary, such as the
// number of connections to the debug port.
func (v vitals) about(before vitals) bool {
	return v.Goroutines <= before.Goroutines+30 && v.Files <= before.Files+12 && v.Memory <= before.Memory+mostMemory/2
}

func (c *cell) complain(format string, args ...any) {
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// check computes the figures of the calls and adds a complaint for each broken promise.
func (c *cell) check(l *load) {
	var (
		all    = l.between(time.Time{}, c.at.end.Add(time.Hour))
		before = l.between(c.at.begin, c.at.fault)
		during = l.between(c.at.fault, c.at.recovery)
		after  = l.between(c.at.recovery, c.at.end.Add(-c.with.deadline))
	)
	c.calls, c.shed, c.during = len(all), l.shed, count(during)
	for _, k := range all {
		c.longest = max(c.longest, k.took)
		if k.what == unheard {
			c.complain("a call was answered with %s", k.complaint)
			break
		}
	}
	n := count(all)
	c.late = n.of[late]
	if float64(c.late) > mostLate*float64(c.calls)+1 {
		c.complain("%d of %d calls were not answered within %v", c.late, c.calls, c.with.deadline)
	}
	c.recovery(after)
	c.p99 = [2]time.Duration{percentile(before), percentile(slices.DeleteFunc(slices.Clone(after), func(k call) bool {
		return k.sent.Before(c.at.recovery.Add(c.again + settling))
	}))}
	if most := mostSlower*c.p99[0] + c.with.timeout; c.p99[1] > most {
		c.complain("afterwards calls take longer than before: the 99th percentile was %v and is %v", c.p99[0], c.p99[1])
	}
	switch d := c.during; {
	case c.fault.effect == unfelt && d.byStore*4 < d.all*3:
		c.complain("while it lasted the store decided %d of %d calls, want nearly all", d.byStore, d.all)
	case c.fault.effect == felt && d.byStore == d.all:
		c.complain("all %d calls went well while it lasted: this is no fault", d.all)
	case c.store == cluster && c.fault.effect == felt && !c.fault.everywhere && d.byStore*3 < d.all:
		c.complain("with one of three primaries in trouble, the store decided %d of %d calls", d.byStore, d.all)
	}
	c.bodily()
	c.judge(l, all)
}

// recovery finds when the store decided a call again, and from when on it nearly
// always did.
func (c *cell) recovery(after []call) {
	slices.SortFunc(after, func(a, b call) int { return a.sent.Compare(b.sent) })
	c.first, c.again = -1, -1
	bad := 0
	for n := range after { // from the last to the first
		k := after[len(after)-1-n]
		if !k.normal() {
			bad++
		}
		if nearlyAll(bad, n+1) && k.normal() {
			c.again = k.sent.Sub(c.at.recovery)
		}
	}
	for _, k := range after {
		if k.normal() {
			c.first = k.answered().Sub(c.at.recovery)
			break
		}
	}
	if c.again < 0 {
		c.complain("%v after the end of the fault it had not recovered", c.at.end.Sub(c.at.recovery).Round(time.Millisecond))
	} else if c.again > mostRecovery {
		c.complain("it recovered %v after the end of the fault", c.again)
	}
}

// bodily holds the vitals to their bounds.
func (c *cell) bodily() {
	before, highest, after := c.vitals[0], c.vitals[1], c.vitals[2]
	if more := highest.Goroutines - before.Goroutines; more > mostGoroutines {
		c.complain("%d goroutines more than before", more)
	}
	if more := highest.Files - before.Files; more > mostFiles {
		c.complain("%d files and sockets more than before", more)
	}
	if more := highest.Memory - before.Memory; more > mostMemory {
		c.complain("%d bytes more than before", more)
	}
	if !after.about(before) {
		c.complain("after it are %+v, before it were %+v", after, before)
	}
}

// allowance is how often a limit may be used up in a trial: see
// docs/reliability.md.
func (f *fault) allowance(r rule) allowance {
	a := 1 + f.lost
	if r.local {
		a += 1 + f.restarts
	}
	return allowance(a)
}

// judge puts what was admitted before the oracle.
func (c *cell) judge(l *load, all []call) {
	calls := make([][]call, len(l.keys))
	for _, k := range all {
		calls[k.key] = append(calls[k.key], k)
	}
	for i, k := range l.keys {
		var f fullness
		if a := c.fault.allowance(k.rule); k.rule.kind.isHeld() {
			f = c.judgeHolds(k, a, calls[i])
		} else {
			f = c.judgeHits(k, a, calls[i])
		}
		if f.exceeded() {
			c.broken = true
			c.complain("%s, %s: %d were admitted where %d may be", k.rule.name, k.value, f.admitted, f.most)
		}
		if i == 0 || f.fuller(c.fullest) {
			c.fullest = f
		}
	}
}

func (c *cell) judgeHits(k key, a allowance, calls []call) fullness {
	var admitted []span
	var sent []time.Time
	for _, each := range calls {
		sent = append(sent, each.sent)
		if each.what == passed {
			admitted = append(admitted, span{each.sent, each.answered()})
		}
	}
	c.admitted += len(admitted)
	c.ideally += ideal(k.rule.kind, sent)
	return fullest(k.rule.kind, a, admitted)
}

func (c *cell) judgeHolds(k key, a allowance, calls []call) fullness {
	holds := holdsOf(calls)
	complaint, refusals := wronglyRefused(k.rule.kind, holds,
		circumstances{recovery: c.at.recovery, lossy: c.fault.lost > 0 || c.fault.restarts > 0})
	if complaint != "" {
		c.broken = true
		c.complain("%s, %s: %s", k.rule.name, k.value, complaint)
	}
	c.refusals += refusals
	f, text := fullestHeld(k.rule.kind, a, holds)
	if f.exceeded() {
		c.complain("%s, %s has these calls:%s", k.rule.name, k.value, text)
	}
	return f
}

func percentile(calls []call) time.Duration {
	if len(calls) == 0 {
		return 0
	}
	took := make([]time.Duration, len(calls))
	for i, k := range calls {
		took[i] = k.took
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

func (c *cell) String() string {
	var b strings.Builder
	for i, title := range figureTitles {
		fmt.Fprintf(&b, "%s: %s; ", title, c.figures()[i])
	}
	return strings.TrimSuffix(b.String(), "; ")
}
