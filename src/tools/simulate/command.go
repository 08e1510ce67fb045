package simulate

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"ratelimit/src/backend/memory"
	"ratelimit/src/operator"
	"ratelimit/src/overrides"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/service/heap"
	"ratelimit/src/settings"
	"ratelimit/src/tools/check"
	"ratelimit/src/tools/command"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit simulate` that have no field in Config.
type options struct {
	rulePaths     []string
	ruleOptions   compile.Options
	start         string
	backend       string
	redisType     string
	redisURL      string
	redisAuthFile string
	redis         settings.Redis // set by check, from the other redis flags.
}

// Command returns `ratelimit simulate`.
func Command() *cobra.Command {
	var opt options
	var cfg Config
	check := func(cmd *cobra.Command, args []string) error {
		if err := cobra.MaximumNArgs(1)(cmd, args); err != nil {
			return err
		}
		return opt.check(&cfg)
	}
	cmd := command.New(help, check, func(cmd *cobra.Command, args []string) error {
		end, err := cfg.OpenInput(cmd, strings.Join(args, ""))
		if err != nil {
			return command.InvalidInput(err)
		}
		defer end()
		cfg.Out = cmd.OutOrStdout()
		return opt.run(cmd.Context(), cmd.ErrOrStderr(), cfg)
	})
	f := cmd.Flags()
	f.StringArrayVar(&opt.rulePaths, "config", nil, "rule file, or directory of rule files; repeatable")
	f.BoolVar(&opt.ruleOptions.MergeDomains, "merge-domain-configs", false, "allow one domain in several files")
	f.StringVar(&opt.start, "start", DefaultStart.Format(time.RFC3339), "instant that durations count from")
	cfg.AddFlags(cmd)
	command.Choice(cmd, &opt.backend, "backend", "where the counters are: memory, or redis", "memory", "redis")
	f.StringVar(&opt.redisURL, "redis-url", "",
		"where Redis is, as in REDIS_URL: host:port, redis://user:password@host:port/db, rediss://, a socket; sentinels or "+
			"nodes with --redis-type")
	f.StringVar(&opt.redisType, "redis-type", "single", "what --redis-url is about: single, sentinel, cluster")
	f.StringVar(&opt.redisAuthFile, "redis-auth-file", "", "file with the password of Redis, or user:password")
	return cmd
}

// AddFlags adds the flags of commands that replay a recording.
func (cfg *Config) AddFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	command.KeyFormat(cmd, &cfg.EscapeKeys, "how keys are written: v1, or v2")
	f.BoolVar(&cfg.AllOrNothing, "stop-when-over", false,
		"charge a request only if none of its descriptors is over the limit")
	f.BoolVar(&cfg.AllowClockSteps, "allow-clock-steps", false,
		"take lines of the recording that are earlier than those before them")
	f.StringVar(&cfg.LimitsFile, "limits", "",
		"file with limits changed at run time, from `ratelimit limit list --json`, to apply to the rules, whenever they end")
	command.Bytes(f, &cfg.MaxMemoryBytes, "memory-max-bytes", 1<<30, memory.MinBytes, math.MaxInt64,
		"cap on the memory of counters, for each set of rules; a run that needs more fails")
}

// WithLimits returns set with the changed limits of LimitsFile, or set if there is none.
func (cfg *Config) WithLimits(set *rules.Set) (*rules.Set, error) {
	if cfg.LimitsFile == "" {
		return set, nil
	}
	text, err := os.ReadFile(cfg.LimitsFile)
	if err != nil {
		return nil, err
	}
	var file operator.LimitList
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s is not what `ratelimit limit list --json` writes: %w", cfg.LimitsFile, err)
	}
	changed, err := overrides.Apply(set, file.Limits)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cfg.LimitsFile, err)
	}
	return changed, nil
}

// OpenInput sets Name and In to the file at path, or to the input of cmd for "" and "-". Call end after the run.
func (cfg *Config) OpenInput(cmd *cobra.Command, path string) (end func(), err error) {
	if path == "" || path == "-" {
		cfg.Name, cfg.In = "stdin", cmd.InOrStdin()
		return func() {}, nil
	}
	file, err := os.Open(path)
	cfg.Name, cfg.In = path, file
	return func() { _ = file.Close() }, err // A file that was only read loses nothing.
}

// check checks the flags, and sets cfg.Start and opt.redis.
func (opt *options) check(cfg *Config) (err error) {
	if len(opt.rulePaths) == 0 {
		return errors.New("name rule files, or a directory of them, with --config")
	}
	if cfg.Start, err = ParseInstant(opt.start); err != nil {
		return fmt.Errorf("--start %s: %w; write an instant such as 2026-01-01T00:00:00Z", opt.start, err)
	}
	if opt.backend == "redis" {
		opt.redis, err = settings.ParseRedis(opt.redisType, opt.redisURL,
			func(word string) string { return "--redis-" + strings.ToLower(word) })
		opt.redis.AuthFile = opt.redisAuthFile
		return err
	}
	if opt.redisURL != "" {
		return errors.New("--redis-url: it goes with --backend redis")
	}
	return nil
}

func (opt *options) run(ctx context.Context, errOut io.Writer, cfg Config) error {
	loaded := check.Load(opt.rulePaths, opt.ruleOptions)
	loaded.Report(errOut)
	if loaded.Set == nil {
		return command.Exit{Code: command.ExitInput}
	}
	var err error
	if cfg.Rules, err = cfg.WithLimits(loaded.Set); err != nil {
		return command.InvalidInput(err)
	}

	ctx, stop := command.UntilSignal(ctx)
	defer stop()
	// SIGPIPE would end the program when the reader of the output ends. If the signal is caught, the write fails, and the
	// program closes the store.
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
		gc.Watch(s.bytes, cfg.MaxMemoryBytes)
	}
	cfg.Backend, cfg.KeyPrefix = s.Backend, s.keyPrefix
	show := command.ProgressLine(errOut)
	cfg.Progress = func(s *Summary) {
		show("%d lines, %s, %.0f lines/s ", s.Lines, s.Last.Format(time.RFC3339), float64(s.Lines)/s.Elapsed.Seconds())
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
