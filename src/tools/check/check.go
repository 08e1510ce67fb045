// Package check reads rule files as the service would and prints what is wrong with them.
package check

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/loading"
)

// Result is what Load found in rule files.
type Result struct {
	Set                *rules.Set // nil: there are problems
	Files              int
	Problems, Warnings rules.Problems
}

// Load reads and compiles the files, and the directories of files, at paths.
func Load(paths []string, opt rules.Options) (r Result) {
	var files []loading.File
	for _, path := range paths {
		more, warnings, err := filerules.Read(path, false)
		files = append(files, more...)
		r.add(warnings, err)
	}
	set, warnings, err := loading.Load(files, opt)
	r.Files = len(files)
	r.add(warnings, err)
	if len(r.Problems) == 0 {
		r.Set = set
	}
	return r
}

func (r *Result) add(warnings rules.Problems, err error) {
	r.Warnings = append(r.Warnings, warnings...)
	r.Problems = append(r.Problems, Problems(err)...)
}

// Problems returns err as a list of problems; none for nil.
func Problems(err error) rules.Problems {
	var problems rules.Problems
	if err != nil && !errors.As(err, &problems) {
		problems = rules.Problems{{What: err.Error()}}
	}
	return problems
}

// all calls each with all warnings and problems.
func (r *Result) all(each func(severity string, p rules.Problem)) {
	for _, w := range r.Warnings {
		each("warning", w)
	}
	for _, p := range r.Problems {
		each("error", p)
	}
}

// Report prints warnings and problems, one on each line.
func (r *Result) Report(to io.Writer) {
	r.all(func(severity string, p rules.Problem) { fmt.Fprintf(to, "%s: %v\n", severity, p) })
}

// GitHub prints warnings and problems as commands that GitHub shows in a pull request.
func (r *Result) GitHub(to io.Writer) {
	r.all(func(severity string, p rules.Problem) { fmt.Fprintln(to, gitHubCommand(severity, p)) })
}

// Summary counts what there is, in one line.
func (r *Result) Summary() string {
	if r.Set == nil {
		return fmt.Sprintf("%s in %s", Plural(len(r.Problems), "problem"), Plural(r.Files, "file"))
	}
	return fmt.Sprintf("%s, %s, %s, %s",
		Plural(r.Files, "file"), Plural(len(r.Set.Domains()), "domain"), Plural(len(r.Set.Rules()), "rule"), Plural(len(r.Warnings), "warning"))
}

// Plural returns "1 file" or "2 files".
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// JSON prints one object.
func (r *Result) JSON(to io.Writer) error {
	type problem struct {
		Severity string `json:"severity"`
		File     string `json:"file"`
		Line     int    `json:"line,omitempty"`
		Column   int    `json:"column,omitempty"`
		Message  string `json:"message"`
		Fix      string `json:"fix,omitempty"`
	}
	body := struct {
		OK       bool      `json:"ok"`
		Files    int       `json:"files"`
		Domains  int       `json:"domains"`
		Rules    int       `json:"rules"`
		Problems []problem `json:"problems"`
	}{OK: r.Set != nil, Files: r.Files, Problems: []problem{}}
	if r.Set != nil {
		body.Domains, body.Rules = len(r.Set.Domains()), len(r.Set.Rules())
	}
	r.all(func(severity string, p rules.Problem) {
		body.Problems = append(body.Problems, problem{severity, p.File, p.Line, p.Col, p.What, p.Fix})
	})
	return json.NewEncoder(to).Encode(body)
}

// What GitHub's commands have a meaning for, in texts and in the values before them.
var (
	gitHubText  = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	gitHubValue = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
)

// gitHubCommand is the line of output from which GitHub makes an annotation of p.
func gitHubCommand(severity string, p rules.Problem) string {
	var place []string
	if p.File != "" {
		place = append(place, "file="+gitHubValue.Replace(p.File))
	}
	if p.Line > 0 {
		place = append(place, fmt.Sprintf("line=%d", p.Line))
	}
	if p.Col > 0 {
		place = append(place, fmt.Sprintf("col=%d", p.Col))
	}
	if len(place) > 0 {
		severity += " "
	}
	return "::" + severity + strings.Join(place, ",") + "::" + gitHubText.Replace(rules.Problem{What: p.What, Fix: p.Fix}.String())
}
