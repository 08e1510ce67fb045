package simulate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/testbed/testfiles"
)

// The plot of docs/algorithms.md shows what each algorithm makes of the same requests, at
// a limit of 10 in 10 s: a burst across the edge of a window, then pressure.
const plotted = "../../../docs/algorithms.svg"

// plottedTimes are when the requests come.
func plottedTimes() (at []time.Duration) {
	every := func(from, to, step time.Duration) {
		for t := from; t < to; t += step {
			at = append(at, t)
		}
	}
	const s = time.Second
	every(2*s, 4*s, s)                      // a few,
	every(8*s, 12*s, 150*time.Millisecond)  // a burst across the edge at 10 s,
	every(12*s, 40*s, 500*time.Millisecond) // and twice as many as may pass
	return at
}

// trace is what one algorithm made of the requests.
type trace struct {
	kind     string
	admitted []bool
}

// passed is how many were admitted.
func (tr *trace) passed() (n int) {
	for _, yes := range tr.admitted {
		if yes {
			n++
		}
	}
	return n
}

// most is how many were admitted in any stretch so long, open at its beginning.
func (tr *trace) most(at []time.Duration, period time.Duration) (most int) {
	for i := range at {
		n := 0
		for j := i; j >= 0 && at[i]-at[j] < period; j-- {
			if tr.admitted[j] {
				n++
			}
		}
		most = max(most, n)
	}
	return most
}

func traces(t *testing.T) (list []trace) {
	t.Helper()
	var requests bytes.Buffer
	for _, at := range plottedTimes() {
		fmt.Fprintf(&requests, `{"at": %q, "request": {"domain": "d", "descriptors": [{"entries": [{"key": "all"}]}]}}`+"\n",
			at)
	}
	for _, kind := range algorithm.KindNames() {
		if kind == algorithm.Concurrency.String() { // It has no window.
			continue
		}
		set := load(
			t, "domain: d\ndescriptors: [{key: all, rate_limit: {algorithm: "+kind+", period: 10s, requests_per_unit: 10}}]")
		out, _, err := simulated(t, Config{Rules: set}, bytes.NewReader(requests.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		tr := trace{kind: kind}
		for line := range bytes.Lines(out) {
			var decision struct {
				Response struct{ OverallCode string } `json:"response"`
			}
			if err := json.Unmarshal(line, &decision); err != nil {
				t.Fatal(err)
			}
			tr.admitted = append(tr.admitted, decision.Response.OverallCode == "OK")
		}
		list = append(list, tr)
	}
	return list
}

// TestPlot holds docs/algorithms.svg to what simulate says; `make docs` writes it.
func TestPlot(t *testing.T) {
	at, list := plottedTimes(), traces(t)
	bounds := map[string]int{
		"fixed_window": 20, "first_hit_window": 20, "sliding_window": 10,
		"sliding_window_counter": 19, "gcra": 20,
	}
	for _, tr := range list {
		if most := tr.most(at, 10*time.Second); most > bounds[tr.kind] {
			t.Errorf("%s lets %d pass in 10 s, which is more than %d", tr.kind, most, bounds[tr.kind])
		}
	}
	got := plot(at, list)
	if *update {
		if err := os.WriteFile(plotted, got, 0o644); err != nil { //nolint:gosec // a file of the repository
			t.Fatal(err)
		}
	}
	want := testfiles.Read(t, plotted)
	if !bytes.Equal(got, want) {
		t.Error("docs/algorithms.svg is not what simulate says: make docs")
	}
}

const plotStyle = `
  svg { font: 13px system-ui, sans-serif; }
  .paper { fill: #ffffff; } text { fill: #1f2328; } .small { font-size: 11px; }
  .passed { stroke: #2f6fb3; stroke-width: 2; } .over { stroke: #e0a58a; stroke-width: 1.5; } .grid { stroke: #d8dee4; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; } text { fill: #e6edf3; }
    .passed { stroke: #6cb0ff; } .over { stroke: #7a4a35; } .grid { stroke: #30363d; }
  }
`

// plot draws a row for each algorithm: a stroke up for what passed, one down for
// what was over.
func plot(at []time.Duration, list []trace) []byte {
	const width, left, right, top, row = 760, 180, 590, 78, 44
	x := func(d time.Duration) float64 { return left + (right-left)*d.Seconds()/40 }
	bottom := top + row*len(list)
	var b strings.Builder
	text := func(class, anchor string, x, y float64, format string, args ...any) {
		fmt.Fprintf(&b, "<text class=%q text-anchor=%q x=\"%.1f\" y=\"%.1f\">%s</text>\n", class, anchor, x, y,
			fmt.Sprintf(format, args...))
	}
	line := func(class string, x1, y1, x2, y2 float64) {
		fmt.Fprintf(&b, "<line class=%q x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", class, x1, y1, x2, y2)
	}
	const title = "The same requests under each algorithm, at 10 in 10 s"
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %[1]d %[2]d\" "+
		"role=\"img\">\n", width, bottom+34)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n<rect class=\"paper\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n",
		title, plotStyle, width, bottom+34)
	text("", "start", 16, 26, title)
	line("passed", 20, 52, 20, 40)
	text("small", "start", 28, 52, "passed")
	line("over", 84, 52, 84, 42)
	text("small", "start", 92, 52, "over the limit")
	text("small", "middle", 640, 70, "passed")
	text("small", "middle", 708, 70, "most in 10 s")
	for s := 0; s <= 40; s += 10 {
		tick := x(time.Duration(s) * time.Second)
		line("grid", tick, top-6, tick, float64(bottom))
		text("small", "middle", tick, float64(bottom)+18, "%d s", s)
	}
	for i := range list {
		tr, mid := &list[i], float64(top+row*i)+row/2
		text("", "end", left-14, mid+4.5, "%s", tr.kind)
		line("grid", left, mid, right, mid)
		for j, d := range at {
			if tr.admitted[j] {
				line("passed", x(d), mid, x(d), mid-16)
			} else {
				line("over", x(d), mid, x(d), mid+10)
			}
		}
		text("", "middle", 640, mid+4.5, "%d of %d", tr.passed(), len(at))
		text("", "middle", 708, mid+4.5, "%d", tr.most(at, 10*time.Second))
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}
