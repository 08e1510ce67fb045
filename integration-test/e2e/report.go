package main

import (
	_ "embed" // the document's template
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"ratelimit/src/tools/bench"
	"ratelimit/testbed/measured"
)

// report is everything that was measured, and of what.
type report struct {
	measured.Machine
	Command     string         `json:"command"`
	Redis       string         `json:"redis,omitempty"` // its version
	Rounds      int            `json:"rounds"`
	Duration    float64        `json:"duration_seconds"` // of one measurement
	Warmup      float64        `json:"warmup_seconds"`
	GOGC        int            `json:"gogc"`
	NullWorkers uint32         `json:"null_workers"`
	Keys        int            `json:"keys"`
	Engines     []string       `json:"engines"`
	Interrupted bool           `json:"interrupted"`
	Cases       []*caseReport  `json:"cases"`
	Tails       []*tailReport  `json:"tails"`
	Crowds      []*crowdReport `json:"crowds"`
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

func newReport(opt *options, m measured.Machine, picked *selection) *report {
	r := &report{
		Machine: m, Command: opt.command(),
		Rounds: opt.rounds, Duration: opt.duration.Seconds(), Warmup: opt.warmup.Seconds(),
		GOGC: opt.gogc, NullWorkers: opt.nullWorkers, Keys: keys, Engines: opt.engines,
	}
	for _, c := range picked.cases {
		r.Cases = append(r.Cases, &caseReport{testCase: c})
	}
	for _, t := range picked.tails {
		r.Tails = append(r.Tails, newTailReport(t, opt.engines))
	}
	for _, e := range picked.crowds {
		r.Crowds = append(r.Crowds, &crowdReport{Engine: e, Connections: opt.crowd, Rate: opt.crowdRate})
	}
	return r
}

// add takes one more round in.
func (c *caseReport) add(p pair) {
	c.Rounds = append(c.Rounds, p)
	over := func(value func(pair) float64) *spread {
		return spreadOver(c.Rounds, func(p pair) bool { return p.Problem == "" }, value)
	}
	ratio := func(value func(*bench.Result) float64) *spread {
		return over(func(p pair) float64 { return value(p.Ours) / value(p.Empty) })
	}
	if c.CPU = ratio(cpu); c.CPU == nil {
		return
	}
	c.P50 = ratio(func(r *bench.Result) float64 { return float64(r.Latency.P50) })
	c.P99 = ratio(func(r *bench.Result) float64 { return float64(r.Latency.P99) })
	c.Costs = &costs{
		Ours:  over(func(p pair) float64 { return cpu(p.Ours) }).Median,
		Redis: over(func(p pair) float64 { return p.Ours.CPU[redisName].PerRequest }).Median,
		Empty: over(func(p pair) float64 { return cpu(p.Empty) }).Median,
	}
}

func (c *caseReport) problem() string {
	return problemOf(c.Rounds, func(p pair) (int, string) { return p.Round, p.Problem })
}

func (r *report) wentWrong() bool {
	return slices.ContainsFunc(r.tables(),
		func(t table) bool { return slices.ContainsFunc(t.problems, func(p string) bool { return p != "" }) })
}

// table is rows of cells, with what went wrong in each.
type table struct {
	head     []string
	rows     [][]string
	problems []string
}

func (t *table) add(problem string, rows ...[]string) {
	for _, row := range rows {
		t.rows, t.problems = append(t.rows, row), append(t.problems, problem)
	}
}

// tables are those of the document.
func (r *report) tables() []table {
	cpu, tails, crowds := table{head: head}, table{head: tailHead}, table{head: crowdHead}
	for _, c := range r.Cases {
		cpu.add(c.problem(), c.cells())
	}
	for _, t := range r.Tails {
		tails.add(t.problem(), t.rows()...)
	}
	for _, c := range r.Crowds {
		crowds.add(c.problem(), c.row())
	}
	return []table{cpu, tails, crowds}
}

var head = []string{
	"case", "in flight", "engine", "CPU ratio", "lowest – highest", "target", "ours", "of it Redis",
	"empty", "p50 ratio", "p99 ratio",
}

// cells are the row below head.
func (c *caseReport) cells() []string {
	row := []string{c.Name, c.shape(), c.Engine}
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
	if c.Target == 0 {
		return ""
	}
	return verdict(c.Target, c.CPU)
}

// writeTables writes the tables for people.
func (r *report) writeTables(w io.Writer) error {
	var b strings.Builder
	for _, t := range r.tables() {
		if len(t.rows) > 0 {
			if b.Len() > 0 {
				b.WriteByte('\n')
			}
			t.write(&b)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// write writes t with aligned columns, and what went wrong at the end of its row.
func (t *table) write(b *strings.Builder) {
	rows := append([][]string{t.head}, t.rows...)
	widths := make([]int, len(t.head))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for n, row := range rows {
		fmt.Fprintf(b, "%-*s", widths[0], row[0])
		for i, cell := range row[1:] {
			fmt.Fprintf(b, "  %*s", widths[i+1], cell)
		}
		if n > 0 && t.problems[n-1] != "" {
			b.WriteString("  " + t.problems[n-1])
		}
		b.WriteByte('\n')
	}
}

//go:embed performance.md.tmpl
var document string

// Table, TailTable and CrowdTable are for the template. Table has a row for each case: the cells of the first engine,
// and the CPU ratios of the others.
func (r *report) Table() string {
	const engine, ratio = 2, 3 // columns of head
	t := table{head: slices.Delete(slices.Clone(head), engine, engine+1)}
	for _, e := range r.Engines[1:] {
		t.head = append(t.head, "with "+e)
	}
	for _, c := range r.Cases {
		cells := c.cells()
		if c.Engine == r.Engines[0] {
			t.rows = append(t.rows, slices.Delete(cells, engine, engine+1))
		} else if last := len(t.rows) - 1; last >= 0 {
			t.rows[last] = append(t.rows[last], cells[ratio])
		}
	}
	return t.markdown()
}

func (r *report) TailTable() string { return r.tables()[1].markdown() }

func (r *report) CrowdTable() string { return r.tables()[2].markdown() }

// Upstream, LastEngine and FarRedis are for the template, too.
func (r *report) Upstream() int { return upstream }

func (r *report) LastEngine() string { return r.Engines[len(r.Engines)-1] }

func (r *report) FarRedis() string { return storeNames[inFarRedis] }

func (t table) markdown() string {
	var b strings.Builder
	line := func(cells []string) { fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | ")) }
	line(t.head)
	b.WriteString("|---" + strings.Repeat("|--:", len(t.head)-1) + "|\n")
	for _, row := range t.rows {
		line(row)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
