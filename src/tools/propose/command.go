package propose

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/algorithm"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/service/heap"
	"ratelimit/src/tools/check"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/simulate"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit propose`.
type options struct {
	ruleOptions  compile.Options
	by           []string
	domain, unit string
	atMost       string  // the flag
	refuseAtMost float64 // what atMost says, in percent
	limits       []string
	tryLimits    []uint64 // what limits says
	asJSON       bool
	output       string
	replay       simulate.Config
}

// Command returns `ratelimit propose`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, opt.check, opt.run)
	f := cmd.Flags()
	f.StringVar(&opt.atMost, "refuse-at-most", "0.1%", "the part of the subjects that a proposed limit may refuse")
	f.StringVarP(&opt.output, "output", "o", "",
		"new file, or directory if RULES is one, for the rules with the proposed limits")
	f.StringSliceVar(&opt.by, "by", nil, "without RULES: count by the values of these keys, such as user or user,path")
	f.StringVar(&opt.domain, "domain", "", "with --by: the domain to propose a rule for")
	command.Choice(cmd, &opt.unit, "unit", "with --by: the window",
		"minute", "second", "hour", "day", "week", "month", "year")
	f.StringSliceVar(&opt.limits, "limit", nil, "tell also what these limits would have refused, such as 10,50")
	f.BoolVar(&opt.asJSON, "json", false, "print one JSON object")
	f.BoolVar(&opt.ruleOptions.MergeDomains, "merge-domain-configs", false, "allow one domain in several files")
	f.BoolVar(&opt.replay.AllowClockSteps, "allow-clock-steps", false,
		"take lines of the recording that are earlier than those before them")
	return cmd
}

// check checks the arguments and flags, and sets what they say.
func (opt *options) check(cmd *cobra.Command, args []string) (err error) {
	given := cmd.Flags().Changed
	switch {
	case len(args) == 0 || len(args) > 2:
		return fmt.Errorf("name a recording, and rules or --by: `ratelimit propose RECORDING RULES`; got %s",
			output.Plural(len(args), "argument"))
	case len(args) == 1 && !given("by"):
		return errors.New("name rules behind the recording, or keys with --by")
	case len(args) == 2 && (given("by") || given("domain") || given("unit")):
		return errors.New("--by, --domain and --unit go without RULES, whose rules say what to count by and in which windows")
	case given("by") && (opt.domain == "" || slices.Contains(opt.by, "")):
		return errors.New("--by: write keys, and the domain with --domain: --by user --domain shop")
	}
	text, isPercent := strings.CutSuffix(opt.atMost, "%")
	opt.refuseAtMost, err = strconv.ParseFloat(text, 64)
	if err != nil || !isPercent || !(opt.refuseAtMost >= 0 && opt.refuseAtMost < 100) {
		return fmt.Errorf("--refuse-at-most %s: write a percentage from 0%% to below 100%%, such as 0.1%%", opt.atMost)
	}
	for _, text := range opt.limits {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil || n > algorithm.MaxCapacity {
			return fmt.Errorf("--limit %s: write whole numbers from 0 on, such as 10,50", text)
		}
		opt.tryLimits = append(opt.tryLimits, n)
	}
	if opt.output != "" {
		return checkOutput(opt.output)
	}
	return nil
}

func (opt *options) run(cmd *cobra.Command, args []string) error {
	files, root, err := opt.ruleFiles(cmd, args[1:])
	if err != nil {
		return err
	}
	set, _, err := filerules.Load(files, opt.ruleOptions)
	if err != nil {
		return command.InvalidInput(err)
	}
	end, err := opt.replay.OpenInput(cmd, args[0])
	if err != nil {
		return command.InvalidInput(err)
	}
	defer end()
	ctx, stop := command.UntilSignal(cmd.Context())
	defer stop()
	gc := heap.Tune(os.LookupEnv)
	defer gc.Stop()
	show := command.ProgressLine(cmd.ErrOrStderr())
	t, err := measure(ctx, set, opt.replay, maxSubjects, func(t *traffic) {
		if t.lines%1024 == 0 {
			show("%d requests, %s, %d subjects ", t.lines, t.to.Format(time.RFC3339), t.sampler.count)
		}
	})
	show("")
	if _, ok := errors.AsType[*simulate.InputError](err); ok {
		return command.InvalidInput(err)
	}
	if err != nil {
		return err
	}
	rep := t.report(set, opt.refuseAtMost, opt.tryLimits, root == "")
	rep.Source = opt.replay.Name
	return opt.write(cmd, rep, files, root)
}

// ruleFiles returns the rule files at paths, or one that --by and --domain describe. root is the path; empty for --by.
// It prints what is wrong with the files.
func (opt *options) ruleFiles(cmd *cobra.Command, paths []string) (files []filerules.File, root string, err error) {
	if len(paths) == 0 {
		return []filerules.File{{Name: "proposed.yaml", Data: byKeys(opt.domain, opt.by, opt.unit)}}, "", nil
	}
	loaded := check.Load(paths, opt.ruleOptions)
	loaded.Report(cmd.ErrOrStderr())
	if loaded.Set == nil {
		return nil, "", command.Exit{Code: command.ExitInput}
	}
	files, _, err = filerules.Read(paths[0])
	return files, paths[0], command.InvalidInput(err)
}

// write writes the rule files, if --output is given, and prints the report.
func (opt *options) write(cmd *cobra.Command, rep *Report, files []filerules.File, root string) error {
	if opt.output != "" {
		changed, err := rep.propose(files, opt.ruleOptions)
		if err != nil {
			return err
		}
		info, _ := os.Stat(root) // With --by there is no root, and no directory.
		if err := write(changed, root, opt.output, info != nil && info.IsDir()); err != nil {
			return fmt.Errorf("--output: %w", err)
		}
		rep.Output = opt.output
	}
	if opt.asJSON {
		return output.WriteJSON(cmd.OutOrStdout(), rep)
	}
	return rep.Write(cmd.OutOrStdout())
}
