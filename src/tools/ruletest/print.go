package ruletest

import (
	"fmt"
	"strings"

	"ratelimit/src/tools/output"
)

// Text returns the result as `go test` would print it: each failure, with verbose also each test that passed, and a line for the file.
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
			fmt.Fprintf(&b, "--- FAIL: %s (%s)\n", output.Printable(t.Name), t.At)
			for j := range t.Failures {
				t.Failures[j].print(&b)
			}
		case verbose:
			fmt.Fprintf(&b, "--- PASS: %s (%s)\n", output.Printable(t.Name), output.Plural(t.Requests, "request"))
		}
	}
	switch {
	case len(r.Problems) > 0:
		fmt.Fprintf(&b, "BAD   %s  %s\n", r.File, output.Plural(len(r.Problems), "problem"))
	case failed > 0:
		fmt.Fprintf(&b, "FAIL  %s  %d of %s failed\n", r.File, failed, output.Plural(len(r.Tests), "test"))
	case len(r.Tests) == 0:
		fmt.Fprintf(&b, "ok    %s  no tests to run\n", r.File)
	default:
		fmt.Fprintf(&b, "ok    %s  %s, %s\n", r.File, output.Plural(len(r.Tests), "test"), output.Plural(requests, "request"))
	}
	return b.String()
}

func (f *Failure) print(b *strings.Builder) {
	which := ""
	if f.Times > 1 {
		which = fmt.Sprintf(", request %d of %d", f.Repetition, f.Times)
	}
	if f.Failed > 1 {
		which += fmt.Sprintf(" and %d more", f.Failed-1)
	}
	fmt.Fprintf(b, "    %s: at %s, %s%s\n", f.At, f.Time, output.Printable(f.Ask), which)
	for _, d := range f.Differences {
		fmt.Fprintf(b, "        %s: got %s, want %s\n", d.What, output.Printable(d.Got), output.Printable(d.Want))
	}
	b.WriteString("      because\n")
	for line := range strings.Lines(f.Explanation.Text()) {
		b.WriteString("        " + line)
	}
}
