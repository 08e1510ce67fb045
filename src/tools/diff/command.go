package diff

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/backend/memory"
	"ratelimit/src/rules"
	"ratelimit/src/service/heap"
	"ratelimit/src/tools/check"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/output"
	"ratelimit/src/tools/simulate"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit diff`.
type options struct {
	ruleOptions    rules.Options
	requests       string // requests names the recording; empty for none, - for standard input.
	format         string
	keyFormat      string
	top            int
	exitZero       bool
	maxMemoryBytes int64
	replay         simulate.Config
}

// Command returns `ratelimit diff`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, func(cmd *cobra.Command, args []string) error { return opt.run(cmd, args[0], args[1]) })
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		return command.InvalidInput(cobra.ExactArgs(2)(cmd, args))
	}
	cmd.SetFlagErrorFunc(command.InvalidFlags)
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&opt.requests, "requests", "", "file with recorded requests, as for simulate; - for stdin")
	f.StringVar(&opt.format, "format", "text", "text, markdown for a pull request, or json")
	f.IntVar(&opt.top, "top", 10, "most subjects that text and markdown list, 0 to 1000")
	f.BoolVar(&opt.exitZero, "exit-zero", false, "exit with 0 also if something changes")
	f.BoolVar(&opt.ruleOptions.MergeDomains, "merge-domain-configs", false, "allow one domain in several files")
	f.StringVar(&opt.keyFormat, "key-format", "v1", "how keys are written: v1, or v2")
	f.BoolVar(&opt.replay.AllOrNothing, "stop-when-over", false, "charge a request only if none of its descriptors is over the limit")
	f.BoolVar(&opt.replay.AllowClockSteps, "allow-clock-steps", false, "take lines of the recording that are earlier than those before them")
	f.Int64Var(&opt.maxMemoryBytes, "memory-max-bytes", 1<<30, "cap on the memory of counters of each side; a replay that needs more fails")
	return cmd
}

// maxListedRules is how many changed rules text and Markdown list.
const maxListedRules = 100

// run compares the rules at the paths before and after, and prints the report.
func (opt *options) run(cmd *cobra.Command, before, after string) error {
	write, err := opt.writer()
	if err != nil {
		return command.InvalidInput(err)
	}
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
		ctx, stop := command.UntilSignal(cmd.Context(), syscall.SIGHUP)
		defer stop()
		if report.Replay, err = opt.replayFile(ctx, cmd, old.Set, now.Set); err != nil {
			return command.InvalidInput(err)
		}
	}
	if err := write(report, cmd.OutOrStdout()); err != nil {
		return command.InvalidInput(err)
	}
	if report.Changed && !opt.exitZero {
		return command.Exit{Code: command.ExitError}
	}
	return nil
}

// writer checks the flags, and returns the function that writes the report.
func (opt *options) writer() (func(*Report, io.Writer) error, error) {
	switch opt.keyFormat {
	case "v1":
	case "v2":
		opt.replay.EscapeKeys = true
	default:
		return nil, fmt.Errorf("--key-format %s: write v1 or v2", opt.keyFormat)
	}
	if opt.top < 0 || opt.top > maxListedSubjects {
		return nil, fmt.Errorf("--top %d: write 0 to %d", opt.top, maxListedSubjects)
	}
	if opt.maxMemoryBytes < memory.MinBytes {
		return nil, fmt.Errorf("--memory-max-bytes %d: write %d or more", opt.maxMemoryBytes, memory.MinBytes)
	}
	most := listed{rules: maxListedRules, subjects: opt.top}
	switch opt.format {
	case "text":
		return func(r *Report, w io.Writer) error { return r.WriteText(w, most) }, nil
	case "markdown":
		return func(r *Report, w io.Writer) error { return r.WriteMarkdown(w, most) }, nil
	case "json":
		return func(r *Report, w io.Writer) error { return output.WriteJSON(w, r) }, nil
	}
	return nil, fmt.Errorf("--format %s: write text, markdown or json", opt.format)
}

// replayFile replays the recording against both sets of rules.
func (opt *options) replayFile(ctx context.Context, cmd *cobra.Command, before, after *rules.Set) (*Replay, error) {
	cfg := opt.replay
	cfg.Name, cfg.In = "stdin", cmd.InOrStdin()
	if opt.requests != "-" {
		file, err := os.Open(opt.requests)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // A file that was only read loses nothing.
		cfg.Name, cfg.In = opt.requests, file
	}
	gc := heap.Tune(os.LookupEnv)
	defer gc.Stop()
	show, shownAt := command.ProgressLine(cmd.ErrOrStderr()), time.Now()
	defer show("")
	return replay(ctx, before, after, cfg, opt.maxMemoryBytes, func(requests uint64, at time.Time) {
		if requests%1024 == 0 && time.Since(shownAt) >= time.Second {
			shownAt = time.Now()
			show("%d requests, %s ", requests, at.Format(time.RFC3339))
		}
	})
}
