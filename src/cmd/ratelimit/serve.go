package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ratelimit/src/service"
	"ratelimit/src/service/heap"
	"ratelimit/src/settings"
	"ratelimit/src/tools/suggest"
)

func serveCommand(std stdio) *cobra.Command {
	var rules string
	var try bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Answer requests (the default command)",
		Long: `serve answers rate limit requests until SIGTERM or SIGINT; a second signal stops
it at once. SIGHUP reads the rules again. Environment variables configure it:

` + settingsText(),
		Example: `  ratelimit serve --config examples/ratelimit/config
  RUNTIME_ROOT=examples RUNTIME_SUBDIRECTORY=ratelimit ratelimit serve
  PORT=0 GRPC_PORT=0 DEBUG_PORT=0 LOG_LEVEL=debug ratelimit serve`,
		Args: noWords,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return serve(cmd.Context(), std, func() (service.Config, error) {
				cfg, err := service.ServeConfig(os.Environ(), rules)
				if try {
					cfg.OnReady = func(r service.Ready) { suggest.Print(r.Out, isTerminal(std.out), r.Rules, r.HTTP) }
				}
				return cfg, err
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&rules, "config", "", "directory or file with the rules, in place of RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY")
	f.BoolVar(&try, "try", false, "once ready, print a request to try on the loaded rules")
	return cmd
}

func divvyCommand(std stdio) *cobra.Command {
	return &cobra.Command{
		Use:   "divvy CONFIG",
		Short: "Stand in for Button's divvy: its rule file, its environment, its port",
		Long: `divvy answers HITs as Button's divvy does, by the rules of CONFIG: one of its
*.ini or *.json files, or a *.yaml file with an ordered list. It reads the file
before it opens any port, when the file changes and at SIGHUP. A mistake in the
file ends the start with status 1; later, the old rules stay in force. SIGTERM
and SIGINT stop the service after running requests are answered.

At the start it warns of rules that divvy itself reads differently, as
` + "`ratelimit check`" + ` does.

` + tableText(settings.DivvyTable()) + `

The variables of ` + "`ratelimit serve`" + ` work too, except those of its HTTP port, of
the place of rules and of statistics. The gRPC port opens if GRPC_PORT or
GRPC_UDS is set, the debug port if DEBUG_PORT is set.`,
		Example: `  ratelimit divvy examples/divvy/example-config.ini
  PORT=9321 REDIS_HOST=redis DEBUG=divvy ratelimit divvy rules.json
  HTTP_SERVICE_PORT=8080 PROMETHEUS_METRICS_PATH=/metrics ratelimit divvy rules.ini`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("divvy: name one file of rules: ratelimit divvy CONFIG")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return serve(cmd.Context(), std, func() (service.Config, error) { return service.DivvyConfig(os.Environ(), args[0]) })
		},
	}
}

// serve runs the service that configure describes until a signal stops it.
func serve(ctx context.Context, std stdio, configure func() (service.Config, error)) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	tuner := heap.Tune(os.LookupEnv)
	defer tuner.Stop()
	err := service.WithOutput(std.out, std.err, func(o *service.Output) error {
		o.OwnProcess()
		cfg, err := configure()
		if err != nil {
			return err
		}
		cfg.Output, cfg.Signals, cfg.Heap = o, signals, tuner
		cfg.Version, cfg.Commit = version, revision()
		s, err := service.New(cfg)
		if err == nil {
			err = s.Run(ctx)
		}
		if err != nil && cfg.OneList {
			err = fmt.Errorf("divvy: %w", err)
		}
		return err
	})
	if err != nil {
		return exit{code: exitError}
	}
	return nil
}

// settingsText is the table of settings for a terminal.
func settingsText() string { return tableText(settings.Table()) }

func tableText(table []settings.Variable) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	section := ""
	for _, v := range table {
		if v.Section != section {
			section = v.Section
			fmt.Fprintf(w, "%s:\n", section)
		}
		fallback := v.Default
		if fallback == "" {
			fallback = "(empty)"
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", v.Name, v.Type, fallback, strings.ReplaceAll(v.Meaning, "`", ""))
	}
	_ = w.Flush() // a strings.Builder takes everything
	return strings.TrimRight(b.String(), "\n")
}
