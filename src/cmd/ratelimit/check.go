package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
)

func checkCommand(std stdio) *cobra.Command {
	var dir string
	var opt rules.Options
	cmd := &cobra.Command{
		Use:   "check DIR|FILE...",
		Short: "Validate rule files before they ship",
		Long: `check reads rule files as the server would and prints every problem at once, as
file:line:col: what is wrong; how to mend it. Warnings name what is legal but
cannot do what it was meant to.

Exit status 0 when the files are good, 1 when they are not.`,
		Example: `  ratelimit check examples/ratelimit/config
  ratelimit check one.yaml other.yaml
  ratelimit check -config_dir rules -merge_domain_configs`,
		RunE: func(_ *cobra.Command, args []string) error {
			if dir != "" {
				args = append(args, dir)
			}
			if len(args) == 0 {
				return errors.New("check: name a directory or files to check")
			}
			return check(std, args, opt)
		},
	}
	cmd.Flags().StringVar(&dir, "config-dir", "", "a directory to check, as envoyproxy/ratelimit's tool names it")
	cmd.Flags().BoolVar(&opt.MergeDomains, "merge-domain-configs", false, "allow one domain in several files")
	return cmd
}

func check(std stdio, paths []string, opt rules.Options) error {
	var files []rules.File
	var problems, warnings rules.Problems
	for _, path := range paths {
		more, odd, err := filerules.Read(path, false)
		files = append(files, more...)
		warnings = append(warnings, odd...)
		problems = append(problems, asProblems(err)...)
	}
	set, odd, err := rules.Load(files, opt)
	warnings = append(warnings, odd...)
	problems = append(problems, asProblems(err)...)
	for _, w := range warnings {
		fmt.Fprintf(std.out, "warning: %v\n", w)
	}
	for _, p := range problems {
		fmt.Fprintf(std.out, "error: %v\n", p)
	}
	if len(problems) > 0 {
		fmt.Fprintf(std.err, "ratelimit: check: %s in %s\n", plural(len(problems), "problem"), plural(len(files), "file"))
		return exit{exitError}
	}
	_, err = fmt.Fprintf(std.out, "ok: %s, %s, %s, %s\n",
		plural(len(files), "file"), plural(len(set.Domains()), "domain"), plural(len(set.Rules()), "rule"), plural(len(warnings), "warning"))
	return err
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
