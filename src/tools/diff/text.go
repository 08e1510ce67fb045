package diff

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"ratelimit/src/operator/output"
	"ratelimit/src/operator/rulechange"
	"ratelimit/src/tools/check"
)

// listed is how many rules, subjects and names of a kind text and Markdown list.
type listed struct{ rules, subjects int }

// marks begin the lines of changed rules in text.
var marks = map[string]string{
	rulechange.Added: "+", rulechange.Removed: "-", rulechange.Tightened: "<", rulechange.Loosened: ">",
	rulechange.Changed: "~", rulechange.Renamed: "=", rulechange.MovedRule: "^",
}

// Text returns the report for people.
func (r *Report) Text(most listed) string {
	var b strings.Builder
	fmt.Fprintln(&b, r.summary())
	for i := range r.Rules[:min(len(r.Rules), most.rules)] {
		r.Rules[i].writeText(&b)
	}
	if more := len(r.Rules) - most.rules; more > 0 {
		fmt.Fprintf(&b, "and %s; --format json has all\n", output.Plural(more, "more changed rule"))
	}
	for _, n := range r.names() {
		if len(n.list) > 0 {
			fmt.Fprintf(&b, "%s: %s\n", n.title, output.First(n.list, most.rules))
		}
	}
	for i := range r.NewWarnings[:min(len(r.NewWarnings), most.rules)] {
		fmt.Fprintf(&b, "new warning: %s\n", warningText(&r.NewWarnings[i]))
	}
	if r.Replay != nil {
		b.WriteByte('\n')
		r.Replay.writeText(&b, most)
	}
	return b.String()
}

// summary counts the changes: "1 rule added, 2 rules tightened; the counters of 1 rule start anew".
func (r *Report) summary() string {
	if !r.Changed {
		return "no change"
	}
	byKind, anew := make(map[string]int), 0
	for i := range r.Rules {
		byKind[r.Rules[i].Kind]++
		if r.Rules[i].startsAnew() {
			anew++
		}
	}
	var parts []string
	for _, kind := range rulechange.Kinds {
		if n := byKind[kind]; n > 0 {
			parts = append(parts, output.Plural(n, "rule")+" "+kind)
		}
	}
	text := strings.Join(parts, ", ")
	if text == "" {
		text = "no rule changed"
	}
	if anew > 0 {
		text += "; the counters of " + output.Plural(anew, "rule") + " start anew"
	}
	if n := len(r.NewWarnings); n > 0 {
		text += "; " + output.Plural(n, "new warning")
	}
	return text
}

// startsAnew reports whether the counters of a rule that was there before start anew.
func (c *RuleChange) startsAnew() bool {
	return c.Kind != rulechange.Added && (c.Counters == CountersNew || c.Counters == CountersNewRemote)
}

type namedList struct {
	title string
	list  []string
}

func (r *Report) names() []namedList {
	return []namedList{
		{"domains added", r.Domains.Added},
		{"domains removed", r.Domains.Removed},
		{"descriptors without a limit added", r.Exempt.Added},
		{"descriptors without a limit removed", r.Exempt.Removed},
	}
}

func warningText(w *check.Finding) string {
	return fmt.Sprintf("%s:%d:%d: %s; %s", w.File, w.Line, w.Column, w.Message, w.Fix)
}

func (c *RuleChange) writeText(b *strings.Builder) {
	fmt.Fprintf(b, "%s %s %s (%s)", marks[c.Kind], c.Kind, output.Printable(c.Rule),
		output.Printable(cmp.Or(c.At, c.OldAt)))
	if c.OldName != "" {
		fmt.Fprintf(b, ", before: %s", output.Printable(c.OldName))
	}
	switch c.Kind {
	case rulechange.Added:
		fmt.Fprintf(b, ": %s", c.Limit)
	case rulechange.Removed:
		fmt.Fprintf(b, ": %s", c.OldLimit)
	}
	b.WriteByte('\n')
	for _, line := range c.details() {
		fmt.Fprintf(b, "    %s\n", line)
	}
}

// details returns what the report tells about a rule besides its name and kind, one line each.
func (c *RuleChange) details() (lines []string) {
	for i := range c.Settings {
		lines = append(lines, settingText(&c.Settings[i]))
	}
	switch {
	case len(c.Instead) == 0 && c.Kind == rulechange.Added:
		lines = append(lines, "such requests met no limit before")
	case len(c.Instead) == 0 && c.Kind == rulechange.Removed:
		lines = append(lines, "such requests meet no limit now")
	}
	for _, other := range c.Instead {
		when := "before"
		if c.Kind == rulechange.Removed {
			when = "now"
		}
		lines = append(lines, fmt.Sprintf("such requests %s: %s, %s", when, output.Printable(other.Rule), other.Limit))
	}
	switch {
	case c.Counters == CountersNewRemote:
		lines = append(lines, "counters start anew in Redis and Memcached: "+c.CountersWhy)
	case c.startsAnew():
		lines = append(lines, "counters start anew: "+c.CountersWhy)
	case c.Counters == CountersKept && c.CountersWhy != "":
		lines = append(lines, "counters go on: "+c.CountersWhy)
	}
	return lines
}

// settingText returns the setting for people: "limit: 10 per minute -> 5 per minute (tighter)".
func settingText(s *rulechange.Setting) string {
	text := s.Text()
	if s.Effect != "" {
		text += " (" + s.Effect + ")"
	}
	return text
}

func (r *Replay) writeText(b *strings.Builder, most listed) {
	fmt.Fprintln(b, r.summary())
	if r.AsRecorded < r.Recorded {
		fmt.Fprintf(b, "the old rules answer %d of %d requests as recorded: the counters were not empty at the start, or "+
			"not all requests were recorded\n", r.AsRecorded, r.Recorded)
	}
	if len(r.Rules) == 0 {
		return
	}
	b.WriteByte('\n')
	for _, table := range r.tables(most) {
		fmt.Fprintln(b, strings.Join(output.Table(0, table.columns, table.rows), "\n"))
		if table.more > 0 {
			fmt.Fprintf(b, "and %d more\n", table.more)
		}
		b.WriteByte('\n')
	}
	for i := range r.Rules[:min(len(r.Rules), most.rules)] {
		for _, e := range r.Rules[i].Examples {
			fmt.Fprintf(b, "line %d: %s: %s -> %s\n", e.Line, output.Printable(e.Request), e.Old, e.New)
		}
	}
}

func (r *Replay) summary() string {
	text := fmt.Sprintf("%s replayed: %d get another answer", output.Plural(r.Requests, "request"), r.total())
	if r.total() > 0 {
		text += fmt.Sprintf(" (%d refused now, %d allowed now", r.NowOver, r.NowOK)
		if r.Errors > 0 {
			text += fmt.Sprintf(", %d with an error on one side", r.Errors)
		}
		text += ")"
	}
	return text + fmt.Sprintf("; refused before: %d, now: %d", r.OldOver, r.NewOver)
}

// replayTable is a table for people; more is how many rows are left out.
type replayTable struct {
	columns []output.Column
	rows    [][]string
	more    int
}

func (r *Replay) tables(most listed) []replayTable {
	answers := output.Numbers("NOW REFUSED", "NOW ALLOWED")
	byRule := replayTable{
		columns: slices.Concat(output.Columns("RULE"), answers, output.Numbers("SUBJECTS")),
		more:    max(0, len(r.Rules)-most.rules),
	}
	for _, d := range r.Rules[:min(len(r.Rules), most.rules)] {
		byRule.rows = append(byRule.rows,
			[]string{ruleText(d.Rule), fmt.Sprint(d.NowOver), fmt.Sprint(d.NowOK), fmt.Sprint(d.Subjects)})
	}
	bySubject := replayTable{
		columns: slices.Concat(output.Columns("SUBJECT"), answers, output.Columns("RULE")),
		more:    max(0, len(r.Subjects)-most.subjects),
	}
	for _, d := range r.Subjects[:min(len(r.Subjects), most.subjects)] {
		bySubject.rows = append(bySubject.rows,
			[]string{d.Subject, fmt.Sprint(d.NowOver), fmt.Sprint(d.NowOK), ruleText(d.Rule)})
	}
	return []replayTable{byRule, bySubject}
}

func ruleText(name string) string {
	if name == "" {
		return "(no rule)"
	}
	return name
}
