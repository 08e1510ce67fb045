package client

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/src/files/certs"
	"ratelimit/src/tools/command"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit client`.
type options struct {
	request Request
	target  string // target is the server, host:port or unix:///path.
	tls     TLS
	repeat  int
	asJSON  bool
	timeout time.Duration
}

// Command returns `ratelimit client`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, func(cmd *cobra.Command, _ []string) error {
		if opt.repeat < 1 {
			return fmt.Errorf("--repeat %d: ask at least once", opt.repeat)
		}
		msg, err := opt.request.FromFlags(cmd.Flags())
		if err != nil {
			return err
		}
		return opt.send(cmd.Context(), cmd.OutOrStdout(), msg)
	})
	f := cmd.Flags()
	f.StringVar(&opt.target, "dial-string", "localhost:8081", "address of the server, or unix:///path")
	opt.request.AddFlags(f)
	f.IntVar(&opt.repeat, "repeat", 1, "how many times to ask")
	f.BoolVar(&opt.asJSON, "json", false, "print answers as proto3 JSON, one per line")
	f.DurationVar(&opt.timeout, "timeout", 5*time.Second, "time limit of each request, connecting included")
	opt.tls.AddFlags(f)
	f.String("oltp-protocol", "", "")
	_ = f.MarkDeprecated("oltp-protocol", "the client does not trace") // MarkDeprecated fails only if there is no such flag.
	return cmd
}

// send sends msg as often as opt says and prints each answer.
func (opt *options) send(ctx context.Context, out io.Writer, msg *pb.RateLimitRequest) error {
	conn, err := opt.tls.dial(opt.target)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // No call is under way any more.
	server := pb.NewRateLimitServiceClient(conn)
	var last pb.RateLimitResponse_Code
	for range opt.repeat {
		callCtx, cancel := context.WithTimeout(ctx, opt.timeout)
		resp, err := server.ShouldRateLimit(callCtx, msg)
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", opt.target, err)
		}
		text := answerText(msg, resp)
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

// TLS configures TLS from flags. The zero value is plain text.
type TLS struct {
	enabled bool
	files   certs.Client
}

// AddFlags adds the flags of t to f, a FlagSet of pflag or of the standard library.
func (t *TLS) AddFlags(f interface {
	BoolVar(p *bool, name string, value bool, usage string)
	StringVar(p *string, name, value, usage string)
},
) {
	f.BoolVar(&t.enabled, "grpc-use-tls", false, "use TLS")
	f.StringVar(&t.files.CA, "grpc-server-ca-file", "", "PEM file of authorities to trust, besides the system's")
	f.StringVar(&t.files.Cert, "grpc-cert-file", "", "PEM file of the client's certificate chain")
	f.StringVar(&t.files.Key, "grpc-key-file", "", "PEM file of the client's key")
}

// Credentials returns the gRPC credentials that the flags describe.
func (t *TLS) Credentials() (credentials.TransportCredentials, error) {
	if !t.enabled {
		return insecure.NewCredentials(), nil
	}
	cfg, err := t.files.TLS()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(cfg), nil
}

// dial returns a connection to target, host:port or unix:///path. The first call opens it.
func (t *TLS) dial(target string) (*grpc.ClientConn, error) {
	creds, err := t.Credentials()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(target, grpc.WithTransportCredentials(creds))
}
