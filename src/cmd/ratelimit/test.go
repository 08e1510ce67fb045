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
	cmd := newCommand("test", func(cmd *cobra.Command, args []string) error { return opt.test(cmd.Context(), std, args) })
	cmd.Args = cobra.ArbitraryArgs
	badInputFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&opt.run, "run", "", "only the tests whose name matches this regular expression")
	f.BoolVarP(&opt.verbose, "verbose", "v", false, "print the tests that pass, too")
	f.BoolVar(&opt.asJSON, "json", false, "print one object")
	return cmd
}

func (opt *testOptions) test(ctx context.Context, std stdio, paths []string) error {
	if len(paths) == 0 {
		return badInput(errors.New("name files of tests, or directories that have some"))
	}
	var pick *regexp.Regexp
	if opt.run != "" {
		var err error
		if pick, err = regexp.Compile(opt.run); err != nil {
			return badInput(fmt.Errorf("--run: %w", err))
		}
	}
	sum := ruletest.RunPaths(ctx, paths, pick)
	if err := opt.print(std, sum); err != nil {
		return err
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
