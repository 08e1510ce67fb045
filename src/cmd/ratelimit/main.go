// Command ratelimit is the rate limit service and its tools. Without arguments it serves, configured by its
// environment.
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

	"ratelimit/api"
	"ratelimit/src/operator/output"
	"ratelimit/src/tools/bench"
	"ratelimit/src/tools/check"
	"ratelimit/src/tools/client"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/counter"
	"ratelimit/src/tools/denials"
	"ratelimit/src/tools/diff"
	"ratelimit/src/tools/explain"
	"ratelimit/src/tools/health"
	"ratelimit/src/tools/limit"
	"ratelimit/src/tools/man"
	"ratelimit/src/tools/propose"
	"ratelimit/src/tools/record"
	"ratelimit/src/tools/ruletest"
	"ratelimit/src/tools/simulate"
	"ratelimit/src/tools/top"
)

func main() {
	os.Exit(run(context.Background(), commands(os.Stdout, os.Stderr), os.Args))
}

// run runs the command of root that args name and returns the exit code. It prints an error with the name of the
// command. args[0] is the program's name.
func run(ctx context.Context, root *cobra.Command, args []string) int {
	words := commandWords(args)
	root.SetArgs(words)
	cmd, err := root, checkCommand(root, words)
	if err == nil {
		cmd, err = root.ExecuteContextC(ctx)
	}
	if err == nil {
		return command.ExitOK
	}
	e, ok := errors.AsType[command.Exit](err)
	if !ok {
		e = command.Exit{Code: command.ExitError, Reason: err}
	}
	if e.Reason != nil {
		fmt.Fprintf(output.Escaping(root.ErrOrStderr()), "%s: %v\n", strings.ReplaceAll(cmd.CommandPath(), " ", ": "),
			e.Reason)
	}
	return e.Code
}

// commands returns the program's command, with all others below it. They write to out, and errors to errOut.
func commands(out, errOut io.Writer) *cobra.Command {
	serve := serveCommand()
	root := newCommand("ratelimit", nil, serve.RunE)
	root.Version = versionText()
	root.SilenceUsage, root.SilenceErrors = true, true
	root.Flags().AddFlagSet(serve.Flags())
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetOut(out)
	root.SetErr(errOut)
	versionCmd := newCommand("version", nil, func(*cobra.Command, []string) error {
		_, err := fmt.Fprintln(out, versionText())
		return err
	})
	schema := newCommand("schema", nil, func(*cobra.Command, []string) error {
		_, err := out.Write(api.Schema)
		return err
	})
	root.AddCommand(serve, client.Command(), check.Command(), divvyCommand(), counter.Command(), limit.Command(),
		explain.Command(), ruletest.Command(), simulate.Command(), diff.Command(), propose.Command(), schema,
		bench.Command(nil), top.Command(), denials.Command(), record.Command(),
		health.Command(divvyPort), man.Command(version), versionCmd, client.UpstreamCommand())
	return root
}

// The linker sets version and commit: -X main.version=v1.2.3 -X main.commit=abc123.
var (
	version = "dev"
	commit  = ""
)

func versionText() string {
	return fmt.Sprintf("ratelimit %s (commit %s, %s, %s/%s)", version, revision(), runtime.Version(), runtime.GOOS,
		runtime.GOARCH)
}

// revision returns the commit that the linker set, else the one that Go recorded in the binary.
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
