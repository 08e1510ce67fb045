package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/loading"
	"ratelimit/src/service"
)

func checkCommand(std stdio) *cobra.Command {
	var dir, backend, format string
	var opt rules.Options
	cmd := &cobra.Command{
		Use:   "check DIR|FILE...",
		Short: "Validate rule files before they ship",
		Long: `check reads rule files as the server would and prints every problem at once, as
file:line:col: what is wrong; how to mend it. Warnings name what is legal but
cannot do what it was meant to. Tests of rules (ratelimit test) may stand among
them and are passed over. All documents of a YAML file are checked, although the
server reads the first alone.

For machines --format json prints one object, and --format github the commands
with which GitHub shows each problem at its line of a pull request.

Exit status 0 when the files are good, 1 when they are not.`,
		Example: `  ratelimit check examples/ratelimit/config
  ratelimit check one.yaml other.yaml
  ratelimit check --backend memcache rules/
  ratelimit check --format github rules/
  ratelimit check -config_dir rules -merge_domain_configs`,
		RunE: func(_ *cobra.Command, args []string) error {
			if dir != "" {
				args = append(args, dir)
			}
			if len(args) == 0 {
				return errors.New("check: name a directory or files to check")
			}
			switch backend {
			case "memory", "redis", "memcache", "memcached":
				opt.Store = service.StoreLimits(strings.TrimSuffix(backend, "d"))
			default:
				return fmt.Errorf("check: --backend %s: write memory, redis or memcache", backend)
			}
			print, ok := checkFormats[format]
			if !ok {
				return fmt.Errorf("check: --format %s: write text, json or github", format)
			}
			opt.AllDocuments = true
			l := loadPaths(args, opt)
			if err := print(&l, std); err != nil {
				return err
			}
			if l.set == nil {
				return exit{exitError}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&dir, "config-dir", "", "a directory to check, as envoyproxy/ratelimit's tool names it")
	cmd.Flags().StringVar(&backend, "backend", "memory", "the BACKEND_TYPE they are for: memory and redis can count by all rules, memcache by some")
	cmd.Flags().StringVar(&format, "format", "text", "how problems are printed: text, json, or github")
	cmd.Flags().BoolVar(&opt.MergeDomains, "merge-domain-configs", false, "allow one domain in several files")
	return cmd
}

// checkFormats are the values of --format: each prints what came of a check.
var checkFormats = map[string]func(*loaded, stdio) error{
	"text": func(l *loaded, std stdio) error {
		l.report(std.out)
		return l.summary(std)
	},
	"github": func(l *loaded, std stdio) error {
		for _, w := range l.warnings {
			fmt.Fprintln(std.out, gitHubCommand("warning", w))
		}
		for _, p := range l.problems {
			fmt.Fprintln(std.out, gitHubCommand("error", p))
		}
		return l.summary(std)
	},
	"json": (*loaded).json,
}

// summary prints the last line for people.
func (l *loaded) summary(std stdio) error {
	if l.set == nil {
		_, err := fmt.Fprintf(std.err, "ratelimit: check: %s in %s\n", plural(len(l.problems), "problem"), plural(l.files, "file"))
		return err
	}
	_, err := fmt.Fprintf(std.out, "ok: %s, %s, %s, %s\n",
		plural(l.files, "file"), plural(len(l.set.Domains()), "domain"), plural(len(l.set.Rules()), "rule"), plural(len(l.warnings), "warning"))
	return err
}

// json prints one object.
func (l *loaded) json(std stdio) error {
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
	}{OK: l.set != nil, Files: l.files, Problems: []problem{}}
	if l.set != nil {
		body.Domains, body.Rules = len(l.set.Domains()), len(l.set.Rules())
	}
	add := func(severity string, list rules.Problems) {
		for _, p := range list {
			body.Problems = append(body.Problems, problem{severity, p.File, p.Line, p.Col, p.What, p.Fix})
		}
	}
	add("warning", l.warnings)
	add("error", l.problems)
	return json.NewEncoder(std.out).Encode(body)
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

// loaded is what came of rule files that were named on the command line.
type loaded struct {
	set                *rules.Set // nil: there are problems
	files              int
	problems, warnings rules.Problems
}

func loadPaths(paths []string, opt rules.Options) (l loaded) {
	var files []loading.File
	for _, path := range paths {
		more, odd, err := filerules.Read(path, false)
		files = append(files, more...)
		l.warnings = append(l.warnings, odd...)
		l.problems = append(l.problems, asProblems(err)...)
	}
	set, odd, err := loading.Load(files, opt)
	l.files = len(files)
	l.warnings = append(l.warnings, odd...)
	l.problems = append(l.problems, asProblems(err)...)
	if len(l.problems) == 0 {
		l.set = set
	}
	return l
}

// report prints warnings and problems, one a line.
func (l *loaded) report(to io.Writer) {
	for _, w := range l.warnings {
		fmt.Fprintf(to, "warning: %v\n", w)
	}
	for _, p := range l.problems {
		fmt.Fprintf(to, "error: %v\n", p)
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// asProblems is err as a list of problems; none for nil.
func asProblems(err error) rules.Problems {
	var problems rules.Problems
	if err != nil && !errors.As(err, &problems) {
		problems = rules.Problems{{What: err.Error()}}
	}
	return problems
}
