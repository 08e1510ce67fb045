// Command ratelimit is the rate limit service and its tools. Without arguments it serves,
// configured by its environment.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
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
	exitInput = 2 // no such command or argument; simulate, test: their input is wrong
	exitOver  = 3 // client: the request is over its limit
)

// exit is an error that ends the program with a status. If error is nil, the command has
// printed why.
type exit struct {
	error
	code int
}

// run runs the program with its arguments, the first being its name, and
// returns the exit status.
func run(ctx context.Context, args []string, std stdio) int {
	return execute(ctx, command(std), args, std.err)
}

// execute runs a command tree, whose input a test may have replaced.
func execute(ctx context.Context, root *cobra.Command, args []string, errOut io.Writer) int {
	words := arguments(args)
	root.SetArgs(words)
	err := checkCommandWord(root, words)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err == nil {
		return exitOK
	}
	e, ok := errors.AsType[exit](err)
	if !ok {
		e = exit{err, exitError}
	}
	if e.error != nil {
		fmt.Fprintln(errOut, "ratelimit:", e.error)
	}
	return e.code
}

func command(std stdio) *cobra.Command {
	serve := serveCommand(std)
	root := &cobra.Command{
		Use:   "ratelimit",
		Short: "A rate limit service for Envoy and other callers",
		Long: `ratelimit answers one question for thousands of callers at once: may this
happen now? It speaks Envoy's RateLimitService v3 over gRPC, and the same as
JSON over HTTP.

Without a command it serves, as ` + "`ratelimit serve`" + ` does.`,
		Example: `  ratelimit serve --config examples/ratelimit/config
  ratelimit divvy examples/divvy/example-config.ini
  ratelimit check rules/
  ratelimit test tests/
  ratelimit explain --config rules/ --domain rl --descriptors foo=bar
  ratelimit client -domain rl -descriptors foo=bar
  ratelimit simulate --config rules/ requests.jsonl`,
		Args:          noWords,
		RunE:          serve.RunE,
		Version:       versionText(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.Flags().AddFlagSet(serve.Flags())
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetOut(std.out)
	root.SetErr(std.err)
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	root.AddCommand(serve, clientCommand(std), checkCommand(std), divvyCommand(std), explainCommand(std), testCommand(std),
		simulateCommand(std), schemaCommand(std), benchCommand(std), versionCommand(std), upstreamClientCommand(std))
	return root
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Stamped by the linker: -X main.version=v1.2.3 -X main.commit=abc123.
var (
	version = "dev"
	commit  = ""
)

func versionCommand(std stdio) *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit and Go release (also --version)",
		Example: "  ratelimit version",
		Args:    noWords,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(std.out, versionText())
			return err
		},
	}
}

// versionText is what `ratelimit version` and --version print.
func versionText() string {
	return fmt.Sprintf("ratelimit %s (commit %s, %s, %s/%s)", version, revision(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// revision is the stamped commit, or the one Go noted while building.
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
