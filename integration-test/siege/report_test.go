//go:build linux

package siege

import (
	_ "embed" // the document's template
	"fmt"
	"strings"
	"sync"
	"time"

	"ratelimit/testbed/measured"
)

const (
	documentName = "docs/attacks"
	documentFile = documentName + ".md"
	figuresFile  = documentName + ".csv"
)

// report is everything that was seen.
type report struct {
	measured.Machine
	Group string
	Took  time.Duration

	mu      sync.Mutex // guards results
	results map[*attack]*result
}

func newReport() *report {
	return &report{
		Machine: measured.ThisMachine(repository), Group: "a control group of 256 MiB", results: make(map[*attack]*result),
	}
}

func (r *report) add(one *result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results[one.attack] = one
	if one.group != "" {
		r.Group = "no control group, since " + one.group
	}
}

const (
	notMeasured = "not measured yet"
	held        = "held"
	verdictMark = ". Verdict: " // between what is done and a verdict other than held
)

// verdict is one cell of the document; figuresFile has the notes.
func (r *report) verdict(a *attack) string {
	one := r.results[a]
	switch {
	case one == nil:
		return notMeasured
	case one.unmeasured != "":
		return "not measured: " + one.unmeasured
	case len(one.wrong()) > 0:
		return "**did not hold**: " + strings.Join(one.wrong(), "; ")
	}
	return held
}

var figureTitles = []string{
	"neighbour's calls", "failed", "p99 before", "p99 during", "p99 after", "peak MiB",
	"goroutines before", "goroutines during", "goroutines after", "files before", "files during", "files after",
}

// figures returns one value per title in figureTitles.
func (r *result) figures() []string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f ms", d.Seconds()*1000) }
	row := []string{
		fmt.Sprint(r.during.calls), fmt.Sprint(r.during.failed), ms(r.calm.p99), ms(r.during.p99), ms(r.after.p99),
		fmt.Sprint(max(r.peak, r.vitals[1].Memory) >> 20),
	}
	for _, v := range r.vitals {
		row = append(row, fmt.Sprint(v.Goroutines))
	}
	for _, v := range r.vitals {
		row = append(row, fmt.Sprint(v.Files))
	}
	return row
}

// summary is a line for a terminal.
func (r *result) summary() string {
	var parts []string
	for i, figure := range r.figures() {
		parts = append(parts, figureTitles[i]+" "+figure)
	}
	parts = append(parts, r.notes...)
	return strings.Join(append(parts, fmt.Sprintf("took %.1f s", r.took.Seconds())), "; ")
}

// Attacks is the table of the template. The verdict follows what is done, unless the attack held.
func (r *report) Attacks() string {
	rows := [][]string{{"attack", "what is done"}}
	for _, a := range attacks() {
		does := a.does
		if verdict := r.verdict(a); verdict != held {
			does += verdictMark + verdict
		}
		rows = append(rows, []string{a.name, does})
	}
	return measured.Markdown(rows)
}

// figureRows are the lines of figuresFile.
func (r *report) figureRows() [][]string {
	rows := [][]string{append(append([]string{"attack"}, figureTitles...), "notes")}
	for _, a := range attacks() {
		if one := r.results[a]; one != nil && one.unmeasured == "" {
			rows = append(rows, append(append([]string{a.name}, one.figures()...), strings.Join(one.notes, "; ")))
		}
	}
	return rows
}

func (r *report) Minutes() string { return fmt.Sprintf("%.1f", r.Took.Minutes()) }
func (r *report) Measured() bool  { return len(r.results) > 0 }
func (r *report) Rate() int       { return neighbourRate }
func (r *report) Slower() int     { return inFull.slower }
func (r *report) Floor() string   { return inFull.floor.String() }

// text is for a terminal.
func (r *report) text() string {
	var b strings.Builder
	for _, a := range attacks() {
		fmt.Fprintf(&b, "%s  %-44s %s\n", a.letter, a.name, r.verdict(a))
		if one := r.results[a]; one != nil {
			fmt.Fprintf(&b, "     %s\n", one.summary())
		}
	}
	return b.String()
}

//go:embed attacks.md.tmpl
var documentTemplate string

func (r *report) write() error {
	return measured.WriteFiles(repository, documentName, documentTemplate, r, r.figureRows())
}
