package ruletest

import (
	"fmt"
	"strconv"
	"strings"

	"ratelimit/src/operator/output"
	"ratelimit/src/tools/check"
)

// Text returns the result as `go test` would print it: failures, with verbose also other tests, a line for the file.
func (r *Result) Text(verbose bool) string {
	var b strings.Builder
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "error: %s\n", p)
	}
	for i := range r.Tests {
		t := &r.Tests[i]
		switch {
		case !t.Passed:
			fmt.Fprintf(&b, "--- FAIL: %s (%s)\n", output.Printable(t.Name), t.At)
			for j := range t.Failures {
				t.Failures[j].print(&b)
			}
		case verbose:
			fmt.Fprintf(&b, "--- PASS: %s (%s)\n", output.Printable(t.Name), output.Plural(t.Requests, "request"))
		}
	}
	b.WriteString(r.summary())
	return b.String()
}

// GitHub returns workflow commands that annotate problems and failures at their lines, and a line for the file.
func (r *Result) GitHub() string {
	var b strings.Builder
	for _, p := range r.problems {
		fmt.Fprintln(&b, check.Annotation("error", p))
	}
	for i := range r.Tests {
		for j := range r.Tests[i].Failures {
			f, text := &r.Tests[i].Failures[j], new(strings.Builder)
			fmt.Fprintf(text, "test %s failed\n", strconv.Quote(r.Tests[i].Name))
			f.print(text)
			fmt.Fprintln(&b, output.Annotation{
				Severity: "error", File: f.pos.File, Line: f.pos.Line, Col: f.pos.Col,
				Text: strings.TrimSuffix(text.String(), "\n"),
			})
		}
	}
	b.WriteString(r.summary())
	return b.String()
}

func (r *Result) summary() string {
	failed, requests := 0, 0
	for i := range r.Tests {
		requests += r.Tests[i].Requests
		if !r.Tests[i].Passed {
			failed++
		}
	}
	switch {
	case len(r.Problems) > 0:
		return fmt.Sprintf("BAD   %s  %s\n", r.File, output.Plural(len(r.Problems), "problem"))
	case failed > 0:
		return fmt.Sprintf("FAIL  %s  %d of %s failed\n", r.File, failed, output.Plural(len(r.Tests), "test"))
	case len(r.Tests) == 0:
		return fmt.Sprintf("ok    %s  no tests to run\n", r.File)
	default:
		return fmt.Sprintf("ok    %s  %s, %s\n", r.File, output.Plural(len(r.Tests), "test"),
			output.Plural(requests, "request"))
	}
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
