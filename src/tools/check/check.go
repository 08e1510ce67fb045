// Package check reads rule files as the service would and prints what is wrong with them.
package check

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/spf13/cobra"

	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/match"
	"ratelimit/src/service/store"
	"ratelimit/src/tools/command"
)

//go:embed help.txt
var help string

// Command returns `ratelimit check`.
func Command() *cobra.Command {
	var dir, backend, format string
	var strict bool
	var opt compile.Options
	needPath := func(_ *cobra.Command, args []string) error {
		if dir == "" && len(args) == 0 {
			return errors.New("name a directory or files to check")
		}
		return nil
	}
	cmd := command.New(help, needPath, func(cmd *cobra.Command, args []string) error {
		if dir != "" {
			args = append(args, dir)
		}
		opt.Store = store.Limits(strings.TrimSuffix(backend, "d"))
		result := load(args, opt, filerules.LoadAllDocuments)
		result.judgeRules(args, strict)
		return printProblems(cmd.OutOrStdout(), result, format)
	})
	f := cmd.Flags()
	command.Choice(cmd, &backend, "backend",
		"the BACKEND_TYPE they are for: memory and redis can count by all rules, memcache by some",
		"memory", "redis", "memcache", "memcached")
	f.StringVar(&dir, "config-dir", "", "a directory to check, as envoyproxy/ratelimit's tool names it")
	command.Choice(cmd, &format, "format", "how problems are printed: text, json, or github", "text", "json", "github")
	f.BoolVar(&strict, "strict", false, "fail on warnings, too")
	f.BoolVar(&opt.MergeDomains, "merge-domain-configs", false, "allow one domain in several files")
	return cmd
}

// printProblems prints what is wrong with the rules of l, and a line that counts it unless the format is JSON.
func printProblems(out io.Writer, l Result, format string) (err error) {
	switch format {
	case "text":
		l.Report(out)
	case "github":
		l.GitHub(out)
	case "json":
		err = l.JSON(out)
	}
	switch {
	case err != nil:
		return err
	case l.Set == nil && format == "json":
		return command.Exit{Code: command.ExitError}
	case l.Set == nil:
		return errors.New(l.Summary())
	case format != "json":
		for _, line := range l.RegexLines() {
			fmt.Fprintln(out, line)
		}
		_, err = fmt.Fprintf(out, "ok: %s\n", l.Summary())
	}
	return err
}

// Result is what Load found in rule files.
type Result struct {
	Set                *rules.Set // nil if there are problems.
	Files              int
	Problems, Warnings rules.Problems
	emptyPaths         []string // directories that hold no rule files, though they can be read
}

// Load reads and compiles the files, and the directories of files, at paths.
func Load(paths []string, opt compile.Options) Result { return load(paths, opt, filerules.Load) }

// load does what Load does, with a function that compiles files as filerules.Load does.
func load(paths []string, opt compile.Options,
	compile func([]filerules.File, compile.Options) (*rules.Set, rules.Problems, error),
) (r Result) {
	var files []filerules.File
	for _, path := range paths {
		more, warnings, err := filerules.Read(path)
		files = append(files, more...)
		r.add(warnings, err)
		if len(more) == 0 && err == nil {
			r.emptyPaths = append(r.emptyPaths, path)
		}
	}
	set, warnings, err := compile(files, opt)
	r.Files = len(files)
	r.add(warnings, err)
	if len(r.Problems) == 0 {
		r.Set = set
	}
	return r
}

// judgeRules adds what is wrong with rules that are to be shipped, though a service may start with them: a directory
// without rule files, and rules without a limit. If strict is set, warnings make the result a failure. Then it warns of
// limits that are good for some clients only.
func (r *Result) judgeRules(paths []string, strict bool) {
	for _, path := range r.emptyPaths {
		r.Problems.Add(rules.Pos{File: path},
			"name its files *.yaml, *.yml, *.ini or *.json; a file without a suffix needs a `domain`",
			"the directory holds no rule files")
	}
	if r.Set != nil && len(r.Set.Rules()) == 0 && len(r.emptyPaths) == 0 {
		var at rules.Pos
		if len(paths) == 1 {
			at.File = paths[0]
		}
		r.Warnings.Add(at, "add a `rate_limit` to a descriptor",
			"there are no rules with a limit, so everything passes")
	}
	if len(r.Problems) > 0 || strict && len(r.Warnings) > 0 {
		r.Set = nil
		return
	}
	for _, rule := range r.Set.Rules() {
		r.warnLarge(rule)
	}
}

// warnLarge warns of a limit that Envoy's answers cannot show. Such a limit may be meant, so --strict accepts it.
func (r *Result) warnLarge(rule *rules.Rule) {
	at, most := rule.Pos, max(rule.Limit.Max, rule.Limit.Capacity())
	if f := rule.LimitsFile; f != nil {
		for _, l := range f.Table.Limits() {
			if n := max(l.Requests, l.Burst); n > most {
				at, most = rules.Pos{File: f.Path, Line: l.Line, Col: l.Col}, n
			}
		}
	}
	if most > math.MaxUint32 {
		r.Warnings.Add(at, "let clients read the headers or /json, or count in a larger unit",
			"Envoy's answers have 32 bits, and show a limit of %d as %d", most, uint32(math.MaxUint32))
	}
}

func (r *Result) add(warnings rules.Problems, err error) {
	r.Warnings = append(r.Warnings, warnings...)
	r.Problems = append(r.Problems, Problems(err)...)
}

// Problems returns err as a list of problems; none for nil.
func Problems(err error) rules.Problems {
	var problems rules.Problems
	if err != nil && !errors.As(err, &problems) {
		problems = rules.Problems{{Message: err.Error()}}
	}
	return problems
}

// all calls each with every warning, then with every problem. severity is "warning" or "error".
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

// GitHub prints warnings and problems as workflow commands, which GitHub shows in a pull request.
func (r *Result) GitHub(to io.Writer) {
	r.all(func(severity string, p rules.Problem) { fmt.Fprintln(to, Annotation(severity, p)) })
}

// Annotation returns p as an annotation of its place.
func Annotation(severity string, p rules.Problem) output.Annotation {
	return output.Annotation{
		Severity: severity, File: p.File, Line: p.Line, Col: p.Col,
		Text: rules.Problem{Message: p.Message, Fix: p.Fix}.String(),
	}
}

// Summary returns the numbers of files, domains, rules and warnings in one line, or that of problems if there are any.
func (r *Result) Summary() string {
	if r.Set == nil && len(r.Problems) == 0 {
		return fmt.Sprintf("%s in %s, and --strict is set", output.Plural(len(r.Warnings), "warning"),
			output.Plural(r.Files, "file"))
	}
	if r.Set == nil {
		return fmt.Sprintf("%s in %s", output.Plural(len(r.Problems), "problem"), output.Plural(r.Files, "file"))
	}
	return fmt.Sprintf("%s, %s, %s, %s",
		output.Plural(r.Files, "file"), output.Plural(len(r.Set.Domains()), "domain"),
		output.Plural(len(r.Set.Rules()), "rule"), output.Plural(len(r.Warnings), "warning"))
}

// RegexLines says, for each domain, with how many regular expressions a descriptor is compared at most.
func (r *Result) RegexLines() (lines []string) {
	for _, d := range r.Set.Domains() {
		if most := match.MostRegexes(d); most > 0 {
			lines = append(lines, fmt.Sprintf("domain %s: a descriptor is compared with at most %s", rules.Quote(d.Name),
				output.Plural(most, "regular expression")))
		}
	}
	return lines
}

// Finding is a problem or a warning as JSON. Its zero line and column mean that there is none.
type Finding struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
	Fix     string `json:"fix,omitempty"`
}

// FindingOf returns p as a Finding.
func FindingOf(p rules.Problem) Finding { return Finding{p.File, p.Line, p.Col, p.Message, p.Fix} }

// JSON prints the result as one JSON object.
func (r *Result) JSON(to io.Writer) error {
	type problem struct {
		Severity string `json:"severity"`
		Finding
	}
	body := struct {
		OK      bool `json:"ok"`
		Files   int  `json:"files"`
		Domains int  `json:"domains"`
		Rules   int  `json:"rules"`
		// Regexes has the most regular expressions that a descriptor is compared with, by domain.
		Regexes  map[string]int `json:"regexes,omitempty"`
		Problems []problem      `json:"problems"`
	}{OK: r.Set != nil, Files: r.Files, Regexes: make(map[string]int), Problems: []problem{}}
	if r.Set != nil {
		body.Domains, body.Rules = len(r.Set.Domains()), len(r.Set.Rules())
		for _, d := range r.Set.Domains() {
			if most := match.MostRegexes(d); most > 0 {
				body.Regexes[d.Name] = most
			}
		}
	}
	r.all(func(severity string, p rules.Problem) {
		body.Problems = append(body.Problems, problem{severity, FindingOf(p)})
	})
	return json.NewEncoder(to).Encode(body)
}
