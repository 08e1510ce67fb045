package main

import (
	"bytes"
	_ "embed" // the document's template
	"fmt"
	"io"
	"slices"
	"strings"
	"text/template"
	"unicode/utf8"

	"ratelimit/src/tools/bench"
)

// report is everything that was measured, and of what.
type report struct {
	machine
	Command     string        `json:"command"`
	Redis       string        `json:"redis,omitempty"` // its version
	Rounds      int           `json:"rounds"`
	Duration    float64       `json:"duration_seconds"` // of one measurement
	Warmup      float64       `json:"warmup_seconds"`
	GOGC        int           `json:"gogc"`
	NullWorkers uint32        `json:"null_workers"`
	Connections int           `json:"connections"`
	Keys        int           `json:"keys"`
	Interrupted bool          `json:"interrupted"`
	Cases       []*caseReport `json:"cases"`
}

// caseReport is a case and its rounds. What sums them up leaves out rounds in
// which something went wrong, and is nil without any others.
type caseReport struct {
	testCase
	CPU    *spread `json:"cpu_ratio,omitempty"` // ours to the empty server's
	P50    *spread `json:"p50_ratio,omitempty"`
	P99    *spread `json:"p99_ratio,omitempty"`
	Costs  *costs  `json:"cpu_us,omitempty"`
	Rounds []pair  `json:"rounds"`
}

// costs are medians of CPU µs of a call.
type costs struct {
	Ours  float64 `json:"ours"` // Redis included
	Redis float64 `json:"redis"`
	Empty float64 `json:"empty"`
}

func newReport(opt *options, m machine, picked []testCase) *report {
	r := &report{
		machine: m, Command: opt.command(),
		Rounds: opt.rounds, Duration: opt.duration.Seconds(), Warmup: opt.warmup.Seconds(),
		GOGC: opt.gogc, NullWorkers: opt.nullWorkers, Connections: connections, Keys: keys,
	}
	for _, c := range picked {
		r.Cases = append(r.Cases, &caseReport{testCase: c})
	}
	return r
}

// add takes one more round in.
func (c *caseReport) add(p pair) {
	c.Rounds = append(c.Rounds, p)
	var good []pair
	for _, p := range c.Rounds {
		if p.Problem == "" {
			good = append(good, p)
		}
	}
	if len(good) == 0 {
		return
	}
	over := func(value func(pair) float64) *spread {
		var values []float64
		for _, p := range good {
			values = append(values, value(p))
		}
		s := spreadOf(values)
		return &s
	}
	ratio := func(value func(*bench.Result) float64) *spread {
		return over(func(p pair) float64 { return value(p.Ours) / value(p.Empty) })
	}
	c.CPU = ratio(cpu)
	c.P50 = ratio(func(r *bench.Result) float64 { return float64(r.Latency.P50) })
	c.P99 = ratio(func(r *bench.Result) float64 { return float64(r.Latency.P99) })
	c.Costs = &costs{
		Ours:  over(func(p pair) float64 { return cpu(p.Ours) }).Median,
		Redis: over(func(p pair) float64 { return p.Ours.CPU[redisName].PerRequest }).Median,
		Empty: over(func(p pair) float64 { return cpu(p.Empty) }).Median,
	}
}

// problem is what went wrong, or nothing.
func (c *caseReport) problem() string {
	var list []string
	for _, p := range c.Rounds {
		if p.Problem != "" {
			list = append(list, fmt.Sprintf("round %d: %s", p.Round, p.Problem))
		}
	}
	switch len(list) {
	case 0:
		return ""
	case 1:
		return list[0]
	}
	return fmt.Sprintf("%s (and in %d more)", list[0], len(list)-1)
}

func (r *report) wentWrong() bool {
	return slices.ContainsFunc(r.Cases, func(c *caseReport) bool { return c.problem() != "" })
}

var head = []string{"case", "in flight", "CPU ratio", "lowest – highest", "target", "ours", "of it Redis", "empty", "p50 ratio", "p99 ratio"}

// cells are the row below head.
func (c *caseReport) cells() []string {
	row := []string{c.Name, c.load()}
	if c.CPU == nil {
		return append(row, "–", "–", c.target(), "–", "–", "–", "–", "–")
	}
	redis := ""
	if c.Store != inMemory {
		redis = fmt.Sprintf("%.1f µs", c.Costs.Redis)
	}
	return append(row,
		fmt.Sprintf("%.2f", c.CPU.Median),
		fmt.Sprintf("%.2f – %.2f", c.CPU.Lowest, c.CPU.Highest),
		c.target(),
		fmt.Sprintf("%.1f µs", c.Costs.Ours), redis, fmt.Sprintf("%.1f µs", c.Costs.Empty),
		fmt.Sprintf("%.2f", c.P50.Median), fmt.Sprintf("%.2f", c.P99.Median))
}

func (c *caseReport) target() string {
	switch {
	case c.Target == 0:
		return ""
	case c.CPU == nil:
		return fmt.Sprintf("≤ %.2f", c.Target)
	case shown(c.CPU.Median) <= c.Target:
		return fmt.Sprintf("≤ %.2f, met", c.Target)
	}
	return fmt.Sprintf("≤ %.2f, missed", c.Target)
}

// writeTable writes the table for people. What went wrong stands at the end of
// its row.
func (r *report) writeTable(w io.Writer) error {
	rows := [][]string{head}
	for _, c := range r.Cases {
		rows = append(rows, c.cells())
	}
	widths := make([]int, len(head))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for n, row := range rows {
		fmt.Fprintf(&b, "%-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			fmt.Fprintf(&b, "  %*s", widths[i+1], cell)
		}
		if n > 0 {
			if problem := r.Cases[n-1].problem(); problem != "" {
				b.WriteString("  " + problem)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

//go:embed performance.md.tmpl
var document string

// markdown is docs/performance.md.
func (r *report) markdown() ([]byte, error) {
	t, err := template.New(docFile).Parse(document)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, r)
	return b.Bytes(), err
}

// Table is for the template.
func (r *report) Table() string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(head)
	b.WriteString("|---" + strings.Repeat("|--:", len(head)-1) + "|\n")
	for _, c := range r.Cases {
		line(c.cells())
	}
	return strings.TrimSuffix(b.String(), "\n")
}
