package ruletest

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/spf13/cobra"

	"ratelimit/src/tools/command"
	"ratelimit/src/tools/output"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit test`.
type options struct {
	run     string
	verbose bool
	format  string
	asJSON  bool // asJSON is another way to write format json.
}

// Command returns `ratelimit test`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, opt.test)
	cmd.Args = cobra.ArbitraryArgs
	cmd.SetFlagErrorFunc(command.InvalidFlags)
	f := cmd.Flags()
	f.StringVar(&opt.run, "run", "", "only the tests whose name matches this regular expression")
	f.BoolVarP(&opt.verbose, "verbose", "v", false, "print the tests that pass, too")
	f.StringVar(&opt.format, "format", "text", "how results are printed: text, json, or github")
	f.BoolVar(&opt.asJSON, "json", false, "the same as --format json")
	return cmd
}

func (opt *options) test(cmd *cobra.Command, paths []string) error {
	if len(paths) == 0 {
		return command.InvalidInput(errors.New("name files of tests, or directories that have some"))
	}
	if opt.asJSON {
		opt.format = "json"
	}
	if !slices.Contains([]string{"text", "json", "github"}, opt.format) {
		return command.InvalidInput(fmt.Errorf("--format %s: write text, json or github", opt.format))
	}
	var pick *regexp.Regexp
	if opt.run != "" {
		var err error
		if pick, err = regexp.Compile(opt.run); err != nil {
			return command.InvalidInput(fmt.Errorf("--run: %w", err))
		}
	}
	sum := RunPaths(cmd.Context(), paths, pick)
	if err := opt.print(cmd.OutOrStdout(), sum); err != nil {
		return err
	}
	if pick != nil && sum.Passed+sum.Failed == 0 && sum.Bad == 0 {
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
	if opt.format == "json" {
		return output.WriteJSON(out, sum)
	}
	for i := range sum.Files {
		text := sum.Files[i].GitHub
		if opt.format == "text" {
			text = func() string { return sum.Files[i].Text(opt.verbose) }
		}
		if _, err := io.WriteString(out, text()); err != nil {
			return err
		}
	}
	return nil
}
