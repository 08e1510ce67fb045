package propose

import (
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
)

// Report is what a recording says about limits. Its JSON is that of --json.
type Report struct {
	Source        string       `json:"recording"`
	From          time.Time    `json:"from"` // the time of the first request; zero without any
	To            time.Time    `json:"to"`
	Requests      uint64       `json:"requests"`
	Invalid       uint64       `json:"invalid_requests"`   // The service refuses them as invalid.
	Unmatched     uint64       `json:"unmatched_requests"` // No limit applies to them.
	Lost          uint64       `json:"lost_requests"`      // The recording says that it lacks them.
	RefuseAtMost  float64      `json:"refuse_at_most_percent"`
	Rules         []RuleReport `json:"rules"`            // in the order of the files
	Output        string       `json:"output,omitempty"` // the file or directory that was written
	NotWritten    []string     `json:"not_written"`      // rules whose proposal the output lacks, and why
	proposedRules int          // how many rules of the output have a new limit
}

// RuleReport is what the subjects of one rule used.
type RuleReport struct {
	Rule    string `json:"rule"`
	At      string `json:"at,omitempty"`    // file:line:column; empty with --by
	Window  string `json:"window"`          // such as "minute"
	Limit   string `json:"limit,omitempty"` // today's limit in words; empty with --by
	Hits    uint64 `json:"hits"`
	Windows uint64 `json:"windows"` // in which a subject used something
	// Subjects is how many there are. SampledOneIn is above 1 if only so many of them were followed, for want of room;
	// then Subjects and Windows are estimates.
	Subjects     uint64    `json:"subjects"`
	SampledOneIn uint64    `json:"sampled_one_in"`
	Used         Used      `json:"used_per_window"`
	Busiest      string    `json:"busiest_subject,omitempty"`
	Limits       []Refusal `json:"limits"`
	Proposed     uint64    `json:"proposed,omitempty"`        // 0 for no proposal
	WhyNone      string    `json:"why_no_proposal,omitempty"` // set if Proposed is 0

	rule    *rules.Rule
	written uint64 // the requests_per_unit of the output
}

// Used has percentiles of what a subject uses in a window, if it uses anything. They are at most 1 % too high.
type Used struct {
	P50 uint64 `json:"p50"`
	P90 uint64 `json:"p90"`
	P99 uint64 `json:"p99"`
	Max uint64 `json:"max"`
}

// Refusal is what a limit would have refused.
type Refusal struct {
	What            string  `json:"what"` // such as "p99" or "proposed"
	Limit           uint64  `json:"limit"`
	HitsPercent     float64 `json:"refused_hits_percent"`
	SubjectsPercent float64 `json:"refused_subjects_percent"` // of subjects with at least one refused hit
}

// report returns what t says about the rules of set. isNew says that the rules are not those of a file.
func (t *traffic) report(set *rules.Set, refuseAtMost float64, tryLimits []uint64, isNew bool) *Report {
	rep := &Report{
		From: t.from, To: t.to, Requests: t.lines, Invalid: t.invalid, Unmatched: t.unmatched, Lost: t.lost,
		RefuseAtMost: refuseAtMost, Rules: []RuleReport{}, NotWritten: []string{},
	}
	for _, r := range set.Rules() {
		if r.Unlimited {
			continue
		}
		out := t.usages[r.Index].report(r, refuseAtMost, tryLimits, isNew)
		out.Rule, out.Window = r.FullName, windowOf(r)
		if !isNew {
			out.At, out.Limit = r.Pos.String(), r.LimitInWords()
		}
		rep.Rules = append(rep.Rules, out)
	}
	return rep
}

// windowOf returns the window of a rule for people; empty for a limit without one.
func windowOf(r *rules.Rule) string {
	_, window, _ := strings.Cut(r.LimitText(), " per ")
	window, _, _ = strings.Cut(window, ",")
	return window
}

func (u *usage) report(r *rules.Rule, refuseAtMost float64, tryLimits []uint64, isNew bool) (out RuleReport) {
	peaks := u.finish()
	out = RuleReport{
		rule: r, written: r.RequestsPerUnit(), Hits: u.hits,
		Subjects: uint64(len(peaks)) << u.halvings, SampledOneIn: 1 << u.halvings,
		Windows: u.finished.windows(), Busiest: u.busiest, Limits: []Refusal{},
		Used: Used{u.finished.percentile(50), u.finished.percentile(90), u.finished.percentile(99), u.peak},
	}
	out.Proposed, out.WhyNone = proposal(r, peaks, refuseAtMost)
	if len(peaks) == 0 {
		return out // There is nothing that a limit could have refused.
	}
	try := func(what string, limit uint64) {
		over := len(peaks) - sort.Search(len(peaks), func(i int) bool { return peaks[i] > limit })
		out.Limits = append(out.Limits,
			Refusal{what, limit, u.finished.refusedPercent(limit), percentOf(float64(over), float64(len(peaks)))})
	}
	try("p50", out.Used.P50)
	try("p90", out.Used.P90)
	try("p99", out.Used.P99)
	for _, limit := range tryLimits {
		try("--limit", limit)
	}
	if !isNew && r.LimitsFile == nil {
		try("now", r.Limit.Max)
	}
	if out.Proposed > 0 {
		try("proposed", out.Proposed)
	}
	return out
}

// proposal returns a limit that refuses at most that percentage of the subjects, or why there is none. peaks is what
// each subject used most in a window, the smallest first.
func proposal(r *rules.Rule, peaks []uint64, refuseAtMost float64) (limit uint64, why string) {
	switch {
	case windowOf(r) == "":
		return 0, "a recording does not tell how long holds stay open"
	case r.LimitsFile != nil:
		return 0, "a data file has the limits"
	case r.Limit.Max == 0:
		return 0, "it refuses all requests"
	case len(peaks) == 0:
		return 0, "no request of the recording is charged to it"
	}
	mayRefuse := int(float64(len(peaks)) * refuseAtMost / 100)
	limit = roundUp(peaks[len(peaks)-1-mayRefuse], 100)
	if limit > algorithm.MaxCapacity {
		return 0, fmt.Sprintf("%d is more than a limit can be", limit)
	}
	if _, err := r.WithLimit(rules.NewLimit{Requests: limit}); err != nil {
		return 0, fmt.Sprintf("it cannot be %d: %v", limit, err)
	}
	return limit, ""
}

// Write writes the report for people.
func (rep *Report) Write(w io.Writer) error {
	var b strings.Builder
	rep.writeUse(&b)
	rep.writeRefusals(&b)
	rep.writeNotes(&b)
	fmt.Fprintf(&b, "requests: %d", rep.Requests)
	if rep.Requests > 0 {
		fmt.Fprintf(&b, ", %s to %s", rep.From.Format(time.RFC3339Nano), rep.To.Format(time.RFC3339Nano))
	}
	fmt.Fprintf(&b, "; invalid: %d, without a limit: %d\n", rep.Invalid, rep.Unmatched)
	if rep.Lost > 0 {
		fmt.Fprintf(&b, "requests that the recording lacks: %d; subjects used more than it shows\n", rep.Lost)
	}
	for _, text := range rep.NotWritten {
		fmt.Fprintf(&b, "not written: %s\n", output.Printable(text))
	}
	if rep.Output != "" {
		fmt.Fprintf(&b, "written: %s, with %s\n", output.Printable(rep.Output), output.Plural(rep.proposedRules, "new limit"))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (rep *Report) writeUse(b *strings.Builder) {
	var rows [][]string
	for i := range rep.Rules {
		r := &rep.Rules[i]
		if r.Hits == 0 {
			continue
		}
		row := []string{r.Rule, r.Window}
		for _, n := range []uint64{r.Hits, r.Subjects, r.Used.P50, r.Used.P90, r.Used.P99, r.Used.Max} {
			row = append(row, strconv.FormatUint(n, 10))
		}
		rows = append(rows, append(row, r.Busiest))
	}
	columns := slices.Concat(output.Columns("RULE", "PER"), output.Numbers("HITS", "SUBJECTS", "P50", "P90", "P99", "MAX"),
		output.Columns("BUSIEST"))
	b.WriteString(strings.Join(output.Table(0, columns, rows), "\n") + "\n\n")
}

func (rep *Report) writeRefusals(b *strings.Builder) {
	var rows [][]string
	for i := range rep.Rules {
		for _, l := range rep.Rules[i].Limits {
			rows = append(rows, []string{
				rep.Rules[i].Rule, l.What, strconv.FormatUint(l.Limit, 10), percentText(l.HitsPercent),
				percentText(l.SubjectsPercent),
			})
		}
	}
	if len(rows) > 0 {
		columns := slices.Concat(output.Columns("RULE", "IF IT WERE"),
			output.Numbers("LIMIT", "REFUSES HITS", "REFUSES SUBJECTS"))
		b.WriteString(strings.Join(output.Table(0, columns, rows), "\n") + "\n\n")
	}
}

// maxUnused is how many rules without requests the report for people names.
const maxUnused = 10

// writeNotes writes which rules have no proposal, and which figures are estimates.
func (rep *Report) writeNotes(b *strings.Builder) {
	var unused []string
	for i := range rep.Rules {
		r := &rep.Rules[i]
		if r.Hits == 0 {
			unused = append(unused, r.Rule)
			continue
		}
		if r.WhyNone != "" {
			fmt.Fprintf(b, "no proposal for %s: %s\n", output.Printable(r.Rule), output.Printable(r.WhyNone))
		}
		if r.burstStays() {
			fmt.Fprintf(b, "%s: %d pass at once as before, so it can refuse more\n", output.Printable(r.Rule),
				r.rule.Limit.Capacity())
		}
		if r.SampledOneIn > 1 {
			fmt.Fprintf(b, "%s: for want of room 1 of %d subjects was followed, so its figures are estimates\n",
				output.Printable(r.Rule), r.SampledOneIn)
		}
	}
	if len(unused) > 0 {
		fmt.Fprintf(b, "limits without requests, and so without a proposal: %s\n", output.First(unused, maxUnused))
	}
}

// burstStays reports whether the rule has a burst of its own, which the proposal leaves as it is.
func (r *RuleReport) burstStays() bool {
	return r.Proposed > 0 && r.rule.Limit.Capacity() != r.rule.Limit.Max
}

// percentText returns a percentage with at most three digits behind the point.
func percentText(percent float64) string {
	if percent > 0 && percent < 0.001 {
		return "<0.001%"
	}
	return strconv.FormatFloat(math.Round(percent*1000)/1000, 'f', -1, 64) + "%"
}
