package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/src/files/certs"
	"ratelimit/src/tools/client"
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

// requestFlags adds the flags that fill in r.
func requestFlags(f *pflag.FlagSet, r *client.Request) {
	f.StringVar(&r.Domain, "domain", "", "domain to ask")
	f.StringArrayVar(&r.Descriptors, "descriptors", nil, "one descriptor, key=value,key=value; repeatable")
	f.StringArrayVar(&r.Paths, "path", nil, "one descriptor as a path of words, user/alex/trade, for trees of limits; repeatable")
	f.Uint64Var(&r.Hits, "hits", 1, "hits each descriptor is charged; 0 only looks")
	f.BoolVar(&r.Refund, "refund", false, "give the hits back instead")
}

func clientCommand(std stdio) *cobra.Command {
	var opt clientOptions
	cmd := newCommand("client", func(cmd *cobra.Command, _ []string) error {
		if opt.repeat < 1 {
			return fmt.Errorf("--repeat %d: ask at least once", opt.repeat)
		}
		opt.request.HasHits = cmd.Flags().Changed("hits")
		msg, err := opt.request.CheckedMessage()
		if err != nil {
			return err
		}
		return opt.send(cmd.Context(), std, msg)
	})
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
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is lost with it
	server := pb.NewRateLimitServiceClient(conn)
	var last pb.RateLimitResponse_Code
	for range opt.repeat {
		resp, err := opt.ask(ctx, server, msg)
		if err != nil {
			return fmt.Errorf("%s: %w", opt.target, err)
		}
		text := client.Describe(msg, resp)
		if opt.asJSON {
			line, err := protojson.Marshal(resp)
			if err != nil {
				return err
			}
			text = string(line) + "\n"
		}
		if _, err := fmt.Fprint(std.out, text); err != nil {
			return err
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

// tlsOptions are the flags of a connection with TLS. The zero value is plain text.
type tlsOptions struct {
	enabled  bool
	caFile   string
	certFile string
	keyFile  string
}

// flags adds the flags to f, a FlagSet of pflag or of the standard library.
func (o *tlsOptions) flags(f interface {
	BoolVar(p *bool, name string, value bool, usage string)
	StringVar(p *string, name, value, usage string)
},
) {
	f.BoolVar(&o.enabled, "grpc-use-tls", false, "use TLS")
	f.StringVar(&o.caFile, "grpc-server-ca-file", "", "PEM file of authorities to trust, besides the system's")
	f.StringVar(&o.certFile, "grpc-cert-file", "", "PEM file of the client's certificate chain")
	f.StringVar(&o.keyFile, "grpc-key-file", "", "PEM file of the client's key")
}

func (o *tlsOptions) credentials() (credentials.TransportCredentials, error) {
	if !o.enabled {
		return insecure.NewCredentials(), nil
	}
	cfg, err := (&certs.Client{CA: o.caFile, Cert: o.certFile, Key: o.keyFile}).TLS()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(cfg), nil
}

// dial returns a connection to target, host:port or unix:///path. The first call opens it.
func (o *tlsOptions) dial(target string) (*grpc.ClientConn, error) {
	creds, err := o.credentials()
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(target, grpc.WithTransportCredentials(creds))
}

// upstreamClientName is the name of envoyproxy/ratelimit's client.
const upstreamClientName = "ratelimit_client"

// upstreamClientCommand returns envoyproxy/ratelimit's client. Scripts depend on its flags, its
// output and its exit status, which is 0 for OVER_LIMIT, too.
func upstreamClientCommand(std stdio) *cobra.Command {
	return &cobra.Command{
		Use:                upstreamClientName,
		Hidden:             true,
		DisableFlagParsing: true, // flags are read as upstream reads them
		RunE: func(cmd *cobra.Command, args []string) error {
			return upstreamClient(cmd.Context(), std, args)
		},
	}
}

func upstreamClient(ctx context.Context, std stdio, args []string) error {
	var opt clientOptions
	var request descriptorFlags
	var tracing string
	f := flag.NewFlagSet(upstreamClientName, flag.ContinueOnError)
	f.SetOutput(std.err)
	f.StringVar(&opt.target, "dial_string", "localhost:8081", "`address` of the server")
	f.StringVar(&request.Domain, "domain", "", "`domain` to ask")
	f.Var(&request, "descriptors", "one descriptor, `key=value,key=value`; repeatable")
	opt.tls.flags(f)
	f.StringVar(&tracing, "oltp-protocol", "", "accepted, and without effect: the client does not trace")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil: // it has been printed, with the flags
		return exit{code: exitInput}
	}
	f.VisitAll(func(f *flag.Flag) { fmt.Fprintf(std.out, "Flag: --%s=%q\n", f.Name, f.Value) })
	if tracing != "" {
		fmt.Fprintln(std.err, "-oltp-protocol has no effect: the client does not trace")
	}
	conn, err := opt.tls.dial(opt.target)
	if err != nil {
		fmt.Fprintf(std.out, "error connecting: %v\n", err)
		return exit{code: exitError}
	}
	defer func() { _ = conn.Close() }() // nothing is lost with it
	msg, err := request.Message()
	if err != nil {
		return err
	}
	msg.HitsAddend = 1
	answer, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, msg)
	if err != nil {
		fmt.Fprintf(std.out, "request error: %v\n", err)
		return exit{code: exitError}
	}
	_, err = fmt.Fprintf(std.out, "response: %v\n", answer)
	return err
}

// descriptorFlags is the value of the flag -descriptors, which may be repeated.
type descriptorFlags struct{ client.Request }

// Set adds a descriptor.
func (d *descriptorFlags) Set(text string) error {
	d.Descriptors = append(d.Descriptors, text)
	if _, err := d.Message(); err != nil {
		return fmt.Errorf("invalid descriptor list: %w", err)
	}
	return nil
}

// String lists the descriptors in upstream's form, blanks included.
func (d *descriptorFlags) String() string {
	var b strings.Builder
	for _, text := range d.Descriptors {
		b.WriteByte('[')
		for pair := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(pair, "=")
			fmt.Fprintf(&b, " <key=%s, value=%s> ", key, value)
		}
		b.WriteString("] ")
	}
	return b.String()
}
