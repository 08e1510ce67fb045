package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"strings"

	"ratelimit/src/tools/client"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
)

// upstreamClientName is how envoyproxy/ratelimit's client is called.
const upstreamClientName = "ratelimit_client"

// upstreamClientCommand is envoyproxy/ratelimit's client: its flags, its output, which
// scripts read, and its exit status, which is 0 for OVER_LIMIT, too.
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
	var asked descriptorFlags
	var tracing string
	f := flag.NewFlagSet(upstreamClientName, flag.ContinueOnError)
	f.SetOutput(std.err)
	f.StringVar(&opt.target, "dial_string", "localhost:8081", "`address` of the server")
	f.StringVar(&asked.Domain, "domain", "", "`domain` to ask")
	f.Var(&asked, "descriptors", "one descriptor, `key=value,key=value`; repeatable")
	f.BoolVar(&opt.tls.use, "grpc-use-tls", false, "use TLS")
	f.StringVar(&opt.tls.caFile, "grpc-server-ca-file", "", "PEM `file` of authorities to trust, besides the system's")
	f.StringVar(&opt.tls.certFile, "grpc-cert-file", "", "PEM `file` of the client's certificate chain")
	f.StringVar(&opt.tls.keyFile, "grpc-key-file", "", "PEM `file` of the client's key")
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
	msg, err := asked.Message()
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

// descriptorFlags are the descriptors of a request, one for each time that the flag is
// given.
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
