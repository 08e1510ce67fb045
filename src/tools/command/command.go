// Package command has what the commands of the program share: their help texts, exit codes, signals and the line of progress.
package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"ratelimit/src/service"
	"ratelimit/src/tools/output"
)

// Exit codes, the same for every command.
const (
	ExitOK        = 0
	ExitError     = 1
	ExitInput     = 2 // an unknown command or argument; simulate and test: also an invalid flag, file or line of input
	ExitOverLimit = 3 // client: the request is over its limit
)

// Exit is the error of a command that ends the program with a certain exit code.
type Exit struct {
	Code int
	// Reason is printed. Nil: the command has printed all that there is to say.
	Reason error
}

func (e Exit) Error() string { return fmt.Sprint(e.Reason) }

// InvalidInput returns err with the exit code ExitInput; nil for nil.
func InvalidInput(err error) error {
	if err == nil {
		return nil
	}
	return Exit{ExitInput, err}
}

// InvalidFlags makes the program exit with ExitInput if the flags of a command are invalid. It is a cobra FlagErrorFunc.
func InvalidFlags(_ *cobra.Command, err error) error { return InvalidInput(err) }

// New returns a command with the texts of help: a line of usage, a line of summary, an empty line, a description, "Examples:" and
// examples. The caller adds flags, and sets Args if the command takes arguments. What run writes to the outputs of the command cannot
// control a terminal; output.Raw takes that away.
func New(help string, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	head, body, _ := strings.Cut(help, "\n\n")
	long, examples, _ := strings.Cut(body, "Examples:\n")
	escaped := func(cmd *cobra.Command, args []string) error {
		cmd.SetOut(output.Escaping(cmd.OutOrStdout()))
		cmd.SetErr(output.Escaping(cmd.ErrOrStderr()))
		return run(cmd, args)
	}
	cmd := &cobra.Command{RunE: escaped, Long: strings.TrimSpace(long), Example: strings.TrimRight(examples, "\n")}
	cmd.Use, cmd.Short, _ = strings.Cut(head, "\n")
	return cmd
}

// UntilSignal returns a context that ends at Ctrl-C, SIGTERM and the given signals. A second signal ends the program.
func UntilSignal(ctx context.Context, more ...os.Signal) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, append(more, os.Interrupt, syscall.SIGTERM)...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// ProgressLine returns a function that overwrites the last line of the terminal w with formatted text; "" clears the line. If w is
// no terminal, the function does nothing.
func ProgressLine(w io.Writer) func(format string, args ...any) {
	w = output.Raw(w)
	if !service.IsTerminal(w) {
		return func(string, ...any) {}
	}
	text := output.Escaping(w)
	return func(format string, args ...any) {
		fmt.Fprint(w, "\r\x1b[K")
		fmt.Fprintf(text, format, args...)
	}
}
