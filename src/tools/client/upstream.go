package client

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"ratelimit/src/files/certs"
	"ratelimit/src/tools/command"
)

// UpstreamName is the name of envoyproxy/ratelimit's client.
const UpstreamName = "ratelimit_client"

// UpstreamCommand returns envoyproxy/ratelimit's client. Scripts depend on its flags, its output and its exit status,
// which is 0 also for OVER_LIMIT.
func UpstreamCommand() *cobra.Command {
	return &cobra.Command{
		Use:                UpstreamName,
		Hidden:             true,
		DisableFlagParsing: true, // runUpstream parses flags with the package that upstream uses.
		Args:               cobra.ArbitraryArgs,
		RunE:               runUpstream,
	}
}

func runUpstream(cmd *cobra.Command, args []string) error {
	var target, tracing string
	var useTLS bool
	var files certs.Client
	var domain string
	var descriptors upstreamDescriptors
	out := cmd.OutOrStdout()
	f := flag.NewFlagSet(UpstreamName, flag.ContinueOnError)
	f.SetOutput(cmd.ErrOrStderr())
	f.StringVar(&target, "dial_string", "localhost:8081", "`address` of the server")
	f.StringVar(&domain, "domain", "", "`domain` to ask")
	f.Var(&descriptors, "descriptors", "one descriptor, `key=value,key=value`; repeatable")
	f.BoolVar(&useTLS, "grpc-use-tls", false, "use TLS")
	f.StringVar(&files.CA, "grpc-server-ca-file", "", "PEM file of authorities to trust, besides the system's")
	f.StringVar(&files.Cert, "grpc-cert-file", "", "PEM file of the client's certificate chain")
	f.StringVar(&files.Key, "grpc-key-file", "", "PEM file of the client's key")
	f.StringVar(&tracing, "oltp-protocol", "", "accepted, and without effect: the client does not trace")
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil: // Parse has printed the error and the flags.
		return command.Exit{Code: command.ExitInput}
	}
	f.VisitAll(func(f *flag.Flag) { fmt.Fprintf(out, "Flag: --%s=%q\n", f.Name, f.Value) })
	if tracing != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "-oltp-protocol has no effect: the client does not trace")
	}
	var cfg *tls.Config
	var err error
	if useTLS {
		cfg, err = files.TLS()
	}
	var conn *grpc.ClientConn
	if err == nil {
		conn, err = dial(target, cfg)
	}
	if err != nil {
		fmt.Fprintf(out, "error connecting: %v\n", err)
		return command.Exit{Code: command.ExitError}
	}
	defer func() { _ = conn.Close() }() // No call is under way any more.
	msg := &pb.RateLimitRequest{Domain: domain, Descriptors: descriptors, HitsAddend: 1}
	answer, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(cmd.Context(), msg)
	if err != nil {
		fmt.Fprintf(out, "request error: %v\n", err)
		return command.Exit{Code: command.ExitError}
	}
	_, err = fmt.Fprintf(out, "response: %v\n", answer)
	return err
}

// upstreamDescriptors is the value of the flag -descriptors, which may be repeated. Quotes mean nothing in it.
type upstreamDescriptors []*common.RateLimitDescriptor

// Set adds a descriptor.
func (l *upstreamDescriptors) Set(text string) error {
	d := new(common.RateLimitDescriptor)
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return fmt.Errorf("invalid descriptor list: write key=value, separated by commas; %q is not that", pair)
		}
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	*l = append(*l, d)
	return nil
}

// String lists the descriptors in upstream's form: [ <key=a, value=b>  <key=c, value=d> ].
func (l *upstreamDescriptors) String() string {
	var b strings.Builder
	for _, d := range *l {
		b.WriteByte('[')
		for _, e := range d.GetEntries() {
			fmt.Fprintf(&b, " <key=%s, value=%s> ", e.GetKey(), e.GetValue())
		}
		b.WriteString("] ")
	}
	return b.String()
}
