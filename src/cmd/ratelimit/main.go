// Command ratelimit is the rate limit service and its tools. Without arguments it serves,
// configured by its environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func main() {
	os.Exit(run(context.Background(), os.Args, stdio{os.Stdout, os.Stderr}))
}

// stdio is where a command writes: answers to out, everything else to err.
type stdio struct{ out, err io.Writer }

// Exit codes, the same for every command.
const (
	exitOK    = 0
	exitError = 1
	exitInput = 2 // an unknown command or argument; simulate and test: wrong input, too
	exitOver  = 3 // client: the request is over its limit
)

// exit is an error with an exit code. If error is nil, the command has printed why.
type exit struct {
	error
	code int
}

// badInput returns err with exitInput.
func badInput(err error) error { return exit{err, exitInput} }

// badInputFlags makes cmd exit with exitInput if its flags are wrong.
func badInputFlags(cmd *cobra.Command) {
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return badInput(err) })
}

// run runs the program and returns the exit code. args[0] is the program's name.
func run(ctx context.Context, args []string, std stdio) int {
	return execute(ctx, command(std), args, std.err)
}

// execute runs the command of root that args name and returns the exit code. It prints an
// error with the name of the command.
func execute(ctx context.Context, root *cobra.Command, args []string, errOut io.Writer) int {
	words := arguments(args)
	root.SetArgs(words)
	cmd, err := root, checkCommandWord(root, words)
	if err == nil {
		cmd, err = root.ExecuteContextC(ctx)
	}
	if err == nil {
		return exitOK
	}
	e, ok := errors.AsType[exit](err)
	if !ok {
		e = exit{err, exitError}
	}
	if e.error != nil {
		fmt.Fprintf(errOut, "%s: %v\n", strings.ReplaceAll(cmd.CommandPath(), " ", ": "), e.error)
	}
	return e.code
}

// command returns the tree of all commands.
func command(std stdio) *cobra.Command {
	serve := serveCommand(std)
	root := newCommand("ratelimit", serve.RunE)
	root.Version = versionText()
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Flags().AddFlagSet(serve.Flags())
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetOut(std.out)
	root.SetErr(std.err)
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	version := newCommand("version", func(*cobra.Command, []string) error {
		_, err := fmt.Fprintln(std.out, versionText())
		return err
	})
	root.AddCommand(serve, clientCommand(std), checkCommand(std), divvyCommand(std), explainCommand(std), testCommand(std),
		simulateCommand(std), schemaCommand(std), benchCommand(std), version, upstreamClientCommand(std))
	return root
}

// untilSignal returns a context that ends at Ctrl-C, SIGTERM and the given signals. A
// second signal ends the program.
func untilSignal(ctx context.Context, more ...os.Signal) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, append(more, os.Interrupt, syscall.SIGTERM)...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// Stamped by the linker: -X main.version=v1.2.3 -X main.commit=abc123.
var (
	version = "dev"
	commit  = ""
)

// versionText returns the text of `ratelimit version` and --version.
func versionText() string {
	return fmt.Sprintf("ratelimit %s (commit %s, %s, %s/%s)", version, revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// revision returns the stamped commit, else the one that Go recorded in the binary.
func revision() string {
	if commit != "" {
		return commit
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return "unknown"
}
