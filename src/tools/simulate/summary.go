package simulate

import (
	"fmt"
	"io"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
)

// Summary counts the decisions of a run.
type Summary struct {
	Lines     uint64 // all decisions and refusals
	OK, Over  uint64 // decisions by the overall code
	Refused   uint64 // requests that are invalid for the service
	Unmatched uint64 // descriptors that no rule answers, or whose rule another one of the request replaces
	// Recorded counts the lines with a recorded answer, and Differing those of them that the run answers differently.
	Recorded, Differing uint64
	FirstDiffering      int           // the number of the first such line
	Lost                uint64        // requests that the recording says it lacks
	First, Last         time.Time     // the virtual times of the first and the last line
	Elapsed             time.Duration // the real time of the run

	rules []*rules.Rule
	// countsByRule has the counts of each rule, by its index, and at the end those of the limits that came with requests.
	countsByRule []ruleCounts
}

// ruleCounts counts the hits of one rule, without dry runs and refunds.
type ruleCounts struct {
	hits     uint64
	admitted uint64 // counts the hits that the rule admitted; one that is not enforced, as in shadow mode, admits all.
	over     uint64 // counts the hits over the limit, enforced or not.
	// firstOver and lastOver are the virtual times of the hits over the limit, in the order of the lines.
	firstOver, lastOver time.Time
	keys                keyCounts
}

func newSummary(set *rules.Set) *Summary {
	return &Summary{rules: set.Rules(), countsByRule: make([]ruleCounts, len(set.Rules())+1)}
}

func (s *Summary) addLine(at time.Time) {
	if s.Lines == 0 {
		s.First = at
	}
	s.Lines++
	s.Last = at
}

func (s *Summary) addRefusal(at time.Time) {
	s.addLine(at)
	s.Refused++
}

func (s *Summary) compareAnswer(l *Line, answer string) {
	if l.Answer == "" {
		return
	}
	s.Recorded++
	if l.Answer != answer {
		if s.Differing++; s.Differing == 1 {
			s.FirstDiffering = l.Number
		}
	}
}

// addDecision counts an answer and its charges. It cuts the first prefixBytes off the keys of counters.
func (s *Summary) addDecision(at time.Time, a *limiter.Answer, prefixBytes int) {
	s.addLine(at)
	if a.Over {
		s.Over++
	} else {
		s.OK++
	}
	for i := range a.Statuses {
		st := &a.Statuses[i]
		switch {
		case st.BindingCharge != nil:
		case st.Match == nil:
			s.Unmatched++
		case len(st.Match.Limits) == 1 && st.Match.IsUnlimited() && st.Op == algorithm.Charge:
			counts := &s.countsByRule[st.Match.Limits[0].Index]
			counts.hits += st.Amount
			counts.admitted += st.Amount
		}
		for j := range st.Charges {
			if c := &st.Charges[j]; c.Op == algorithm.Charge && st.Amount > 0 {
				s.addCharge(at, c, prefixBytes)
			}
		}
	}
}

func (s *Summary) addCharge(at time.Time, c *limiter.Charge, prefixBytes int) {
	amount := c.RequestedAmount
	counts := &s.countsByRule[len(s.rules)]
	if c.Rule != nil {
		counts = &s.countsByRule[c.Rule.Index]
	}
	counts.hits += amount
	counts.keys.add(c.CounterKey[prefixBytes:], amount)
	if !c.Over {
		counts.admitted += amount
	}
	if c.Verdict.Over {
		if counts.over == 0 {
			counts.firstOver = at
		}
		counts.over += amount
		counts.lastOver = at
	}
}

// Write writes the summary for people: a table of the rules that were hit, in the order of their files, and the totals.
func (s *Summary) Write(w io.Writer) error {
	var b strings.Builder
	var rows [][]string
	var unused []string
	for i, r := range s.rules {
		counts, name := &s.countsByRule[i], r.FullName
		switch {
		case counts.hits == 0 && r.Unlimited: // Other rules may charge an unlimited rule, and do not count its hits.
		case counts.hits == 0:
			unused = append(unused, name)
		case r.ShadowMode:
			rows = append(rows, counts.row(name+" (shadow)"))
		case r.Enforcement != nil:
			rows = append(rows, counts.row(name+" (enforced for "+rules.FormatPercent(r.EnforcePercent())+"%)"))
		default:
			rows = append(rows, counts.row(name))
		}
	}
	if counts := &s.countsByRule[len(s.rules)]; counts.hits > 0 {
		rows = append(rows, counts.row("(limits of requests)"))
	}
	b.WriteString(strings.Join(output.Table(0, columns, rows), "\n") + "\n")
	if len(unused) > 0 {
		fmt.Fprintf(&b, "limits not hit: %s\n", output.First(unused, maxUnused))
	}
	fmt.Fprintf(&b, "requests: %d; OK: %d, OVER_LIMIT: %d, errors: %d; descriptors that met no rule: %d\n",
		s.Lines, s.OK, s.Over, s.Refused, s.Unmatched)
	if s.Lost > 0 {
		fmt.Fprintf(&b, "requests that the recording lacks: %d; later answers on their counters may differ\n", s.Lost)
	}
	if s.Differing > 0 {
		fmt.Fprintf(&b, "answers as recorded: %d of %d; the first other one is on line %d\n", s.Recorded-s.Differing,
			s.Recorded, s.FirstDiffering)
	} else if s.Recorded > 0 {
		fmt.Fprintf(&b, "answers as recorded: all %d\n", s.Recorded)
	}
	if s.Lines > 0 {
		fmt.Fprintf(&b, "%s to %s, %v of virtual time", instantText(s.First), instantText(s.Last), s.Last.Sub(s.First))
		if s.Elapsed > 0 {
			precision := time.Microsecond
			if s.Elapsed > time.Second {
				precision = 10 * time.Millisecond
			}
			fmt.Fprintf(&b, " in %v, %.0f requests/s", s.Elapsed.Round(precision), float64(s.Lines)/s.Elapsed.Seconds())
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// maxUnused is how many rules without hits the summary names.
const maxUnused = 10

var columns = output.Columns("rule", "hits", "admitted", "over", "first over", "last over", "busiest key")

func (c *ruleCounts) row(name string) []string {
	first, last, busiest := "-", "-", "-"
	if c.over > 0 {
		first, last = instantText(c.firstOver), instantText(c.lastOver)
	}
	if key, hits, tooHigh := c.keys.busiest(); hits > 0 {
		upTo := ""
		if tooHigh > 0 {
			upTo = "up to "
		}
		busiest = fmt.Sprintf("%s (%s%d)", output.Printable(key), upTo, hits)
	}
	return []string{name, fmt.Sprint(c.hits), fmt.Sprint(c.admitted), fmt.Sprint(c.over), first, last, busiest}
}
