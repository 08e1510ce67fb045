// Package top shows what a running service admits and denies: live in a terminal, or once as text or JSON.
package top

import (
	"context"
	_ "embed"
	"io"
	"os"

	"github.com/spf13/cobra"

	"ratelimit/src/operator"
	"ratelimit/src/operator/output"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

//go:embed help.txt
var help string

// The names of --window.
const (
	windowMinute = operator.WindowMinute
	windowHour   = operator.WindowHour
)

// options are the flags of `ratelimit top`.
type options struct {
	service reach.Service
	filter  filter
	sortBy  string
	once    bool
	asJSON  bool
}

// Command returns `ratelimit top`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, opt.service.Argument, func(cmd *cobra.Command, _ []string) error {
		return opt.service.Ask(cmd, func(ctx context.Context,
			client *reach.Client,
		) error {
			return opt.run(ctx, cmd, client)
		})
	})
	f := cmd.Flags()
	f.BoolVar(&opt.once, "once", false, "print one snapshot as text and exit; the default if the output is no terminal")
	f.BoolVar(&opt.asJSON, "json", false, "print one snapshot as a JSON object and exit")
	command.Choice(cmd, &opt.sortBy, "sort", "how domains and rules are sorted: admitted, denied, or name",
		sortAdmitted, sortDenied, sortName)
	command.Choice(cmd, &opt.filter.window, "window", "time of the hottest and most denied subjects: minute, or hour",
		windowMinute, windowHour)
	f.StringVar(&opt.filter.domain, "domain", "", "show only this domain")
	f.StringVar(&opt.filter.rule, "rule", "", "show only the rule with this full name, as in the column RULE")
	command.Number(f, &opt.filter.subjects, "limit", 20, 1, maxListed,
		"most rules, and most subjects of each kind: 1 to 1000")
	opt.service.AddDebugFlags(f)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

// run shows the service that client asks: live if the output is a terminal that knows control sequences, else one
// snapshot.
func (opt *options) run(ctx context.Context, cmd *cobra.Command, client *reach.Client) error {
	next := func(ctx context.Context) (*snapshot, error) {
		s, err := fetch(ctx, client, opt.filter)
		if err == nil {
			s.sort(opt.sortBy)
			s.cut(opt.filter.subjects)
		}
		return s, err
	}
	s, err := next(ctx)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if opt.asJSON {
		return output.WriteJSON(out, s)
	}
	width := 0
	if terminal, ok := output.Raw(out).(*os.File); ok && output.IsTerminal(terminal) {
		if !opt.once && os.Getenv("TERM") != "dumb" {
			return watch(ctx, terminal, func() (width, height int) { return terminalSize(terminal) }, s, next)
		}
		width, _ = terminalSize(terminal)
	}
	_, err = io.WriteString(out, s.text(width))
	return err
}
