// Package command has what the commands share: help texts, flags, exit codes, signals and the line of progress.
package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/operator/output"
)

// Exit codes, the same for every command.
const (
	ExitOK    = 0
	ExitError = 1
	// an unknown command, an invalid argument or flag; diff, simulate and test: also an invalid file or line of input
	ExitInput     = 2
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

// New returns a command with the texts of help: a line of usage, a line of summary, an empty line, a description,
// "Examples:" and examples. The caller adds flags. check checks the arguments and the flags: the program exits with
// ExitInput for its error, as it does for an unknown flag. Nil: the command takes no arguments. What run writes to the
// outputs of the command cannot control a terminal; output.Raw takes that away.
func New(help string, check cobra.PositionalArgs, run func(cmd *cobra.Command, args []string) error) *cobra.Command {
	if check == nil {
		check = NoArguments
	}
	head, body, _ := strings.Cut(help, "\n\n")
	long, examples, _ := strings.Cut(body, "Examples:\n")
	cmd := &cobra.Command{Long: strings.TrimSpace(long), Example: strings.TrimRight(examples, "\n")}
	cmd.Use, cmd.Short, _ = strings.Cut(head, "\n")
	cmd.Args = func(cmd *cobra.Command, args []string) error { return InvalidInput(check(cmd, args)) }
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cmd.SetOut(output.Escaping(cmd.OutOrStdout()))
		cmd.SetErr(output.Escaping(cmd.ErrOrStderr()))
		return run(cmd, args)
	}
	cmd.SetFlagErrorFunc(invalidFlags)
	cmd.SetGlobalNormalizationFunc(normalize)
	cmd.Flags().SortFlags = false
	return cmd
}

// NoArguments is the check of commands that take only flags.
func NoArguments(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return fmt.Errorf("takes no argument %q; `%s --help` shows what it takes", args[0], cmd.CommandPath())
}

// UntilSignal returns a context that ends at Ctrl-C, SIGTERM and SIGHUP, which nohup makes the program ignore. A second
// signal ends the program.
func UntilSignal(ctx context.Context) (context.Context, context.CancelFunc) {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, signals...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// ProgressLine returns a function that overwrites the last line of the terminal w with formatted text, at most twice a
// second; "" clears the line. If w is no terminal, the function does nothing.
func ProgressLine(w io.Writer) func(format string, args ...any) {
	w = output.Raw(w)
	if !output.IsTerminal(w) {
		return func(string, ...any) {}
	}
	text := output.Escaping(w)
	shownAt := time.Now()
	return func(format string, args ...any) {
		if format != "" && time.Since(shownAt) < time.Second/2 {
			return
		}
		shownAt = time.Now()
		fmt.Fprint(w, "\r\x1b[K")
		fmt.Fprintf(text, format, args...)
	}
}
