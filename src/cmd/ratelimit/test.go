package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"github.com/spf13/cobra"

	"ratelimit/src/tools/ruletest"
)

// testOptions are the flags of `ratelimit test`.
type testOptions struct {
	run     string
	verbose bool
	asJSON  bool
}

func testCommand(std stdio) *cobra.Command {
	var opt testOptions
	cmd := &cobra.Command{
		Use:   "test FILE|DIR...",
		Short: "Run tests of rules",
		Long: `test runs tests of rule files: requests at given times, and the expected answers.
Tests use a store in memory and a virtual clock, so a month takes no time. In a
directory and below it, test runs the files *_test.yaml and *_test.yml; they may
be beside the rules. A failure shows what was expected, and which rule applied
and why. docs/tools.md describes the files.

Exit status: 0 if all tests pass, 1 if some fail, 2 if a file of tests or of
rules has problems, which are printed.

--json prints one object; docs/tools.md has its fields.`,
		Example: `  ratelimit test examples/ratelimit/tests
  ratelimit test rules/login_test.yaml --run 'two logins' -v
  ratelimit test . --json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return opt.test(cmd.Context(), std, args)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return exit{fmt.Errorf("test: %w", err), exitInput} })
	f := cmd.Flags()
	f.StringVar(&opt.run, "run", "", "only the tests whose name matches this regular expression")
	f.BoolVarP(&opt.verbose, "verbose", "v", false, "print the tests that pass, too")
	f.BoolVar(&opt.asJSON, "json", false, "print one object")
	return cmd
}

func (opt *testOptions) test(ctx context.Context, std stdio, paths []string) error {
	if len(paths) == 0 {
		return exit{errors.New("test: name files of tests, or directories that have some"), exitInput}
	}
	var pick *regexp.Regexp
	if opt.run != "" {
		var err error
		if pick, err = regexp.Compile(opt.run); err != nil {
			return exit{fmt.Errorf("test: --run: %w", err), exitInput}
		}
	}
	sum := ruletest.RunPaths(ctx, paths, pick)
	if err := opt.print(std, sum); err != nil {
		return fmt.Errorf("test: %w", err)
	}
	if pick != nil && sum.Passed+sum.Failed == 0 && sum.Bad == 0 {
		fmt.Fprintf(std.err, "ratelimit: test: no test has a name that matches %s\n", opt.run)
	}
	switch {
	case sum.Bad > 0:
		return exit{code: exitInput}
	case sum.Failed > 0:
		return exit{code: exitError}
	}
	return nil
}

func (opt *testOptions) print(std stdio, sum *ruletest.Summary) error {
	if opt.asJSON {
		enc := json.NewEncoder(std.out)
		enc.SetEscapeHTML(false)
		enc.SetIndent("", "  ")
		return enc.Encode(sum)
	}
	for i := range sum.Files {
		if _, err := fmt.Fprint(std.out, sum.Files[i].Text(opt.verbose)); err != nil {
			return err
		}
	}
	return nil
}
