package main

import (
	"encoding/xml"
	"fmt"
	"math"
	"strings"
)

// Measures of the plot, in pixels.
const (
	plotWidth = 760
	margin    = 16
	plotLeft  = 250 // where the ratio is 0
	plotRight = 690 // where the scale ends
	plotTop   = 76  // of the first row
	rowHeight = 34
	barHeight = 16
)

// The plot brings its background along, so that it can be read wherever it is
// shown, and turns dark with the reader's system.
const plotStyle = `
  svg { font: 13px system-ui, sans-serif; }
  .paper { fill: #ffffff; } text { fill: #1f2328; } .small { font-size: 11px; }
  .bar { fill: #7ba3d0; } .grid { stroke: #d8dee4; } .one { stroke: #1f2328; stroke-dasharray: 4 3; }
  .whisker { stroke: #1f2328; stroke-width: 1.5; } .target { stroke: #c4420b; stroke-width: 3; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117; } text { fill: #e6edf3; }
    .bar { fill: #3f6ea6; } .grid { stroke: #30363d; } .one { stroke: #e6edf3; }
    .whisker { stroke: #e6edf3; } .target { stroke: #ff8a4c; }
  }
`

// plot is docs/performance.svg: a bar for the median of each case, whiskers for
// the rounds, a mark for the target.
func (r *report) plot() []byte {
	most := 1.0
	for _, c := range r.Cases {
		most = max(most, c.Target)
		if c.CPU != nil {
			most = max(most, c.CPU.Highest)
		}
	}
	step, end := scale(most)
	x := func(ratio float64) float64 { return plotLeft + ratio/end*(plotRight-plotLeft) }
	bottom := plotTop + rowHeight*len(r.Cases)
	height := bottom + 34

	var b strings.Builder
	line := func(class string, x1, y1, x2, y2 float64) {
		fmt.Fprintf(&b, "<line class=%q x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", class, x1, y1, x2, y2)
	}
	label := func(class, anchor string, x, y float64, text string) {
		fmt.Fprintf(&b, "<text class=%q text-anchor=%q x=\"%.1f\" y=\"%.1f\">%s</text>\n", class, anchor, x, y, escaped(text))
	}
	const title = "CPU time of a call, as a multiple of an empty grpc-go server's"
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %[1]d %[2]d\" role=\"img\">\n", plotWidth, height)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>%s</style>\n", escaped(title), plotStyle)
	fmt.Fprintf(&b, "<rect class=\"paper\" width=\"%d\" height=\"%d\" rx=\"6\"/>\n", plotWidth, height)
	label("", "start", margin, 26, title)

	const legend = 50
	fmt.Fprintf(&b, "<rect class=\"bar\" x=\"%d\" y=\"%d\" width=\"22\" height=\"10\"/>\n", margin, legend-10)
	label("small", "start", 44, legend, "median")
	whiskers(line, 110, 134, legend-5)
	label("small", "start", 140, legend, "lowest and highest round")
	line("target", 296, legend-12, 296, legend+2)
	label("small", "start", 304, legend, "target: at most")
	line("one", 410, legend-5, 434, legend-5)
	label("small", "start", 440, legend, "the empty server")

	label("small", "end", plotWidth-margin, plotTop-4, "median")
	for i := 0; float64(i)*step <= end+step/2; i++ {
		at := x(float64(i) * step)
		line("grid", at, plotTop, at, float64(bottom))
		label("small", "middle", at, float64(bottom)+18, fmt.Sprintf("%g", float64(i)*step))
	}
	for i, c := range r.Cases {
		mid := plotTop + rowHeight*(float64(i)+0.5)
		label("", "end", plotLeft-12, mid+4.5, c.title())
		if c.CPU == nil {
			label("small", "start", plotLeft+8, mid+4, "no figures")
			continue
		}
		fmt.Fprintf(&b, "<rect class=\"bar\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>\n", plotLeft, mid-barHeight/2, x(c.CPU.Median)-plotLeft, barHeight)
		whiskers(line, x(c.CPU.Lowest), x(c.CPU.Highest), mid)
		if c.Target > 0 {
			line("target", x(c.Target), mid-12, x(c.Target), mid+12)
		}
		label("", "end", plotWidth-margin, mid+4.5, fmt.Sprintf("%.2f", c.CPU.Median))
	}
	line("one", x(1), plotTop, x(1), float64(bottom))
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

func whiskers(line func(class string, x1, y1, x2, y2 float64), from, to, y float64) {
	line("whisker", from, y, to, y)
	line("whisker", from, y-4, from, y+4)
	line("whisker", to, y-4, to, y+4)
}

// scale returns the distance of the grid's lines and the end of the scale, so
// that most fits and there are ten lines at most.
func scale(most float64) (step, end float64) {
	for unit := 0.1; ; unit *= 10 {
		for _, times := range []float64{1, 2, 2.5, 5} {
			step = unit * times
			if n := math.Ceil(most / step); n <= 10 {
				return step, n * step
			}
		}
	}
}

func escaped(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a strings.Builder takes everything
	return b.String()
}
