package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"ratelimit/api"
	"ratelimit/src/rules"
	"ratelimit/src/service"
	"ratelimit/src/tools/check"
)

func checkCommand(std stdio) *cobra.Command {
	var dir, backend, format string
	var opt rules.Options
	cmd := &cobra.Command{
		Use:   "check DIR|FILE...",
		Short: "Validate rule files before they ship",
		Long: `check reads rule files as the service does and prints all problems, as
file:line:col: what is wrong; how to fix it. A warning names a part that is legal
but without effect. check skips files of tests (ratelimit test). It checks all
documents of a YAML file, although the service reads only the first.

--format json prints one object. --format github prints commands that show each
problem at its line of a pull request.

Exit status: 0 without problems, else 1.`,
		Example: `  ratelimit check examples/ratelimit/config
  ratelimit check one.yaml other.yaml
  ratelimit check --backend memcache rules/
  ratelimit check --format github rules/
  ratelimit check -config_dir rules -merge_domain_configs`,
		RunE: func(_ *cobra.Command, args []string) error {
			if dir != "" {
				args = append(args, dir)
			}
			if len(args) == 0 {
				return errors.New("check: name a directory or files to check")
			}
			switch backend {
			case "memory", "redis", "memcache", "memcached":
				opt.Store = service.StoreLimits(strings.TrimSuffix(backend, "d"))
			default:
				return fmt.Errorf("check: --backend %s: write memory, redis or memcache", backend)
			}
			opt.AllDocuments = true
			l := check.Load(args, opt)
			var err error
			switch format {
			case "text":
				l.Report(std.out)
			case "github":
				l.GitHub(std.out)
			case "json":
				err = l.JSON(std.out)
			default:
				return fmt.Errorf("check: --format %s: write text, json or github", format)
			}
			switch {
			case l.Set == nil && format != "json":
				_, err = fmt.Fprintf(std.err, "ratelimit: check: %s\n", l.Summary())
			case format != "json":
				_, err = fmt.Fprintf(std.out, "ok: %s\n", l.Summary())
			}
			if l.Set == nil && err == nil {
				return exit{code: exitError}
			}
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "config-dir", "", "a directory to check, as envoyproxy/ratelimit's tool names it")
	cmd.Flags().StringVar(&backend, "backend", "memory", "the BACKEND_TYPE they are for: memory and redis can count by all rules, memcache by some")
	cmd.Flags().StringVar(&format, "format", "text", "how problems are printed: text, json, or github")
	cmd.Flags().BoolVar(&opt.MergeDomains, "merge-domain-configs", false, "allow one domain in several files")
	return cmd
}

func schemaCommand(std stdio) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of rule files, for editors",
		Long: `schema prints the JSON Schema of rule files (draft 7), with which editors
complete keys and values, explain them, and underline what is wrong. It cannot
tell all that is wrong with a file: ratelimit check can.`,
		Example: `  ratelimit schema > ratelimit.schema.json
  sed -i '1i # yaml-language-server: $schema=ratelimit.schema.json' rules.yaml`,
		Args: noWords,
		RunE: func(*cobra.Command, []string) error {
			_, err := std.out.Write(api.Schema)
			return err
		},
	}
}
