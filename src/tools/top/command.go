// Package top shows what a running service admits and denies: live in a terminal, or once as text or JSON.
package top

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/service"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/debugport"
	"ratelimit/src/tools/output"
)

//go:embed help.txt
var help string

// The names of --window.
const (
	windowMinute = admin.WindowMinute
	windowHour   = admin.WindowHour
)

// options are the flags of `ratelimit top`.
type options struct {
	port   debugport.Options
	filter filter
	sortBy string
	limit  int
	once   bool
	asJSON bool
}

// Command returns `ratelimit top`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, func(cmd *cobra.Command, args []string) error {
		return opt.run(cmd, debugport.AddressOf(args))
	})
	cmd.Args = cobra.MaximumNArgs(1)
	f := cmd.Flags()
	f.SortFlags = false
	f.BoolVar(&opt.once, "once", false, "print one snapshot as text and exit; the default if the output is no terminal")
	f.BoolVar(&opt.asJSON, "json", false, "print one snapshot as a JSON object and exit")
	f.StringVar(&opt.sortBy, "sort", sortAdmitted, "how domains and rules are sorted: admitted, denied, or name")
	f.StringVar(&opt.filter.window, "window", windowMinute, "time of the hottest and most denied subjects: minute, or hour")
	f.StringVar(&opt.filter.domain, "domain", "", "show only this domain")
	f.StringVar(&opt.filter.rule, "rule", "", "show only the rule with this full name, as in the column RULE")
	f.IntVar(&opt.limit, "limit", 20, "most rules, and most subjects of each kind, of a snapshot: 1 to 1000. The live view scrolls through all")
	opt.port.AddFlags(f)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	for name, words := range map[string][]string{"sort": {sortAdmitted, sortDenied, sortName}, "window": {windowMinute, windowHour}} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)) // It fails only if there is no such flag.
	}
	return cmd
}

// validate returns an error if the value of a flag is not allowed.
func (opt *options) validate() error {
	switch opt.sortBy {
	case sortAdmitted, sortDenied, sortName:
	default:
		return fmt.Errorf("--sort %s: write admitted, denied or name", output.Printable(opt.sortBy))
	}
	switch opt.filter.window {
	case windowMinute, windowHour:
	default:
		return fmt.Errorf("--window %s: write minute or hour", output.Printable(opt.filter.window))
	}
	if opt.limit < 1 || opt.limit > maxListed {
		return fmt.Errorf("--limit %d: write 1 to %d", opt.limit, maxListed)
	}
	return nil
}

// run shows the service at address.
func (opt *options) run(cmd *cobra.Command, address string) error {
	if err := opt.validate(); err != nil {
		return err
	}
	client, err := opt.port.NewClient(address)
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, stop := command.UntilSignal(cmd.Context(), syscall.SIGHUP)
	defer stop()
	opt.filter.subjects = opt.limit
	first, err := fetch(ctx, client, opt.filter)
	if err != nil {
		return err
	}
	out := output.Raw(cmd.OutOrStdout())
	if opt.once || opt.asJSON || !canShowLive(out) {
		return opt.print(cmd.OutOrStdout(), first)
	}
	m := &model{sortBy: opt.sortBy, window: opt.filter.window}
	m.receive(first, nil, time.Now())
	return withTerminal(cmd.InOrStdin(), out.(*os.File), func(sc screen) error {
		return runLive(ctx, m, sc, func(ctx context.Context, window string) (*snapshot, error) {
			f := opt.filter
			f.window = window
			return fetch(ctx, client, f)
		})
	})
}

// canShowLive reports whether out is a terminal that knows control sequences.
func canShowLive(out io.Writer) bool {
	return service.IsTerminal(out) && os.Getenv("TERM") != "dumb"
}

// print writes s to out, as text or JSON.
func (opt *options) print(out io.Writer, s *snapshot) error {
	s.sort(opt.sortBy)
	s.cut(opt.limit)
	if opt.asJSON {
		return output.WriteJSON(out, s)
	}
	cells := 0
	if f, ok := output.Raw(out).(*os.File); ok && service.IsTerminal(f) {
		cells, _ = terminalSize(f)
	}
	_, err := io.WriteString(out, s.text(cells))
	return err
}
