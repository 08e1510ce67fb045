//go:build linux

package siege

import (
	"bytes"
	_ "embed" // the document's template
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"text/template"
	"time"
)

const (
	documentFile = "docs/attacks.md"
	figuresFile  = "docs/attacks.csv"
)

// report is everything that was seen.
type report struct {
	Date, Commit, Go, CPU, Group string
	Cores                        int
	Took                         time.Duration

	mu      sync.Mutex // guards results
	results map[*attack]*result
}

func newReport() *report {
	r := &report{
		Date: time.Now().UTC().Format(time.DateOnly), Commit: "unknown", Go: runtime.Version(), CPU: runtime.GOARCH,
		Cores: runtime.NumCPU(),
		Group: "a control group of 256 MiB", results: make(map[*attack]*result),
	}
	commit := exec.Command("git", "rev-parse", "--short=12", "HEAD")
	commit.Dir = repository
	if out, err := commit.Output(); err == nil {
		r.Commit = strings.TrimSpace(string(out))
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if _, model, ok := strings.Cut(string(info), "model name\t: "); ok {
			r.CPU, _, _ = strings.Cut(model, "\n")
		}
	}
	return r
}

func (r *report) add(one *result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results[one.attack] = one
	if one.group != "" {
		r.Group = "no control group, since " + one.group
	}
}

const notMeasured = "not measured yet"

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
	return "held"
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

// Attacks is the table of the template.
func (r *report) Attacks() string {
	rows := [][]string{{"attack", "what is done", "verdict"}}
	for _, a := range attacks() {
		rows = append(rows, []string{a.name, a.does, r.verdict(a)})
	}
	return markdown(rows)
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

func markdown(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		cells := make([]string, len(row))
		for k, cell := range row {
			cells[k] = strings.ReplaceAll(cell, "|", `\|`)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

//go:embed attacks.md.tmpl
var documentTemplate string

func (r *report) document() ([]byte, error) {
	t, err := template.New(documentFile).Parse(documentTemplate)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, r)
	return b.Bytes(), err
}

func (r *report) write() error {
	text, err := r.document()
	if err != nil {
		return err
	}
	var figures bytes.Buffer
	if err := csv.NewWriter(&figures).WriteAll(r.figureRows()); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(repository, figuresFile), figures.Bytes(), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(repository, documentFile), text, 0o644)
}
