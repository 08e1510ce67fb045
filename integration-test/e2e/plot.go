package main

import (
	"bytes"
	_ "embed" // the plot's template
	"fmt"
	"math"
	"text/template"
)

//go:embed performance.svg.tmpl
var plotTemplate string

// Measures of the plot, in pixels.
const (
	plotLeft  = 250 // where the ratio is 0
	plotRight = 690 // where it is upstream
	plotTop   = 44  // of the first bar
	rowHeight = 30
)

// bar is a row of the plot. Its text needs no escapes.
type bar struct {
	Label, Value, Class string
	Y, Width            int
}

// plot is docs/performance.svg: what a call costs in some servers, as a multiple of an empty grpc-go server. It shows
// the first engine.
func (r *report) plot() ([]byte, error) {
	ratios := make(map[store]float64)
	for _, c := range r.Cases {
		for _, s := range []store{inRedis, inLeases, inMemory} {
			if c.title() == plotCase(s) && c.Engine == r.Engines[0] && c.CPU != nil {
				ratios[s] = c.CPU.Median
			}
		}
	}
	return drawPlot(ratios)
}

// drawPlot draws ratios with the two decimals that the table has. It leaves out the stores without a ratio.
func drawPlot(ratios map[store]float64) ([]byte, error) {
	var bars []bar
	add := func(class, label string, ratio float64, value string) {
		width := int(ratio / upstream * (plotRight - plotLeft))
		bars = append(bars, bar{
			Label: label, Value: value, Class: class, Y: plotTop + rowHeight*len(bars),
			Width: max(1, width),
		})
	}
	add("scale", "envoyproxy/ratelimit, Redis", upstream, fmt.Sprintf("about %d", upstream))
	for _, s := range []store{inRedis, inLeases, inMemory} {
		if ratio, ok := ratios[s]; ok {
			ratio = math.Round(100*ratio) / 100
			add("bar", "ratelimit, "+storeNames[s], ratio, fmt.Sprintf("%.2f", ratio))
		}
	}
	add("scale", "a gRPC server that does nothing", 1, "1")
	t, err := template.New(plotFile).Parse(plotTemplate)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, struct {
		Bars                []bar
		Left, Height, Start int
	}{bars, plotLeft, plotTop + rowHeight*len(bars) + 10, plotLeft - 12})
	return b.Bytes(), err
}

// plotCase is the title of the case that the plot shows of a store.
func plotCase(s store) string {
	return fmt.Sprintf("%s, 100k keys, %d x 32", storeNames[s], connections)
}
