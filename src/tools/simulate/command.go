package simulate

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/backend/memory"
	"ratelimit/src/rules"
	"ratelimit/src/service/heap"
	"ratelimit/src/settings"
	"ratelimit/src/tools/check"
	"ratelimit/src/tools/command"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit simulate` that have no field in Config.
type options struct {
	rulePaths      []string
	ruleOptions    rules.Options
	start          string
	keyFormat      string
	backend        string
	maxMemoryBytes int64
	redisType      string
	redisURL       string
	redisAuthFile  string
	redis          settings.Redis // redis is set by complete, from the other redis flags.
}

// Command returns `ratelimit simulate`.
func Command() *cobra.Command {
	var opt options
	var cfg Config
	cmd := command.New(help, func(cmd *cobra.Command, args []string) error {
		if err := opt.complete(&cfg); err != nil {
			return command.InvalidInput(err)
		}
		cfg.Name, cfg.In, cfg.Out = "stdin", cmd.InOrStdin(), cmd.OutOrStdout()
		if len(args) > 0 && args[0] != "-" {
			file, err := os.Open(args[0])
			if err != nil {
				return command.InvalidInput(err)
			}
			defer func() { _ = file.Close() }() // A file that was only read loses nothing.
			cfg.Name, cfg.In = args[0], file
		}
		return opt.run(cmd.Context(), cmd.ErrOrStderr(), cfg)
	})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		return command.InvalidInput(cobra.MaximumNArgs(1)(cmd, args))
	}
	cmd.SetFlagErrorFunc(command.InvalidFlags)
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&opt.rulePaths, "config", nil, "rule file, or directory of rule files; repeatable")
	f.BoolVar(&opt.ruleOptions.MergeDomains, "merge-domain-configs", false, "allow one domain in several files")
	f.StringVar(&opt.start, "start", DefaultStart.Format(time.RFC3339), "instant that durations count from")
	f.BoolVar(&cfg.AllowClockSteps, "allow-clock-steps", false, "take lines that are earlier than those before them")
	f.BoolVar(&cfg.AllOrNothing, "stop-when-over", false, "charge a request only if none of its descriptors is over the limit")
	f.StringVar(&opt.keyFormat, "key-format", "v1", "how keys are written: v1, or v2")
	f.StringVar(&opt.backend, "backend", "memory", "where the counters are: memory, or redis")
	f.Int64Var(&opt.maxMemoryBytes, "memory-max-bytes", 1<<30, "cap on the memory of counters; a run that needs more fails")
	f.StringVar(&opt.redisURL, "redis-url", "", "where Redis is, as in REDIS_URL: host:port, redis://user:password@host:port/db, rediss://, a socket; sentinels or nodes with --redis-type")
	f.StringVar(&opt.redisType, "redis-type", "single", "what --redis-url is about: single, sentinel, cluster")
	f.StringVar(&opt.redisAuthFile, "redis-auth-file", "", "file with the password of Redis, or user:password")
	return cmd
}

// complete checks the flags, and sets cfg.Start, cfg.EscapeKeys and opt.redis.
func (opt *options) complete(cfg *Config) error {
	if len(opt.rulePaths) == 0 {
		return errors.New("name rule files, or a directory of them, with --config")
	}
	var err error
	if cfg.Start, err = ParseInstant(opt.start); err != nil {
		return fmt.Errorf("--start %s: %w; write an instant such as 2026-01-01T00:00:00Z", opt.start, err)
	}
	switch strings.ToLower(opt.keyFormat) {
	case "v1":
	case "v2":
		cfg.EscapeKeys = true
	default:
		return fmt.Errorf("--key-format %s: write v1 or v2", opt.keyFormat)
	}
	switch opt.backend {
	case "memory":
		if opt.maxMemoryBytes < memory.MinBytes {
			return fmt.Errorf("--memory-max-bytes %d: write %d or more", opt.maxMemoryBytes, memory.MinBytes)
		}
		if opt.redisURL != "" {
			return errors.New("--redis-url: it goes with --backend redis")
		}
	case "redis":
		opt.redis, err = settings.ParseRedis(opt.redisType, opt.redisURL, func(word string) string { return "--redis-" + strings.ToLower(word) })
		opt.redis.AuthFile = opt.redisAuthFile
		return err
	default:
		return fmt.Errorf("--backend %s: write memory or redis", opt.backend)
	}
	return nil
}

func (opt *options) run(ctx context.Context, errOut io.Writer, cfg Config) error {
	loaded := check.Load(opt.rulePaths, opt.ruleOptions)
	loaded.Report(errOut)
	if loaded.Set == nil {
		return command.Exit{Code: command.ExitInput}
	}
	cfg.Rules = loaded.Set

	ctx, stop := command.UntilSignal(ctx, syscall.SIGHUP)
	defer stop()
	// SIGPIPE would end the program when the reader of the output ends. If the signal is caught, the write fails, and the program
	// closes the store.
	brokenPipe := make(chan os.Signal, 1)
	signal.Notify(brokenPipe, syscall.SIGPIPE)
	defer signal.Stop(brokenPipe)
	gc := heap.Tune(os.LookupEnv)
	defer gc.Stop()

	s, err := opt.openStore(ctx, &cfg)
	if err != nil {
		return err
	}
	if s.bytes != nil {
		gc.Watch(s.bytes, opt.maxMemoryBytes)
	}
	cfg.Backend, cfg.KeyPrefix = s.Backend, s.keyPrefix
	show := command.ProgressLine(errOut)
	cfg.Progress = func(p Progress) {
		show("%d lines, %s, %.0f lines/s ", p.Lines, p.Virtual.Format(time.RFC3339), float64(p.Lines)/p.Elapsed.Seconds())
	}
	summary, err := Run(ctx, cfg)
	err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
	show("")
	if err == nil || summary.Lines > 0 {
		_ = summary.Write(errOut) // The exit code does not depend on the reader of stderr.
	}
	if _, ok := errors.AsType[*InputError](err); ok {
		fmt.Fprintln(errOut, err)
		return command.Exit{Code: command.ExitInput}
	}
	return err
}
