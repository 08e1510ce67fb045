package bench

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"

	"ratelimit/src/tools/client"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit bench` that have no field in Config.
type options struct {
	service reach.Service
	pids    []string // the form N or NAME=N.
	asJSON  bool
	// nullAddr is where to serve an empty service, host:port. If it is empty, the command loads a service.
	nullAddr string
	// nullWorkers is the number of goroutines of the empty service. 0: one for each call.
	nullWorkers uint32
}

// Command returns `ratelimit bench`. If lean is not nil, a flag can choose that client instead of grpc-go's.
func Command(lean Client) *cobra.Command {
	var opt options
	var client string
	var cfg Config
	check := func(cmd *cobra.Command, args []string) error {
		if opt.nullAddr != "" && (len(args) > 0 || cmd.Flags().Changed("address")) {
			return errors.New("--null serves, and an address is what to load: give one of them")
		}
		if err := opt.service.Argument(cmd, args); err != nil || opt.nullAddr != "" {
			return err
		}
		if client == "lean" {
			cfg.Client = lean
		}
		return opt.complete(&cfg, cmd.Flags())
	}
	cmd := command.New(help, check, func(cmd *cobra.Command, _ []string) error {
		ctx, stop := command.UntilSignal(cmd.Context())
		defer stop()
		if opt.nullAddr != "" {
			var lc net.ListenConfig
			l, err := lc.Listen(ctx, "tcp", opt.nullAddr)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "listening on %s\n", l.Addr())
			return serveNull(ctx, l, opt.nullWorkers)
		}
		return opt.run(ctx, cmd, cfg)
	})
	f := cmd.Flags()
	command.Choice(cmd, &client, "client", "what makes the calls: grpc-go, lean", "grpc-go", "lean")
	if lean == nil {
		// MarkDeprecated fails only if there is no such flag.
		_ = f.MarkDeprecated("client", "grpc-go's client makes the calls")
	}
	f.IntVar(&cfg.Connections, "connections", 2, "connections to open")
	f.IntVar(&cfg.InFlight, "in-flight", 32, "calls under way on each connection")
	command.Rate(f, &cfg.Rate, "rate", "calls due, as 5000/s; without it the next call starts when one ends")
	command.TimeOrZero(f, &cfg.Duration, "duration", 10*time.Second, "how long to measure")
	f.Uint64Var(&cfg.Requests, "requests", 0,
		"how many calls to measure, instead of --duration, or until then if both are given")
	command.TimeOrZero(f, &cfg.Warmup, "warmup", time.Second, "how long to make calls before that")
	command.TimeOrZero(f, &cfg.Linger, "linger", 0, "how long to keep the connections open, idle, after the run")
	f.BoolVar(&cfg.FreshHeaders, "fresh-headers", false, "send a new traceparent and x-request-id with each call")
	command.Choice(cmd, &cfg.Workload, "workload", "what to ask: "+strings.Join(Workloads, ", "), Workloads...)
	f.StringVar(&cfg.Domain, "domain", "bench", "domain to ask")
	f.StringVar(&cfg.Key, "key", "user", "key of the descriptors' entries")
	f.IntVar(&cfg.Keys, "keys", 100_000, "how many values of the key there are, at most a million")
	f.StringVar(&cfg.RequestsFile, "requests-file", "", "file of requests to send instead")
	f.Uint64Var(&cfg.Seed, "seed", 1, "beginning of the pseudorandom numbers")
	f.StringArrayVar(&opt.pids, "pid", nil,
		"N or NAME=N: a process whose CPU time to report (Linux, steps of 10 ms); repeatable")
	f.BoolVar(&opt.asJSON, "json", false, "print one JSON object")
	opt.service.AddGRPCFlags(f)
	f.StringVar(&opt.nullAddr, "null", "", "serve an empty service on this address, host:port, instead of loading one")
	f.Uint32Var(&opt.nullWorkers, "null-workers", 0, "goroutines that --null keeps for calls; 0: a new one for each")
	return cmd
}

// complete checks the flags, and sets the address, the credentials and the processes of cfg.
func (opt *options) complete(cfg *Config, f *pflag.FlagSet) error {
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
		cfg.Processes = append(cfg.Processes, Process{Name: name, PID: pid})
	}
	target, tls, err := opt.service.GRPC()
	if err != nil {
		return err
	}
	cfg.Addr, cfg.Credentials, cfg.Timeout = target, client.Credentials(tls), opt.service.Timeout
	return cfg.validate()
}

func (opt *options) run(ctx context.Context, cmd *cobra.Command, cfg Config) error {
	if os.Getenv("GOGC") == "" {
		// With the default, the small heap of the generator would be collected a hundred times a second.
		defer debug.SetGCPercent(debug.SetGCPercent(400))
	}
	show := command.ProgressLine(cmd.ErrOrStderr())
	cfg.Progress = func(p Progress) {
		stage := "measuring"
		if p.Warmup {
			stage = "warming up"
		}
		show("%s %v: %d requests, %.0f/s, errors: %d ", stage, p.Elapsed.Round(time.Second), p.Requests, p.Rate, p.Errors)
	}
	result, err := Run(ctx, cfg)
	show("")
	if result == nil {
		return err
	}
	if opt.asJSON {
		return errors.Join(err, json.NewEncoder(cmd.OutOrStdout()).Encode(result))
	}
	return errors.Join(err, result.Write(cmd.OutOrStdout()))
}

// serveNull serves an empty service on l, until ctx ends. It shows the cost of grpc-go and protobuf alone. With 0
// workers each call has a goroutine of its own.
func serveNull(ctx context.Context, l net.Listener, workers uint32) error {
	srv := grpc.NewServer(grpc.NumStreamWorkers(workers))
	pb.RegisterRateLimitServiceServer(srv, okServer{})
	defer context.AfterFunc(ctx, srv.Stop)()
	if err := srv.Serve(l); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

type okServer struct {
	pb.UnimplementedRateLimitServiceServer
}

func (okServer) ShouldRateLimit(context.Context, *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return &pb.RateLimitResponse{OverallCode: pb.RateLimitResponse_OK}, nil
}
