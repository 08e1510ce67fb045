package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
)

func checkCommand(std stdio) *cobra.Command {
	var dir, backend string
	var opt rules.Options
	cmd := &cobra.Command{
		Use:   "check DIR|FILE...",
		Short: "Validate rule files before they ship",
		Long: `check reads rule files as the server would and prints every problem at once, as
file:line:col: what is wrong; how to mend it. Warnings name what is legal but
cannot do what it was meant to. Tests of rules (ratelimit test) may stand among
them and are passed over. All documents of a YAML file are checked, although the
server reads the first alone.

Exit status 0 when the files are good, 1 when they are not.`,
		Example: `  ratelimit check examples/ratelimit/config
  ratelimit check one.yaml other.yaml
  ratelimit check --backend memcache rules/
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
				opt.Store = storeCan(strings.TrimSuffix(backend, "d"))
			default:
				return fmt.Errorf("check: --backend %s: write memory, redis or memcache", backend)
			}
			opt.AllDocuments = true
			return check(std, args, opt)
		},
	}
	cmd.Flags().StringVar(&dir, "config-dir", "", "a directory to check, as envoyproxy/ratelimit's tool names it")
	cmd.Flags().StringVar(&backend, "backend", "memory", "the BACKEND_TYPE they are for: memory and redis can count by all rules, memcache by some")
	cmd.Flags().BoolVar(&opt.MergeDomains, "merge-domain-configs", false, "allow one domain in several files")
	return cmd
}

func check(std stdio, paths []string, opt rules.Options) error {
	l := loadPaths(paths, opt)
	l.report(std.out)
	if l.set == nil {
		fmt.Fprintf(std.err, "ratelimit: check: %s in %s\n", plural(len(l.problems), "problem"), plural(l.files, "file"))
		return exit{exitError}
	}
	_, err := fmt.Fprintf(std.out, "ok: %s, %s, %s, %s\n",
		plural(l.files, "file"), plural(len(l.set.Domains()), "domain"), plural(len(l.set.Rules()), "rule"), plural(len(l.warnings), "warning"))
	return err
}

// loaded is what came of rule files that were named on the command line.
type loaded struct {
	set                *rules.Set // nil: there are problems
	files              int
	problems, warnings rules.Problems
}

func loadPaths(paths []string, opt rules.Options) (l loaded) {
	var files []rules.File
	for _, path := range paths {
		more, odd, err := filerules.Read(path, false)
		files = append(files, more...)
		l.warnings = append(l.warnings, odd...)
		l.problems = append(l.problems, asProblems(err)...)
	}
	set, odd, err := rules.Load(files, opt)
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
