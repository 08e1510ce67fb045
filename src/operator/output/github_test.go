package output_test

import (
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/operator/output"
)

func TestAnnotation(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		a    output.Annotation
		want string
	}{
		{output.Annotation{Severity: "error", Text: "x"}, "::error::x"},
		{output.Annotation{Severity: "warning", File: "a.yaml", Text: "x"}, "::warning file=a.yaml::x"},
		{
			output.Annotation{Severity: "error", File: "a.yaml", Line: 3, Col: 5, Text: "x: y, z"},
			"::error file=a.yaml,line=3,col=5::x: y, z",
		},
		// Texts cannot end a command and start another.
		{
			output.Annotation{Severity: "error", File: "a\nb,c:d%", Line: 1, Text: "50% of\r\n::error::x; a, b: c"},
			"::error file=a%0Ab%2Cc%3Ad%25,line=1::50%25 of%0D%0A::error::x; a, b: c",
		},
	} {
		if got := tt.a.String(); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

// FuzzAnnotation reads annotations as the documentation of GitHub's runner describes it, and compares them with what
// was written.
func FuzzAnnotation(f *testing.F) {
	f.Add("a.yaml", 3, 5, "x is odd")
	f.Add("a\nb,c:d%25", 1, 0, "50%25\r\n::error::x")
	f.Add("::", 0, 0, "::stop-commands::x")
	f.Fuzz(func(t *testing.T, file string, line, col int, text string) {
		want := output.Annotation{Severity: "error", File: file, Line: max(line, 0), Col: max(col, 0), Text: text}
		command := want.String()
		if strings.ContainsAny(command, "\r\n") {
			t.Fatalf("%q has several lines", command)
		}
		if got := readAnnotation(t, command); got != want {
			t.Errorf("%q reads as %+v, want %+v", command, got, want)
		}
	})
}

func readAnnotation(t *testing.T, command string) (a output.Annotation) {
	t.Helper()
	head, text, ok := strings.Cut(strings.TrimPrefix(command, "::"), "::")
	if !ok {
		t.Fatalf("%q has no second ::", command)
	}
	unescape := strings.NewReplacer("%0D", "\r", "%0A", "\n", "%3A", ":", "%2C", ",", "%25", "%")
	severity, parameters, _ := strings.Cut(head, " ")
	a.Severity, a.Text = severity, strings.NewReplacer("%0D", "\r", "%0A", "\n", "%25", "%").Replace(text)
	for parameter := range strings.SplitSeq(parameters, ",") {
		name, value, _ := strings.Cut(parameter, "=")
		var err error
		switch name {
		case "file":
			a.File = unescape.Replace(value)
		case "line":
			_, err = fmt.Sscan(value, &a.Line)
		case "col":
			_, err = fmt.Sscan(value, &a.Col)
		case "":
		default:
			t.Fatalf("%q has the parameter %q", command, name)
		}
		if err != nil {
			t.Fatalf("%q: %s: %v", command, name, err)
		}
	}
	return a
}
