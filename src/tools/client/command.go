package client

import (
	"context"
	"crypto/tls"
	_ "embed"
	"fmt"
	"io"
	"math"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit client`.
type options struct {
	service reach.Service
	request Request
	repeat  int
	asJSON  bool

	message *pb.RateLimitRequest // set by check.
}

// Command returns `ratelimit client`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, opt.check, func(cmd *cobra.Command, _ []string) error {
		return opt.send(cmd.Context(), cmd.OutOrStdout())
	})
	f := cmd.Flags()
	opt.request.AddFlags(f)
	command.Number(f, &opt.repeat, "repeat", 1, 1, math.MaxInt, "how many times to ask")
	f.BoolVar(&opt.asJSON, "json", false, "print answers as proto3 JSON, one per line")
	opt.service.AddGRPCFlags(f)
	f.String("oltp-protocol", "", "")
	// MarkDeprecated fails only if there is no such flag.
	_ = f.MarkDeprecated("oltp-protocol", "the client does not trace")
	return cmd
}

// check sets the message that the flags describe.
func (opt *options) check(cmd *cobra.Command, args []string) (err error) {
	if err := command.NoArguments(cmd, args); err != nil {
		return err
	}
	opt.message, err = opt.request.FromFlags(cmd.Flags())
	return err
}

// send sends the message as often as opt says and prints each answer.
func (opt *options) send(ctx context.Context, out io.Writer) error {
	target, cfg, err := opt.service.GRPC()
	if err != nil {
		return command.InvalidInput(err)
	}
	conn, err := dial(target, cfg)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // No call is under way any more.
	server := pb.NewRateLimitServiceClient(conn)
	var last pb.RateLimitResponse_Code
	for range opt.repeat {
		callCtx, cancel := context.WithTimeout(ctx, opt.service.Timeout)
		resp, err := server.ShouldRateLimit(callCtx, opt.message)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
		text := answerText(opt.message, resp)
		if opt.asJSON {
			line, err := protojson.Marshal(resp)
			if err != nil {
				return err
			}
			text = string(line) + "\n"
		}
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
		last = resp.GetOverallCode()
	}
	if last == pb.RateLimitResponse_OVER_LIMIT {
		return command.Exit{Code: command.ExitOverLimit}
	}
	return nil
}

// dial returns a connection to target, host:port or unix:///path; in plain text if cfg is nil. The first call opens it.
func dial(target string, cfg *tls.Config) (*grpc.ClientConn, error) {
	return grpc.NewClient(target, grpc.WithTransportCredentials(Credentials(cfg)))
}

// Credentials returns gRPC's form of cfg; nil is plain text.
func Credentials(cfg *tls.Config) credentials.TransportCredentials {
	if cfg == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(cfg)
}
