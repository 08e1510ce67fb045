package ruletest

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/spf13/cobra"

	"ratelimit/src/operator/output"
	"ratelimit/src/tools/command"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit test`.
type options struct {
	run     string
	verbose bool
	format  string
	asJSON  bool // another way to write format json.

	pick *regexp.Regexp // set by check, from run; nil picks all tests.
}

// Command returns `ratelimit test`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, opt.check, opt.test)
	f := cmd.Flags()
	f.StringVar(&opt.run, "run", "", "only the tests whose name matches this regular expression")
	f.BoolVarP(&opt.verbose, "verbose", "v", false, "print the tests that pass, too")
	command.Choice(cmd, &opt.format, "format", "how results are printed: text, json, or github", "text", "json", "github")
	f.BoolVar(&opt.asJSON, "json", false, "the same as --format json")
	return cmd
}

func (opt *options) check(_ *cobra.Command, paths []string) (err error) {
	if len(paths) == 0 {
		return errors.New("name files of tests, or directories that have some")
	}
	if opt.run != "" {
		if opt.pick, err = regexp.Compile(opt.run); err != nil {
			return fmt.Errorf("--run: %w", err)
		}
	}
	return nil
}

func (opt *options) test(cmd *cobra.Command, paths []string) error {
	sum := RunPaths(cmd.Context(), paths, opt.pick)
	if err := opt.print(cmd.OutOrStdout(), sum); err != nil {
		return err
	}
	if opt.pick != nil && sum.Passed+sum.Failed == 0 && sum.Bad == 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "ratelimit: test: no test has a name that matches %s\n", opt.run)
	}
	switch {
	case sum.Bad > 0:
		return command.Exit{Code: command.ExitInput}
	case sum.Failed > 0:
		return command.Exit{Code: command.ExitError}
	}
	return nil
}

func (opt *options) print(out io.Writer, sum *Summary) error {
	if opt.asJSON || opt.format == "json" {
		return output.WriteJSON(out, sum)
	}
	for i := range sum.Files {
		text := sum.Files[i].Text(opt.verbose)
		if opt.format == "github" {
			text = sum.Files[i].GitHub()
		}
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
	}
	return nil
}
