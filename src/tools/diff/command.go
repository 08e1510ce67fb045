package diff

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/service/heap"
	"ratelimit/src/tools/check"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/simulate"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit diff`.
type options struct {
	ruleOptions compile.Options
	requests    string // names the recording; empty for none, - for standard input.
	format      string
	top         int
	exitZero    bool
	replay      simulate.Config
}

// Command returns `ratelimit diff`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, needBoth,
		func(cmd *cobra.Command, args []string) error { return opt.run(cmd, args[0], args[1]) })
	f := cmd.Flags()
	f.StringVar(&opt.requests, "requests", "", "file with recorded requests, as for simulate; - for stdin")
	command.Choice(cmd, &opt.format, "format", "text, markdown for a pull request, or json", "text", "markdown", "json")
	command.Number(f, &opt.top, "top", 10, 0, maxListedSubjects, "most subjects that text and markdown list, 0 to 1000")
	f.BoolVar(&opt.exitZero, "exit-zero", false, "exit with 0 also if something changes")
	f.BoolVar(&opt.ruleOptions.MergeDomains, "merge-domain-configs", false, "allow one domain in several files")
	opt.replay.AddFlags(cmd)
	return cmd
}

// needBoth returns an error unless args are two paths.
func needBoth(_ *cobra.Command, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("name the rules before and after, `ratelimit diff BEFORE AFTER`: two directories or files, not %d",
			len(args))
	}
	return nil
}

// maxListedRules is how many changed rules text and Markdown list.
const maxListedRules = 100

// run compares the rules at the paths before and after, and prints the report.
func (opt *options) run(cmd *cobra.Command, before, after string) error {
	var err error
	old := side{check.Load([]string{before}, opt.ruleOptions), before}
	now := side{check.Load([]string{after}, opt.ruleOptions), after}
	for _, s := range []*side{&old, &now} {
		if s.Set == nil {
			s.Report(cmd.ErrOrStderr())
			err = errors.Join(err, fmt.Errorf("%s: %s", s.root, s.Summary()))
		}
	}
	if err != nil {
		return command.InvalidInput(err)
	}
	report := compare(&old, &now, rules.KeyFormat{EscapeKeys: opt.replay.EscapeKeys})
	if opt.requests != "" {
		ctx, stop := command.UntilSignal(cmd.Context())
		defer stop()
		if report.Replay, err = opt.replayFile(ctx, cmd, old.Set, now.Set); err != nil {
			return command.InvalidInput(err)
		}
	}
	if err := opt.write(report, cmd.OutOrStdout()); err != nil {
		return command.InvalidInput(err)
	}
	if report.Changed && !opt.exitZero {
		return command.Exit{Code: command.ExitError}
	}
	return nil
}

func (opt *options) write(report *Report, w io.Writer) (err error) {
	most := listed{rules: maxListedRules, subjects: opt.top}
	switch opt.format {
	case "json":
		return output.WriteJSON(w, report)
	case "markdown":
		_, err = io.WriteString(w, report.Markdown(most))
	default:
		_, err = io.WriteString(w, report.Text(most))
	}
	return err
}

func (opt *options) replayFile(ctx context.Context, cmd *cobra.Command, before, after *rules.Set) (*Replay, error) {
	end, err := opt.replay.OpenInput(cmd, opt.requests)
	if err != nil {
		return nil, err
	}
	defer end()
	for _, set := range []**rules.Set{&before, &after} {
		if *set, err = opt.replay.WithLimits(*set); err != nil {
			return nil, err
		}
	}
	gc := heap.Tune(os.LookupEnv)
	defer gc.Stop()
	show := command.ProgressLine(cmd.ErrOrStderr())
	defer show("")
	return replay(ctx, before, after, opt.replay, opt.replay.MaxMemoryBytes, func(requests uint64, at time.Time) {
		if requests%1024 == 0 {
			show("%d requests, %s ", requests, at.Format(time.RFC3339))
		}
	})
}
