package simulate

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Summary is what came of a run.
type Summary struct {
	// Lines were decided, or refused with an error.
	Lines uint64
	// OK and Over are requests by their overall code, Failed those that were
	// refused with an error.
	OK, Over, Failed uint64
	// Unmatched are descriptors without a rule, and those whose rule is replaced by another
	// rule of the request.
	Unmatched uint64
	// From and To are the instants of the first and the last line.
	From, To time.Time
	Took     time.Duration

	rules   []*rules.Rule
	figures []figures // of rules, by index, and of limits that came with requests
}

// figures counts the decisions of one rule. Its hits are without dry runs and refunds.
type figures struct {
	hits     uint64
	admitted uint64 // by this rule, in shadow mode all
	over     uint64 // in shadow mode, too
	// When hits were over, by the order of the lines.
	firstOver, lastOver time.Time
	busiest             busiest
}

func newSummary(set *rules.Set) *Summary {
	return &Summary{rules: set.Rules(), figures: make([]figures, len(set.Rules())+1)}
}

func (s *Summary) line(at time.Time) {
	if s.Lines == 0 {
		s.From = at
	}
	s.Lines++
	s.To = at
}

func (s *Summary) failed(at time.Time) {
	s.line(at)
	s.Failed++
}

func (s *Summary) decided(at time.Time, a *limiter.Answer, prefix int) {
	s.line(at)
	if a.Over {
		s.Over++
	} else {
		s.OK++
	}
	for i := range a.Statuses {
		st := &a.Statuses[i]
		switch {
		case st.Binding != nil:
		case st.Rule == nil:
			s.Unmatched++
		case st.Rule.Unlimited && st.Rule.Charges == nil && st.Op == algorithm.Charge:
			f := &s.figures[st.Rule.Index]
			f.hits += st.Amount
			f.admitted += st.Amount
		}
		if st.Op == algorithm.Charge && st.Amount > 0 {
			for j := range st.Charges {
				s.charge(at, &st.Charges[j], prefix)
			}
		}
	}
}

func (s *Summary) charge(at time.Time, c *limiter.Charge, prefix int) {
	amount := c.Asked
	f := &s.figures[len(s.rules)]
	if c.Rule != nil {
		f = &s.figures[c.Rule.Index]
	}
	f.hits += amount
	f.busiest.add(c.Key[prefix:], amount)
	if !c.Over {
		f.admitted += amount
	}
	if c.Verdict.Over {
		if f.over == 0 {
			f.firstOver = at
		}
		f.over += amount
		f.lastOver = at
	}
}

// Write writes the summary for people: a table of the rules that were hit, in the order
// of their files, and the totals.
func (s *Summary) Write(w io.Writer) error {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "rule\thits\tadmitted\tover\tfirst over\tlast over\tbusiest key")
	var unused []string
	for i := range s.figures {
		f := &s.figures[i]
		switch {
		case i == len(s.rules) && f.hits == 0:
		case i == len(s.rules):
			f.write(table, "(limits of requests)")
		case f.hits == 0 && s.rules[i].Unlimited: // or charged above, where it leaves no trace
		case f.hits == 0:
			unused = append(unused, printable(s.rules[i].Key))
		case s.rules[i].Shadow:
			f.write(table, printable(s.rules[i].Key)+" (shadow)")
		default:
			f.write(table, printable(s.rules[i].Key))
		}
	}
	_ = table.Flush() // a strings.Builder takes everything
	if len(unused) > 0 {
		fmt.Fprintf(&b, "limits not hit: %s\n", list(unused))
	}
	fmt.Fprintf(&b, "requests: %d; OK: %d, OVER_LIMIT: %d, errors: %d; descriptors that met no rule: %d\n",
		s.Lines, s.OK, s.Over, s.Failed, s.Unmatched)
	if s.Lines > 0 {
		fmt.Fprintf(&b, "%s to %s, %v of virtual time", shown(s.From), shown(s.To), s.To.Sub(s.From))
		if s.Took > 0 {
			digits := time.Microsecond
			if s.Took > time.Second {
				digits = 10 * time.Millisecond
			}
			fmt.Fprintf(&b, " in %v, %.0f requests/s", s.Took.Round(digits), float64(s.Lines)/s.Took.Seconds())
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (f *figures) write(w io.Writer, name string) {
	first, last, key := "-", "-", "-"
	if f.over > 0 {
		first, last = shown(f.firstOver), shown(f.lastOver)
	}
	if text, hits, exact := f.busiest.most(); hits > 0 {
		about := ""
		if !exact {
			about = "up to "
		}
		key = fmt.Sprintf("%s (%s%d)", printable(text), about, hits)
	}
	fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%s\t%s\t%s\n", name, f.hits, f.admitted, f.over, first, last, key)
}

// list names the first few.
func list(names []string) string {
	const most = 10
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// printable returns text, in quotes if it would move the cursor or the columns.
func printable(text string) string {
	for _, r := range text {
		if !strconv.IsPrint(r) {
			return strconv.QuoteToGraphic(text)
		}
	}
	return text
}
