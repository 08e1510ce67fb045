package check

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/service/store"
	"ratelimit/src/tools/command"
)

//go:embed help.txt
var help string

// Command returns `ratelimit check`.
func Command() *cobra.Command {
	var dir, backend, format string
	var opt compile.Options
	needPath := func(_ *cobra.Command, args []string) error {
		if dir == "" && len(args) == 0 {
			return errors.New("name a directory or files to check")
		}
		return nil
	}
	cmd := command.New(help, needPath, func(cmd *cobra.Command, args []string) error {
		if dir != "" {
			args = append(args, dir)
		}
		opt.Store = store.Limits(strings.TrimSuffix(backend, "d"))
		return printProblems(cmd.OutOrStdout(), load(args, opt, filerules.LoadAllDocuments), format)
	})
	f := cmd.Flags()
	command.Choice(cmd, &backend, "backend",
		"the BACKEND_TYPE they are for: memory and redis can count by all rules, memcache by some",
		"memory", "redis", "memcache", "memcached")
	f.StringVar(&dir, "config-dir", "", "a directory to check, as envoyproxy/ratelimit's tool names it")
	command.Choice(cmd, &format, "format", "how problems are printed: text, json, or github", "text", "json", "github")
	f.BoolVar(&opt.MergeDomains, "merge-domain-configs", false, "allow one domain in several files")
	return cmd
}

// printProblems prints what is wrong with the rules of l, and a line that counts it unless the format is JSON.
func printProblems(out io.Writer, l Result, format string) (err error) {
	switch format {
	case "text":
		l.Report(out)
	case "github":
		l.GitHub(out)
	case "json":
		err = l.JSON(out)
	}
	switch {
	case err != nil:
		return err
	case l.Set == nil && format == "json":
		return command.Exit{Code: command.ExitError}
	case l.Set == nil:
		return errors.New(l.Summary())
	case format != "json":
		for _, line := range l.RegexLines() {
			fmt.Fprintln(out, line)
		}
		_, err = fmt.Fprintf(out, "ok: %s\n", l.Summary())
	}
	return err
}
