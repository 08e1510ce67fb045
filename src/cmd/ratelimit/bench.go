package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ratelimit/src/tools/bench"
)

// benchOptions are the flags of `ratelimit bench` that bench.Config has not.
type benchOptions struct {
	tls         tlsOptions
	pids        []string
	asJSON      bool
	null        string
	nullWorkers uint32
}

func benchCommand(std stdio) *cobra.Command {
	var opt benchOptions
	var cfg bench.Config
	cmd := &cobra.Command{
		Use:   "bench [ADDRESS]",
		Short: "Load a server and measure it",
		Long: `bench loads any server of Envoy's RateLimitService v3 with calls and prints rate,
latency, answers and CPU time. ADDRESS is host:port or unix:///path, and
localhost:8081 if there is none.

Each connection keeps --in-flight calls running: the next starts when one ends.
With --rate, calls are due at fixed times and measured from these, so a server
that stalls delays all calls of that time. If --in-flight calls are running, a
call starts late. After the end late calls may start for --timeout; the rest
counts as unsent.

Workloads. Each asks about one descriptor, --key and a value, in --domain:
  hot        one value, "hot"
  uniform    one of --keys numbers, equally likely
  zipf       one of --keys numbers, mostly a few of them (exponent 1.1)
  multi      four descriptors, of --keys numbers
  overlimit  one value, "overlimit", which should have a low limit
  nomatch    another key, which should have no rule
--requests-file sends your requests instead, in turn: one RateLimitRequest as
proto3 JSON on each line. bench marshals all requests before the run; each of
--keys takes about 130 bytes. The same --seed asks about the same keys.

--json prints one object: address, workload, keys, seed, connections,
in_flight, interrupted, requests, seconds, rate (answers a second), latency_us
(mean, p50, p90, p99, p999, max; failed calls included), answers and errors by
code, first_error, open_loop (rate, late, behind_us, unsent), and the CPU time
of the measured interval: cpu by the names of --pid (pid, seconds,
us_per_request), and generator, which is this process.

--null serves instead, until SIGTERM or SIGINT: an empty service that answers OK
to all calls, to measure the cost of gRPC itself. GOGC and GOMEMLIMIT tune it.

Ctrl-C ends a run early and prints the results so far. Exit status: 0, or 1 if
there was no server, no answer, or a process of --pid ended.`,
		Example: `  ratelimit bench --workload zipf --keys 100000 --pid service=$(pidof ratelimit)
  ratelimit bench --rate 5000 --duration 1m --json rl.example:8081
  ratelimit bench --requests-file requests.jsonl --requests 100000 --warmup 0s
  ratelimit bench --null :9081 --null-workers 4`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			context.AfterFunc(ctx, stop) // a second signal ends the program
			if opt.null != "" {
				if len(args) > 0 {
					return errors.New("bench: --null serves, and an address is what to load: give one of them")
				}
				return opt.serveNull(ctx, std)
			}
			cfg.Addr = "localhost:8081"
			if len(args) > 0 {
				cfg.Addr = args[0]
			}
			if err := opt.complete(&cfg, cmd.Flags()); err != nil {
				return fmt.Errorf("bench: %w", err)
			}
			return opt.run(ctx, std, cfg)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.IntVar(&cfg.Connections, "connections", 2, "connections to open")
	f.IntVar(&cfg.InFlight, "in-flight", 32, "calls under way on each connection")
	f.Float64Var(&cfg.Rate, "rate", 0, "calls due a second; without it the next call starts when one ends")
	f.DurationVar(&cfg.Duration, "duration", 10*time.Second, "how long to measure")
	f.Uint64Var(&cfg.Requests, "requests", 0, "how many calls to measure, instead of --duration, or until then if both are given")
	f.DurationVar(&cfg.Warmup, "warmup", time.Second, "how long to make calls before that")
	f.DurationVar(&cfg.Timeout, "timeout", 5*time.Second, "time limit of each call")
	f.StringVar(&cfg.Workload, "workload", "uniform", "what to ask: "+strings.Join(bench.Workloads, ", "))
	f.StringVar(&cfg.Domain, "domain", "bench", "domain to ask")
	f.StringVar(&cfg.Key, "key", "user", "key of the descriptors' entries")
	f.IntVar(&cfg.Keys, "keys", 100_000, "how many values of the key there are, at most a million")
	f.StringVar(&cfg.RequestsFile, "requests-file", "", "file of requests to send instead")
	f.Uint64Var(&cfg.Seed, "seed", 1, "beginning of the pseudorandom numbers")
	f.StringArrayVar(&opt.pids, "pid", nil, "N or NAME=N: a process whose CPU time to report (Linux, steps of 10 ms); repeatable")
	f.BoolVar(&opt.asJSON, "json", false, "print one JSON object")
	opt.tls.flags(f)
	f.StringVar(&opt.null, "null", "", "serve an empty service on this address, host:port, instead of loading one")
	f.Uint32Var(&opt.nullWorkers, "null-workers", 0, "goroutines that --null keeps for calls; 0: a new one for each")
	return cmd
}

// complete puts into cfg what is not a flag's value as it stands.
func (opt *benchOptions) complete(cfg *bench.Config, f *pflag.FlagSet) error {
	if f.Changed("rate") && cfg.Rate == 0 {
		return errors.New("--rate 0: must be above 0; leave it out to have the next call start when one ends")
	}
	if f.Changed("requests") {
		if cfg.Requests == 0 {
			return errors.New("--requests 0: must be above 0")
		}
		if !f.Changed("duration") {
			cfg.Duration = 0
		}
	}
	if cfg.RequestsFile != "" {
		if f.Changed("workload") {
			return errors.New("--workload and --requests-file both say what to send: give one of them")
		}
	} else if f.Changed("requests-file") {
		return errors.New("--requests-file: the name is empty")
	}
	if f.Changed("null-workers") {
		return errors.New("--null-workers is about --null")
	}
	for _, text := range opt.pids {
		name, number, ok := strings.Cut(text, "=")
		if !ok {
			name, number = text, text
		}
		pid, err := strconv.Atoi(number)
		if err != nil || pid < 1 || name == "" {
			return fmt.Errorf("--pid %s: write N or NAME=N, N being the id of a process", text)
		}
		cfg.Processes = append(cfg.Processes, bench.Process{Name: name, PID: pid})
	}
	var err error
	cfg.Credentials, err = opt.tls.credentials()
	return err
}

func (opt *benchOptions) run(ctx context.Context, std stdio, cfg bench.Config) error {
	if os.Getenv("GOGC") == "" {
		// A heap of a few megabytes would be collected a hundred times a second.
		defer debug.SetGCPercent(debug.SetGCPercent(400))
	}
	const clear = "\r\x1b[K"
	if isTerminal(std.err) {
		cfg.Progress = func(p bench.Progress) {
			what := "measuring"
			if p.Warmup {
				what = "warming up"
			}
			fmt.Fprintf(std.err, clear+"%s %v: %d requests, %.0f/s, errors: %d ", what, p.Elapsed.Round(time.Second), p.Requests, p.Rate, p.Errors)
		}
	}
	result, err := bench.Run(ctx, cfg)
	if cfg.Progress != nil {
		fmt.Fprint(std.err, clear)
	}
	if result == nil {
		return err
	}
	if opt.asJSON {
		err = errors.Join(err, json.NewEncoder(std.out).Encode(result))
	} else {
		err = errors.Join(err, result.Write(std.out))
	}
	return err
}

func (opt *benchOptions) serveNull(ctx context.Context, std stdio) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", opt.null)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	fmt.Fprintf(std.out, "listening on %s\n", l.Addr())
	return bench.ServeNull(ctx, l, opt.nullWorkers)
}
