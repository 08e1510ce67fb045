package client

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"strings"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"ratelimit/src/files/certs"
	"ratelimit/src/operator/callertext"
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
	var request upstreamRequest
	out := cmd.OutOrStdout()
	f := flag.NewFlagSet(UpstreamName, flag.ContinueOnError)
	f.SetOutput(cmd.ErrOrStderr())
	f.StringVar(&target, "dial_string", "localhost:8081", "`address` of the server")
	f.StringVar(&request.Domain, "domain", "", "`domain` to ask")
	f.Var(&request, "descriptors", "one descriptor, `key=value,key=value`; repeatable")
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
	msg, err := request.message()
	if err != nil {
		return err
	}
	msg.HitsAddend = 1
	answer, err := pb.NewRateLimitServiceClient(conn).ShouldRateLimit(cmd.Context(), msg)
	if err != nil {
		fmt.Fprintf(out, "request error: %v\n", err)
		return command.Exit{Code: command.ExitError}
	}
	_, err = fmt.Fprintf(out, "response: %v\n", answer)
	return err
}

// upstreamRequest is a Request and the value of the flag -descriptors, which may be repeated.
type upstreamRequest struct{ Request }

// Set adds a descriptor.
func (r *upstreamRequest) Set(text string) error {
	r.Descriptors = append(r.Descriptors, text)
	if _, err := callertext.ParseDescriptor(text); err != nil {
		return fmt.Errorf("invalid descriptor list: %w", err)
	}
	return nil
}

// String lists the descriptors in upstream's form: [ <key=a, value=b>  <key=c, value=d> ].
func (r *upstreamRequest) String() string {
	var b strings.Builder
	for _, text := range r.Descriptors {
		b.WriteByte('[')
		for pair := range strings.SplitSeq(text, ",") {
			key, value, _ := strings.Cut(pair, "=")
			fmt.Fprintf(&b, " <key=%s, value=%s> ", key, value)
		}
		b.WriteString("] ")
	}
	return b.String()
}
