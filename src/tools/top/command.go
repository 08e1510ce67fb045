// Package top shows what a running service admits and denies: live in a terminal, or once as text or JSON.
package top

import (
	"context"
	_ "embed"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"ratelimit/src/operator"
	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/output"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

//go:embed help.txt
var help string

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
		return opt.service.AskAll(cmd, func(ctx context.Context, clients []*debugport.Client) error {
			return opt.run(ctx, cmd, clients)
		})
	})
	f := cmd.Flags()
	f.BoolVar(&opt.once, "once", false, "print one snapshot as text and exit; the default if the output is no terminal")
	f.BoolVar(&opt.asJSON, "json", false, "print one snapshot as a JSON object and exit")
	command.Choice(cmd, &opt.sortBy, "sort", "how domains and rules are sorted: admitted, denied, or name",
		sortAdmitted, sortDenied, sortName)
	command.Choice(cmd, &opt.filter.window, "window", "time of the hottest and most denied subjects: minute, hour or day",
		operator.WindowMinute, operator.WindowHour, operator.WindowDay)
	f.StringVar(&opt.filter.domain, "domain", "", "show only this domain")
	f.StringVar(&opt.filter.rule, "rule", "", "show only the rule with this full name, as in the column RULE")
	command.Number(f, &opt.filter.subjects, "limit", 20, 1, operator.MaxListed,
		"most rules, and most subjects of each kind: 1 to 1000")
	opt.service.AddReplicaFlags(f)
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	return cmd
}

// run shows the service: live in a terminal that knows control sequences, else one snapshot.
func (opt *options) run(ctx context.Context, cmd *cobra.Command, clients []*debugport.Client) error {
	next := func(ctx context.Context) (*snapshot, error) {
		s, err := fetchAll(ctx, clients, opt.filter)
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

// refreshInterval is how often the live view asks the service.
const refreshInterval = time.Second

// Control sequences of terminals. The program writes no others.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l" // the second screen, without a cursor
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	startOfPage = "\x1b[H"
	clearLine   = "\x1b[K"
	restOfPage  = "\x1b[J"
)

// watch draws s and then, once a second, what next returns, on the second screen of the terminal out, until ctx ends.
// After an error of next the last snapshot stays, with its age and the error. size returns the width and the height in
// cells.
func watch(ctx context.Context, out io.Writer, size func() (width, height int), s *snapshot,
	next func(context.Context) (*snapshot, error),
) (err error) {
	if _, err := io.WriteString(out, enterScreen); err != nil {
		return err
	}
	defer func() {
		if _, leaveErr := io.WriteString(out, leaveScreen); err == nil {
			err = leaveErr
		}
	}()
	refresh := time.NewTicker(refreshInterval)
	defer refresh.Stop()
	at := time.Now()
	var problem error
	for {
		width, height := size()
		if _, err := io.WriteString(out, frame(s.screen(width, height, time.Since(at), problem), width)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-refresh.C:
		}
		var newer *snapshot
		if newer, problem = next(ctx); problem == nil {
			s, at = newer, time.Now()
		}
	}
}

// frame returns the bytes that draw lines on a screen. It shortens lines, and quotes those that are not printable.
func frame(lines []string, width int) string {
	var b strings.Builder
	b.WriteString(startOfPage)
	for i, line := range lines {
		if i > 0 {
			b.WriteString("\r\n")
		}
		// In this order, because after a full line the cursor still stands on its last character.
		b.WriteString(clearLine + output.Shorten(output.Printable(line), width))
	}
	return b.String() + restOfPage
}

// terminalSize returns the size of out in cells, or 80 by 24 if the terminal does not tell.
func terminalSize(out *os.File) (width, height int) {
	width, height, err := term.GetSize(int(out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		return 80, 24
	}
	return width, height
}
