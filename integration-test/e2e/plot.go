package main

import (
	"bytes"
	_ "embed" // the plot's template
	"fmt"
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

// plot is docs/performance.svg: what a call costs in some servers, as a multiple of an empty grpc-go server.
func (r *report) plot() ([]byte, error) {
	var bars []bar
	add := func(class, label string, ratio float64, value string) {
		width := int(ratio / upstream * (plotRight - plotLeft))
		bars = append(bars, bar{
			Label: label, Value: value, Class: class, Y: plotTop + rowHeight*len(bars),
			Width: max(1, width),
		})
	}
	add("scale", "envoyproxy/ratelimit on Redis", upstream, fmt.Sprintf("about %d", upstream))
	seen := make(map[serviceKey]bool)
	for _, s := range []store{inRedis, inMemory} {
		if s == inMemory {
			add("scale", "empty grpc-go server", 1, "1")
		}
		for i := len(r.Cases) - 1; i >= 0; i-- { // the engine of today first
			c := r.Cases[i]
			if k := (serviceKey{s, c.Engine}); c.title() == plotCase(s) && c.CPU != nil && !seen[k] {
				seen[k] = true
				add("bar", fmt.Sprintf("this service on %s, %s", storeNames[s], c.Engine), c.CPU.Median,
					fmt.Sprintf("%.2f", c.CPU.Median))
			}
		}
	}
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
