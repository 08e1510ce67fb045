package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/redis"
	"ratelimit/src/rules"
	"ratelimit/src/service"
	"ratelimit/src/service/heap"
	"ratelimit/src/settings"
	"ratelimit/src/tools/check"
	"ratelimit/src/tools/simulate"
)

// simulateOptions are the flags of `ratelimit simulate` that have no field in
// simulate.Config.
type simulateOptions struct {
	rules         []string
	options       rules.Options
	start         string
	keyFormat     string
	backend       string
	memoryBytes   int64
	redisType     string
	redisURL      string
	redisAuthFile string
	redis         settings.Redis // set by complete if backend is redis
}

func simulateCommand(std stdio) *cobra.Command {
	var opt simulateOptions
	var cfg simulate.Config
	cmd := newCommand("simulate", func(cmd *cobra.Command, args []string) error {
		if err := opt.complete(&cfg); err != nil {
			return badInput(err)
		}
		cfg.Name, cfg.In, cfg.Out = "stdin", cmd.InOrStdin(), std.out
		if len(args) > 0 && args[0] != "-" {
			file, err := os.Open(args[0])
			if err != nil {
				return badInput(err)
			}
			defer func() { _ = file.Close() }() // it was only read
			cfg.Name, cfg.In = args[0], file
		}
		return opt.run(cmd.Context(), std, cfg)
	})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if err := cobra.MaximumNArgs(1)(cmd, args); err != nil {
			return badInput(err)
		}
		return nil
	}
	badInputFlags(cmd)
	f := cmd.Flags()
	f.SortFlags = false
	f.StringArrayVar(&opt.rules, "config", nil, "rule file, or directory of rule files; repeatable")
	f.BoolVar(&opt.options.MergeDomains, "merge-domain-configs", false, "allow one domain in several files")
	f.StringVar(&opt.start, "start", simulate.DefaultStart.Format(time.RFC3339), "instant that durations count from")
	f.BoolVar(&cfg.AllowClockSteps, "allow-clock-steps", false, "take lines that are earlier than those before them")
	f.BoolVar(&cfg.AllOrNothing, "stop-when-over", false, "charge a request only if none of its descriptors is over the limit")
	f.StringVar(&opt.keyFormat, "key-format", "v1", "how keys are written: v1, or v2")
	f.StringVar(&opt.backend, "backend", "memory", "where the counters are: memory, or redis")
	f.Int64Var(&opt.memoryBytes, "memory-max-bytes", 1<<30, "cap on the memory of counters; a run that needs more fails")
	f.StringVar(&opt.redisURL, "redis-url", "", "where Redis is, as in REDIS_URL: host:port, redis://user:password@host:port/db, rediss://, a socket; sentinels or nodes with --redis-type")
	f.StringVar(&opt.redisType, "redis-type", "single", "what --redis-url is about: single, sentinel, cluster")
	f.StringVar(&opt.redisAuthFile, "redis-auth-file", "", "file with the password of Redis, or user:password")
	return cmd
}

// complete checks the flags, and sets cfg.Start, cfg.EscapeKeys and opt.redis.
func (opt *simulateOptions) complete(cfg *simulate.Config) error {
	if len(opt.rules) == 0 {
		return errors.New("name rule files, or a directory of them, with --config")
	}
	var err error
	if cfg.Start, err = simulate.ParseInstant(opt.start); err != nil {
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
		if opt.memoryBytes < memory.MinBytes {
			return fmt.Errorf("--memory-max-bytes %d: write %d or more", opt.memoryBytes, memory.MinBytes)
		}
		if opt.redisURL != "" {
			return errors.New("--redis-url: it goes with --backend redis")
		}
	case "redis":
		opt.redis, err = settings.PlaceRedis(opt.redisType, opt.redisURL, func(word string) string { return "--redis-" + strings.ToLower(word) })
		opt.redis.AuthFile = opt.redisAuthFile
		return err
	default:
		return fmt.Errorf("--backend %s: write memory or redis", opt.backend)
	}
	return nil
}

func (opt *simulateOptions) run(ctx context.Context, std stdio, cfg simulate.Config) error {
	l := check.Load(opt.rules, opt.options)
	l.Report(std.err)
	if l.Set == nil {
		return exit{code: exitInput}
	}
	cfg.Rules = l.Set

	ctx, stop := untilSignal(ctx, syscall.SIGHUP)
	defer stop()
	// If the reader of the output ends, SIGPIPE would end the program. With this, writing
	// fails and the program closes the store.
	brokenPipe := make(chan os.Signal, 1)
	signal.Notify(brokenPipe, syscall.SIGPIPE)
	defer signal.Stop(brokenPipe)
	gc := heap.Tune(os.LookupEnv)
	defer gc.Stop()

	store, err := opt.open(ctx, cfg.AllowClockSteps)
	if err != nil {
		return err
	}
	if store.Bytes != nil {
		gc.Watch(store.Bytes, opt.memoryBytes)
	}
	cfg.Backend, cfg.KeyPrefix = store.Backend, store.Prefix
	show := progressLine(std.err)
	cfg.Progress = func(p simulate.Progress) {
		show("%d lines, %s, %.0f lines/s ", p.Lines, p.At.Format(time.RFC3339), float64(p.Lines)/p.Took.Seconds())
	}
	summary, err := simulate.Run(ctx, cfg)
	err = errors.Join(err, store.Close(context.WithoutCancel(ctx)))
	show("")
	if err == nil || summary.Lines > 0 {
		_ = summary.Write(std.err) // its reader may have gone
	}
	if _, ok := errors.AsType[*simulate.InputError](err); ok {
		fmt.Fprintln(std.err, err)
		return exit{code: exitInput}
	}
	return err
}

// open opens the store that the flags choose.
func (opt *simulateOptions) open(ctx context.Context, clockSteps bool) (*simulate.Store, error) {
	if opt.backend == "memory" {
		return simulate.OpenMemory(opt.memoryBytes, clockSteps)
	}
	var rc redis.Config
	rc.TagKeys = strings.EqualFold(opt.keyFormat, "v2")
	if err := service.ReachRedis(&rc, opt.redis, settings.TLSFiles{}); err != nil {
		return nil, err
	}
	return simulate.OpenRedis(ctx, rc)
}
