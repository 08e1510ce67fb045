package main

import (
	"context"
	"fmt"
	"time"

	"ratelimit/src/tools/client"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/encoding/protojson"
)

// clientOptions are the flags of `ratelimit client`.
type clientOptions struct {
	request client.Request
	target  string
	repeat  int
	asJSON  bool
	timeout time.Duration
	tls     tlsOptions
}

// requestFlags adds the flags that make a request.
func requestFlags(f *pflag.FlagSet, r *client.Request) {
	f.StringVar(&r.Domain, "domain", "", "domain to ask")
	f.StringArrayVar(&r.Descriptors, "descriptors", nil, "one descriptor, key=value,key=value; repeatable")
	f.StringArrayVar(&r.Paths, "path", nil, "one descriptor as a path of words, user/alex/trade, for trees of limits; repeatable")
	f.Uint64Var(&r.Hits, "hits", 1, "hits each descriptor is charged; 0 only looks")
	f.BoolVar(&r.Refund, "refund", false, "give the hits back instead")
}

func clientCommand(std stdio) *cobra.Command {
	var opt clientOptions
	cmd := &cobra.Command{
		Use:   "client",
		Short: "Send a request by hand",
		Long: `client asks a rate limit server over gRPC and prints the answer.

A descriptor is written key=value,key=value; repeat -descriptors for several in
one request. Exit status: 0 when the last answer is OK, 3 when it is
OVER_LIMIT, 1 when there is none.`,
		Example: `  ratelimit client -domain rl -descriptors foo=bar
  ratelimit client -dial_string localhost:8081 -domain rl -descriptors foo=bar,baz=x -descriptors path=/pay
  ratelimit client -domain limits -path user/alex/trade
  ratelimit client -domain rl -descriptors foo=bar --repeat 5
  ratelimit client -domain rl -descriptors foo=bar --hits 0    # look, charge nothing`,
		Args: noWords,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if opt.repeat < 1 {
				return fmt.Errorf("client: --repeat %d: ask at least once", opt.repeat)
			}
			opt.request.HasHits = cmd.Flags().Changed("hits")
			msg, err := opt.request.CheckedMessage()
			if err != nil {
				return fmt.Errorf("client: %w", err)
			}
			return opt.send(cmd.Context(), std, msg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&opt.target, "dial-string", "localhost:8081", "address of the server, or unix:///path")
	requestFlags(f, &opt.request)
	f.IntVar(&opt.repeat, "repeat", 1, "how many times to ask")
	f.BoolVar(&opt.asJSON, "json", false, "print answers as proto3 JSON, one per line")
	f.DurationVar(&opt.timeout, "timeout", 5*time.Second, "time limit of each request, connecting included")
	opt.tls.flags(f)
	f.String("oltp-protocol", "", "")
	_ = f.MarkDeprecated("oltp-protocol", "the client does not trace") // fails for unknown flags only
	return cmd
}

func (opt *clientOptions) send(ctx context.Context, std stdio, msg *pb.RateLimitRequest) error {
	conn, err := opt.tls.dial(opt.target)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing is lost with it
	server := pb.NewRateLimitServiceClient(conn)
	var last pb.RateLimitResponse_Code
	for range opt.repeat {
		resp, err := opt.ask(ctx, server, msg)
		if err != nil {
			return fmt.Errorf("client: %s: %w", opt.target, err)
		}
		text := client.Describe(msg, resp)
		if opt.asJSON {
			line, err := protojson.Marshal(resp)
			if err != nil {
				return fmt.Errorf("client: %w", err)
			}
			text = string(line) + "\n"
		}
		if _, err := fmt.Fprint(std.out, text); err != nil {
			return fmt.Errorf("client: %w", err)
		}
		last = resp.GetOverallCode()
	}
	if last == pb.RateLimitResponse_OVER_LIMIT {
		return exit{code: exitOver}
	}
	return nil
}

func (opt *clientOptions) ask(ctx context.Context, server pb.RateLimitServiceClient, msg *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, opt.timeout)
	defer cancel()
	return server.ShouldRateLimit(ctx, msg)
}
