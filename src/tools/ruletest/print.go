package ruletest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"ratelimit/src/tools/check"
)

// Text is the result as `go test` would print it: failures, with verbose also
// what passed, and a line for the file.
func (r *Result) Text(verbose bool) string {
	var b strings.Builder
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "error: %s\n", p)
	}
	failed, requests := 0, 0
	for i := range r.Tests {
		t := &r.Tests[i]
		requests += t.Requests
		switch {
		case !t.Passed:
			failed++
			fmt.Fprintf(&b, "--- FAIL: %s (%s)\n", printable(t.Name), t.At)
			for j := range t.Failures {
				t.Failures[j].print(&b)
			}
		case verbose:
			fmt.Fprintf(&b, "--- PASS: %s (%s)\n", printable(t.Name), check.Plural(t.Requests, "request"))
		}
	}
	switch {
	case len(r.Problems) > 0:
		fmt.Fprintf(&b, "BAD   %s  %s\n", r.File, check.Plural(len(r.Problems), "problem"))
	case failed > 0:
		fmt.Fprintf(&b, "FAIL  %s  %d of %s failed\n", r.File, failed, check.Plural(len(r.Tests), "test"))
	case len(r.Tests) == 0:
		fmt.Fprintf(&b, "ok    %s  no tests to run\n", r.File)
	default:
		fmt.Fprintf(&b, "ok    %s  %s, %s\n", r.File, check.Plural(len(r.Tests), "test"), check.Plural(requests, "request"))
	}
	return b.String()
}

// Failed reports whether any test did.
func (r *Result) Failed() bool {
	return slices.ContainsFunc(r.Tests, func(t Test) bool { return !t.Passed })
}

func (f *Failure) print(b *strings.Builder) {
	which := ""
	if f.Times > 1 {
		which = fmt.Sprintf(", request %d of %d", f.Repetition, f.Times)
	}
	if f.Failed > 1 {
		which += fmt.Sprintf(" and %d more", f.Failed-1)
	}
	fmt.Fprintf(b, "    %s: at %s, %s%s\n", f.At, f.Time, printable(f.Ask), which)
	for _, d := range f.Differences {
		fmt.Fprintf(b, "        %s: got %s, want %s\n", d.What, printable(d.Got), printable(d.Want))
	}
	b.WriteString("      because\n")
	for line := range strings.Lines(f.Explanation.Text()) {
		b.WriteString("        " + line)
	}
}

// printable returns text from a file for a terminal.
func printable(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return strconv.Quote(s)
	}
	return s
}
