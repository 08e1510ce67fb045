package main

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// amount is a number of docs/sizing.md, such as 50,000 or 1.7 µs.
var amount = regexp.MustCompile(`([\d.,]+)(?: (µs|MB))?`)

// amounts returns the numbers of a text in seconds and bytes.
func amounts(t *testing.T, text string) (list []float64) {
	t.Helper()
	for _, m := range amount.FindAllStringSubmatch(text, -1) {
		n, err := strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		list = append(list, n*map[string]float64{"": 1, "µs": 1e-6, "MB": 1e6}[m[2]])
	}
	return list
}

// The example of docs/sizing.md is calculated correctly.
func TestDocumentsSizingExample(t *testing.T) {
	t.Parallel()
	rows := tableRows(document(t, "docs/sizing.md"), "what")
	if len(rows) < 8 {
		t.Fatalf("%d calculations", len(rows))
	}
	for _, row := range rows {
		n, result := amounts(t, row[1]), amounts(t, row[2])
		if len(n) != 2 || len(result) != 1 {
			t.Fatalf("%q is no calculation", row)
		}
		got := n[0] + n[1]
		switch {
		case strings.Contains(row[1], " x "):
			got = n[0] * n[1]
		case strings.Contains(row[1], " / "):
			got = n[0] / n[1]
		}
		if math.Abs(got-result[0]) > got/500 {
			t.Errorf("%s = %s, but it is %g", row[1], row[2], got)
		}
	}
}

// The cores in docs/sizing.md are the CPU times of a call in docs/performance.md, for 10,000 calls a second.
func TestDocumentsSizingCores(t *testing.T) {
	t.Parallel()
	measured := make(map[string][]string)
	for _, row := range tableRows(document(t, "docs/performance.md"), "case") {
		measured[row[0]+" "+row[1]] = row
	}
	rows := tableRows(document(t, "docs/sizing.md"), "case")
	if len(rows) < 4 {
		t.Fatalf("%d rows of cores", len(rows))
	}
	for _, row := range rows {
		calls := measured[row[0]+" "+row[1]]
		if calls == nil {
			t.Errorf("docs/performance.md has no %s with %s in flight", row[0], row[1])
			continue
		}
		for i, times := range calls[5:7] { // ours, of it Redis
			want := ""
			for _, seconds := range amounts(t, times) {
				want = fmt.Sprintf("%.3f", seconds*10_000)
			}
			if row[2+i] != want {
				t.Errorf("%s, %s in flight: %q cores, want %q", row[0], row[1], row[2+i], want)
			}
		}
	}
}
