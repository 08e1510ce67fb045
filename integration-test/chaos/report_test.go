package chaos

import (
	_ "embed" // the document's template
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"ratelimit/testbed/measured"
)

const (
	documentName = "docs/reliability"
	documentFile = documentName + ".md"
	figuresFile  = documentName + ".csv"
)

// report is everything that was seen.
type report struct {
	measured.Machine
	Redis, Memcached string // versions
	Took             time.Duration

	mu    sync.Mutex // guards cells
	cells map[string]*cell
}

func newReport() *report {
	r := &report{Machine: measured.ThisMachine(repository), cells: make(map[string]*cell)}
	version := func(program string) string {
		out, _ := exec.Command(program, "--version").Output() // Without the program, the version is empty.
		return strings.TrimSpace(string(out))
	}
	if _, words, ok := strings.Cut(version("redis-server"), "v="); ok {
		r.Redis = strings.Fields(words)[0]
	}
	r.Memcached = strings.TrimPrefix(version("memcached"), "memcached ")
	return r
}

func (r *report) add(c *cell) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cells[c.fault.name+" on "+string(c.store)] = c
}

func (r *report) cell(f *fault, s storeName) *cell {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.cells[f.name+" on "+string(s)]
}

// verdict is what a cell says in short: a figure if the trial held.
func (r *report) verdict(f *fault, s storeName) string {
	if why := f.unlike[s]; why != "" {
		return why
	}
	c := r.cell(f, s)
	switch {
	case c == nil:
		return "not tried"
	case len(c.problems) > 0:
		return "**wrong**: " + strings.Join(c.problems, "; ")
	case c.unmeasured != "":
		return "not measured: " + c.unmeasured
	case c.virtual != nil:
		return fmt.Sprintf("%d of %d at most", c.virtual.admitted, c.virtual.most)
	case f.effect == unfelt:
		return fmt.Sprintf("%s of calls as ever", percent(c.during.byStore, c.during.all))
	}
	return "back after " + seconds(c.again)
}

// rows are the table of the verdicts.
func (r *report) rows() [][]string {
	head := []string{"fault"}
	for _, s := range storeNames {
		head = append(head, string(s))
	}
	rows := [][]string{head}
	for i := range faults {
		row := []string{faults[i].name}
		for _, s := range storeNames {
			row = append(row, r.verdict(&faults[i], s))
		}
		rows = append(rows, row)
	}
	return rows
}

// verdicts are the same for a terminal, which is not so wide.
func (r *report) verdicts() [][]string {
	rows := [][]string{{"fault", "store", "verdict"}}
	for i := range faults {
		for _, s := range storeNames {
			rows = append(rows, []string{faults[i].name, string(s), r.verdict(&faults[i], s)})
		}
	}
	return rows
}

var figureTitles = []string{
	"calls", "by the store", "in memory", "UNAVAILABLE", "late", "longest", "p99 before, after", "first", "lasting",
	"goroutines", "files", "MiB", "fullest stretch", "admitted",
}

// figures are those of a cell, as figureTitles say.
func (c *cell) figures() []string {
	three := func(value func(vitals) string) string {
		return fmt.Sprintf("%s, %s, %s", value(c.vitals[0]), value(c.vitals[1]), value(c.vitals[2]))
	}
	during := func(n int) string { return percent(n, c.during.all) }
	d := c.during
	row := []string{
		fmt.Sprint(c.calls), during(d.byStore), during(d.locally), during(d.of[unavailable]), fmt.Sprint(c.late),
		seconds(c.longest),
		seconds(c.p99[0]) + ", " + seconds(c.p99[1]), seconds(c.first), seconds(c.again),
		three(func(v vitals) string { return fmt.Sprint(v.Goroutines) }),
		three(func(v vitals) string { return fmt.Sprint(v.Files) }),
		three(func(v vitals) string { return fmt.Sprint(v.Memory >> 20) }),
		fmt.Sprintf("%d of %d", c.fullest.admitted, c.fullest.most), percent(c.admitted, c.ideally),
	}
	if c.fault.effect == passing { // nothing lasts: there is no during
		row[1], row[2], row[3] = "–", "–", "–"
	}
	return row
}

// figureRows are the lines of figuresFile.
func (r *report) figureRows() [][]string {
	rows := [][]string{append([]string{"fault", "store"}, figureTitles...)}
	for i := range faults {
		for _, s := range storeNames {
			if c := r.cell(&faults[i], s); c != nil && c.unmeasured == "" && c.virtual == nil {
				rows = append(rows, append([]string{faults[i].name, string(s)}, c.figures()...))
			}
		}
	}
	return rows
}

func percent(n, of int) string {
	if of == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(n)/float64(of))
}

// seconds is a time as people read it.
func seconds(d time.Duration) string {
	switch {
	case d < 0:
		return "never"
	case d < 100*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1000)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1000)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// text is a table for a terminal.
func text(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			line += fmt.Sprintf("%-*s  ", widths[i], cell)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

//go:embed reliability.md.tmpl
var documentTemplate string

// What the template asks for.
func (r *report) Table() string { return measured.Markdown(r.rows()) }

func (r *report) Faults() string {
	rows := [][]string{{"fault", "what is done"}}
	for _, f := range faults {
		rows = append(rows, []string{f.name, f.does})
	}
	return measured.Markdown(rows)
}
func (r *report) Minutes() string             { return fmt.Sprintf("%.1f", r.Took.Minutes()) }
func (r *report) Deadline() time.Duration     { return inFull.deadline }
func (r *report) StoreTimeout() time.Duration { return inFull.timeout }
func (r *report) InFlight() int               { return inFlight }
func (r *report) Limit() int                  { return limit }
func (r *report) Period() time.Duration       { return period }
func (r *report) PerKey() int                 { return perKey }
func (r *report) Reserve() int                { return reserve }
func (r *report) HoldTime() time.Duration     { return holdTime }
func (r *report) Before() time.Duration       { return inFull.before }
func (r *report) During() time.Duration       { return inFull.during }
func (r *report) Bounds() string {
	return fmt.Sprintf("at most %.0f %% of the calls late, %d goroutines, %d files and sockets and %d MiB more than "+
		"before, back within %v, a p99 of %d times that before and the store's timeout",
		100*mostLate, mostGoroutines, mostFiles, mostMemory>>20, mostRecovery, mostSlower)
}

func (r *report) write() error {
	return measured.WriteFiles(repository, documentName, documentTemplate, r, r.figureRows())
}
