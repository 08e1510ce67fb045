package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"ratelimit/src/operator/output"
	"ratelimit/src/service"
	"ratelimit/src/service/heap"
	"ratelimit/src/service/logging"
	"ratelimit/src/settings"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/health"
	"ratelimit/src/tools/suggest"
)

func serveCommand() *cobra.Command {
	var rulePath string
	var try bool
	cmd := newCommand("serve", noWords, func(cmd *cobra.Command, _ []string) error {
		return serve(cmd, func() (service.Config, error) {
			cfg, err := service.ServeConfig(os.Environ(), rulePath)
			if try {
				cfg.OnReady = func(r service.Ready) {
					suggest.Print(r.Stdout, output.IsTerminal(output.Raw(cmd.OutOrStdout())), r.Rules, r.HTTPAddr, r.DebugAddr)
				}
			}
			return cfg, err
		})
	})
	f := cmd.Flags()
	f.StringVar(&rulePath, "config", "",
		"directory or file with the rules, in place of RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY")
	f.BoolVar(&try, "try", false, "once ready, print a request to try on the loaded rules")
	return cmd
}

var divvyPort = health.LinePort{Program: "divvy", ErrorReply: "ERR ", Addr: settings.DivvyAddr}

func divvyCommand() *cobra.Command {
	oneFile := func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return errors.New("name one file of rules: ratelimit divvy CONFIG")
		}
		return nil
	}
	return newCommand("divvy", oneFile, func(cmd *cobra.Command, args []string) error {
		return serve(cmd, func() (service.Config, error) { return service.DivvyConfig(os.Environ(), args[0]) })
	})
}

// serve runs the service that configure configures, until a signal stops it.
func serve(cmd *cobra.Command, configure func() (service.Config, error)) error {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer signal.Stop(signals)
	tuner := heap.Tune(os.LookupEnv)
	defer tuner.Stop()
	err := logging.WithOutput(output.Raw(cmd.OutOrStdout()), output.Raw(cmd.ErrOrStderr()), func(o *logging.Output) error {
		o.OwnProcess()
		cfg, err := configure()
		if err != nil {
			return err
		}
		cfg.Output, cfg.Signals, cfg.Heap = o, signals, tuner
		onReady := cfg.OnReady
		cfg.OnReady = func(r service.Ready) {
			if onReady != nil {
				onReady(r)
			}
			if err := notifySystemd(os.Getenv("NOTIFY_SOCKET")); err != nil {
				log.Print(err)
			}
		}
		cfg.Version, cfg.Commit = version, revision()
		s, err := service.New(cfg)
		if err == nil {
			err = s.Run(cmd.Context())
		}
		if err != nil && cfg.RequireOrderedList {
			err = fmt.Errorf("divvy: %w", err)
		}
		return err
	})
	if err != nil {
		return command.Exit{Code: command.ExitError}
	}
	return nil
}
