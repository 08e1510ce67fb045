package top

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/operator"
	"ratelimit/src/operator/output"
)

// stateText describes the process, its store and its rules.
func (s *snapshot) stateText() string {
	st := &s.State
	parts := []string{readiness(st.Ready), st.Store}
	if !st.StoreSince.IsZero() {
		parts[1] += " (" + s.storeState() + " for " + ageText(st.Now.Sub(st.StoreSince)) + ")"
	}
	rules := fmt.Sprintf("%s in %s", output.Plural(st.Rules.Rules, "rule"), output.Plural(st.Rules.Domains, "domain"))
	if !st.Rules.LoadedAt.IsZero() {
		rules += ", loaded " + ageText(st.Now.Sub(st.Rules.LoadedAt)) + " ago"
	}
	parts = append(parts, rules)
	if st.Replicas > 0 {
		parts = append(parts, output.Plural(st.Replicas, "replica"))
	}
	parts = append(parts, "up "+ageText(st.Now.Sub(st.StartedAt)), "version "+st.Version)
	return strings.Join(parts, "; ")
}

func readiness(ready bool) string {
	if ready {
		return "ready"
	}
	return "NOT READY"
}

// storeState says whether all servers of the store answer, as far as the components of the state tell.
func (s *snapshot) storeState() string {
	state := "answering"
	if len(s.State.Outages) > 0 {
		return "not answering"
	}
	for _, c := range s.State.Components {
		switch {
		case !s.isStore(c):
		case c.NotReadyReason != "":
			return "not answering"
		case c.Note != "":
			state = "in this state"
		}
	}
	return state
}

// isStore reports whether c is a store. The names of two Redis begin with that of the store; memcached's is shorter.
func (s *snapshot) isStore(c operator.Component) bool {
	return strings.HasPrefix(c.Name, s.State.Store) || strings.HasPrefix(s.State.Store, c.Name)
}

// quotaLines describes the quotas in one line, or in none if no proxy has any.
func (s *snapshot) quotaLines() []string {
	if q := s.State.Quotas; q != nil {
		return []string{"quotas: " + operator.QuotaTotalsText(q)}
	}
	return nil
}

// outageLines says in one line that the store does not answer, and what requests get; in none while it answers.
func (s *snapshot) outageLines() []string {
	text, label := s.State.OutageText(&s.Rates.Requests), "DEGRADED: "
	switch {
	case text == "":
		return nil
	case s.State.IsOutageBad(&s.Rates.Requests):
		label = "OUTAGE: "
	}
	return []string{output.Printable(label + text)}
}

// maxWrapped is how many lines of a narrow terminal a problem takes at most.
const maxWrapped = 3

// wrapAll wraps lines for a terminal of that width; 0: no bound.
func wrapAll(lines []string, cells int) (wrapped []string) {
	for _, line := range lines {
		wrapped = append(wrapped, output.Wrap(line, cells, maxWrapped)...)
	}
	return wrapped
}

// requestsLine has the rates of requests, which those of the tables are not.
func (s *snapshot) requestsLine() string {
	r := &s.Rates.Requests
	return fmt.Sprintf("%s requests/s: %s admitted, %s denied, %s failed; the tables count decisions, one for each limit of "+
		"a request", rate(r.Total()), rate(r.Admitted), rate(r.Denied), rate(r.Failed))
}

// problemLines says why the service is not ready, its warnings, what is wrong with its store unless that is an outage,
// and what the last reload refused.
func (s *snapshot) problemLines() (lines []string) {
	for _, c := range s.State.Components {
		switch {
		case c.NotReadyReason != "":
			lines = append(lines, output.Printable(fmt.Sprintf("%s: %s", c.Name, c.NotReadyReason)))
		case c.IsWarning, c.Note != "" && len(s.State.Outages) == 0 && (c.Name == "counting" || s.isStore(c)):
			lines = append(lines, output.Printable(fmt.Sprintf("%s: %s", c.Name, c.Note)))
		}
	}
	const most = 3
	problems := s.State.Rules.Problems
	for _, p := range problems[:min(len(problems), most)] {
		lines = append(lines, output.Printable("last load of rules refused: "+p))
	}
	if n := len(problems) - most; n > 0 {
		lines = append(lines, "and "+output.Plural(n, "more problem"))
	}
	return lines
}

var rateColumns = output.Numbers("ADMITTED/s", "DENIED/s", "NEAR/s", "SHADOW/s", "FALLBACK/s", "FAILED/s")

func rateCells(name string, r operator.PerSecond, more ...string) []string {
	return append([]string{
		name, rate(r.Admitted), rate(r.Denied), rate(r.Near), rate(r.Shadow), rate(r.Fallback),
		rate(r.Failed),
	}, more...)
}

// domainLines returns the table of the domains and of all together. cells is the width of the terminal; 0: no bound.
func (s *snapshot) domainLines(cells int) []string {
	total := s.Rates.Total
	rows := [][]string{rateCells("(all)", total, rate(total.Unmatched))}
	for _, d := range s.Rates.Domains {
		rows = append(rows, rateCells(d.Domain, d.PerSecond, rate(d.Unmatched)))
	}
	return output.Table(cells, slices.Concat(output.Columns("DOMAIN"), rateColumns, output.Numbers("UNMATCHED/s")), rows)
}

// unmatchedLines returns the table of traffic that no rule applies to, or nothing if there is none.
func (s *snapshot) unmatchedLines(cells int) []string {
	if len(s.Rates.Unmatched) == 0 {
		return nil
	}
	var rows [][]string
	for _, x := range s.Rates.Unmatched {
		rows = append(rows, []string{x.Descriptor, strconv.FormatUint(x.Descriptors, 10), x.Domain, x.Reason()})
	}
	return output.Table(cells, slices.Concat(output.Columns("UNMATCHED, LAST HOUR"), output.Numbers("DESCRIPTORS"),
		output.Columns("DOMAIN", "WHY")), rows)
}

func (s *snapshot) ruleLines(cells int) []string {
	rows := make([][]string, 0, len(s.Rates.Rules))
	for _, r := range s.Rates.Rules {
		limit := r.Limit
		if r.Holds != nil {
			limit += " (" + r.Holds.String() + ")"
		}
		if text := r.LeasesText(); text != "" {
			limit += " (" + text + ")"
		}
		rows = append(rows, rateCells(r.Rule, r.PerSecond, limit))
	}
	columns, rows := s.withShares(slices.Concat(output.Columns("RULE"), rateColumns, output.Columns("LIMIT")), rows,
		func(row int) []float64 { return s.Rates.Rules[row].Shares })
	return output.Table(cells, columns, rows)
}

func (s *snapshot) subjectLines(cells int, title string, list []operator.Subject) []string {
	rows := make([][]string, 0, len(list))
	for _, s := range list {
		rows = append(rows, []string{s.Subject, rate(s.PerSecond), strconv.FormatUint(s.Hits, 10), s.Rule})
	}
	columns, rows := s.withShares(slices.Concat(output.Columns(title+", LAST "+strings.ToUpper(s.Window)),
		output.Numbers("PER SECOND", "HITS"), output.Columns("RULE")), rows,
		func(row int) []float64 { return list[row].Shares })
	return output.Table(cells, columns, rows)
}

// tables returns the tables of s, with "(none)" in empty ones; unmatched may have no line. cells is the width of the
// terminal; 0: no bound.
func (s *snapshot) tables(cells int) (domains, unmatched, rules, denied, hot []string) {
	titled := func(lines []string) []string {
		if len(lines) == 1 {
			lines = append(lines, "(none)")
		}
		return lines
	}
	return s.domainLines(cells), s.unmatchedLines(cells), titled(s.ruleLines(cells)),
		titled(s.subjectLines(cells, "MOST DENIED", s.Denied)),
		titled(s.subjectLines(cells, "HOTTEST", s.Hot))
}

// head returns the lines above the tables. cells is the width of the terminal; 0: no bound.
func (s *snapshot) head(cells int) []string {
	if s.Replicas != nil {
		return append(s.replicaLines(cells), s.requestsLine())
	}
	first := output.Printable(s.Address + ": " + s.stateText())
	outage, problems := wrapAll(s.outageLines(), cells), wrapAll(s.problemLines(), cells)
	return slices.Concat([]string{first}, outage, s.quotaLines(), problems, []string{s.requestsLine()})
}

// join returns the head and the tables, with empty lines between them. listed is how many rules the tables have, and
// advice how to see more.
func (s *snapshot) join(head []string, listed int, advice string, tables ...[]string) (lines []string) {
	lines = head
	for _, table := range tables {
		if len(table) > 0 {
			lines = append(append(lines, ""), table...)
		}
	}
	if more := s.Rates.MatchingRules - listed; more > 0 {
		lines = append(lines, "", output.Plural(more, "more rule")+"; "+advice+", --domain those of one domain")
	}
	return lines
}

// text returns s as --once prints it. cells is the width of the terminal, 0 for no bound.
func (s *snapshot) text(cells int) string {
	domains, unmatched, rules, denied, hot := s.tables(cells)
	lines := s.join(s.head(cells), len(s.Rates.Rules), "--limit lists more rules", domains, unmatched, rules, denied, hot)
	return strings.Join(lines, "\n") + "\n"
}

// screen returns the lines of a screen. The rules get what the other tables leave, and at least three rows. age is that
// of s, and problem why there is no newer snapshot, or nil.
func (s *snapshot) screen(width, height int, age time.Duration, problem error) []string {
	head := s.head(width)
	if problem != nil {
		if s.Replicas != nil {
			head = slices.Insert(head, 0, "no replica answers")
		}
		head[0] = "as of " + ageText(age) + " ago: " + head[0]
		head = slices.Insert(head, 1, strings.Split(problem.Error(), "\n")...)
	}
	domains, unmatched, rules, denied, hot := s.tables(width)
	first := func(lines []string, most int) []string { return lines[:min(len(lines), most)] }
	domains, unmatched = first(domains, 3+height/10), first(unmatched, 2+height/8)
	denied, hot = first(denied, 2+height/8), first(hot, 2+height/8)
	room := leaveRoom(height-len(head), min(len(rules), leastRuleLines), &domains, &unmatched, &denied, &hot)
	rules = first(rules, max(1, room))
	lines := s.join(head, min(len(s.Rates.Rules), len(rules)-1), "a taller terminal shows more", domains, unmatched, rules,
		denied, hot)
	return lines[:min(len(lines), height)]
}

// leastRuleLines is how many lines of the table of rules, titles included, go before further lines of other tables.
const leastRuleLines = 4

// leaveRoom shortens tables, the longest first, and then leaves out the last ones, until rules have least lines in a
// screen of that height. It returns how many lines the rules have.
func leaveRoom(height, least int, tables ...*[]string) (room int) {
	const moreLines, titleAndRow = 2, 2
	for {
		room = height - moreLines - 1 // An empty line is above each table.
		longest, last := tables[0], tables[0]
		for _, t := range tables {
			if len(*t) == 0 {
				continue
			}
			room, last = room-len(*t)-1, t
			if len(*t) > len(*longest) {
				longest = t
			}
		}
		switch {
		case room >= least:
			return room
		case len(*longest) > titleAndRow:
			*longest = (*longest)[:len(*longest)-1]
		case last != tables[0]: // The totals stay.
			*last = nil
		default:
			return room
		}
	}
}

// rate returns decisions per second in a few characters: "0", "<0.1", "3.2", "1204", "1.2M".
func rate(r float64) string {
	switch {
	case !(r > 0): // also NaN
		return "0"
	case r < 0.05:
		return "<0.1"
	case r < 9.95:
		return strconv.FormatFloat(r, 'f', 1, 64)
	case r < 1e6:
		return strconv.FormatFloat(r, 'f', 0, 64)
	}
	return strconv.FormatFloat(r/1e6, 'f', 1, 64) + "M"
}

// ageText returns a time in its largest unit, rounded down: "59s", "5m", "26h", "3d".
func ageText(d time.Duration) string {
	switch {
	case d < 0:
		return "0s"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}
