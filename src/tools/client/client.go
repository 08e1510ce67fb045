// Package client sends requests that people write on a command line, and prints the answers.
package client

import (
	"context"
	"crypto/tls"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/src/operator/callertext"
	"ratelimit/src/rules"
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
	for _, text := range opt.request.Descriptors {
		if !strings.Contains(text, "=") {
			return fmt.Errorf("-descriptors %s: write key=value,key=value; key= is an entry with the empty value",
				rules.Quote(text))
		}
	}
	opt.message, err = opt.request.FromFlags(cmd.Flags())
	return err
}

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
			return opt.callError(target, err, cfg != nil)
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

// callError returns what a failed call of target means, and what to do about it.
func (opt *options) callError(target string, err error, hasTLS bool) error {
	st := status.Convert(err)
	has := func(part string) bool { return strings.Contains(st.Message(), part) }
	switch {
	case has("looked like an HTTP/1.1 header"), st.Code() == codes.Unimplemented, has("unexpected HTTP status code"):
		return fmt.Errorf("%s is not the gRPC port of the service: name that one with --address; it is 8081 by default",
			target)
	case has("connection refused"), has("no such file or directory"):
		return fmt.Errorf("%s: connection refused: no service listens there: start it, or name its gRPC port with --address", target)
	case has("no such host"):
		return fmt.Errorf("%s: there is no such host: correct --address", target)
	case has("certificate signed by unknown authority"):
		return fmt.Errorf("%s: the certificate is of an unknown authority: name it with --tls-ca", target)
	case hasTLS && !has("x509:") && (has("handshake failed") || has("error reading server preface")):
		return fmt.Errorf("%s: the TLS handshake failed: leave out --tls and https:// if the port does not use TLS: %s", target,
			st.Message())
	case !hasTLS && has("error reading server preface"):
		return fmt.Errorf("%s: the service closed the connection: add --tls if the port uses TLS", target)
	case st.Code() == codes.DeadlineExceeded:
		return fmt.Errorf("%s: no answer within %v: look at the address and the service's log, or raise --timeout", target,
			opt.service.Timeout)
	}
	return fmt.Errorf("%s: %v: %s", target, st.Code(), st.Message())
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

// Request is a request as people write it.
type Request struct {
	Domain      string
	Descriptors []string // in the form key=value,key=value
	Paths       []string // descriptors of trees of limits, in the form word/word/word
	Hits        uint64   // charged to each descriptor if HasHits; 0 charges nothing
	HasHits     bool
	Refund      bool // gives the hits back
}

// AddFlags adds the flags that set the fields of r.
func (r *Request) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&r.Domain, "domain", "", "domain to ask")
	f.StringArrayVar(&r.Descriptors, "descriptors", nil, "one descriptor, key=value,key=value; repeatable")
	f.StringArrayVar(&r.Paths, "path", nil,
		"one descriptor as a path of words, user/alex/trade, for trees of limits; repeatable")
	f.Uint64Var(&r.Hits, "hits", 1, "hits each descriptor is charged; 0 only looks")
	f.BoolVar(&r.Refund, "refund", false, "give the hits back instead")
}

// FromFlags returns the request as Envoy's message. f has been parsed and has the flags of AddFlags.
func (r *Request) FromFlags(f *pflag.FlagSet) (*pb.RateLimitRequest, error) {
	r.HasHits = f.Changed("hits")
	if r.Domain == "" {
		return nil, errors.New("name a domain with -domain")
	}
	if len(r.Descriptors)+len(r.Paths) == 0 {
		return nil, errors.New("name at least one descriptor with -descriptors key=value, or -path word/word")
	}
	msg := &pb.RateLimitRequest{Domain: r.Domain}
	for _, text := range r.Descriptors {
		entries, err := callertext.ParseDescriptor(text)
		if err != nil {
			return nil, fmt.Errorf("-descriptors %w", err)
		}
		d := r.newDescriptor()
		for _, e := range entries {
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: string(e.Key), Value: string(e.Value)})
		}
		msg.Descriptors = append(msg.Descriptors, d)
	}
	for _, path := range r.Paths {
		d := r.newDescriptor()
		for word := range strings.SplitSeq(path, "/") {
			if word == "" {
				return nil, fmt.Errorf("-path %s: write words, with a slash between each two", path)
			}
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: word})
		}
		msg.Descriptors = append(msg.Descriptors, d)
	}
	return msg, nil
}

// newDescriptor returns a descriptor with the hits of r, without entries.
func (r *Request) newDescriptor() *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{IsNegativeHits: r.Refund}
	if r.HasHits {
		d.HitsAddend = wrapperspb.UInt64(r.Hits)
	}
	return d
}

// answerText returns an answer as text for people: the overall code, then a line for each descriptor.
func answerText(msg *pb.RateLimitRequest, resp *pb.RateLimitResponse) string {
	var b strings.Builder
	fmt.Fprintln(&b, resp.GetOverallCode())
	hasLimit := false
	for i, st := range resp.GetStatuses() {
		var entries []rules.Entry
		if i < len(msg.GetDescriptors()) {
			for _, e := range msg.GetDescriptors()[i].GetEntries() {
				entries = append(entries, rules.Entry{Key: []byte(e.GetKey()), Value: []byte(e.GetValue())})
			}
		}
		limit := limitText(st)
		hasLimit = hasLimit || limit != noLimitText
		fmt.Fprintf(&b, "  %s: %v, %s\n", callertext.WholeDescriptor(entries), st.GetCode(), limit)
		if levels := levelsText(resp, i); levels != "" {
			fmt.Fprintf(&b, "    all levels in one [limited, limit, remaining, retry after, reset after]: %s\n", levels)
		}
	}
	if !hasLimit {
		fmt.Fprintf(&b, "  nothing is limited: look for a mistyped domain or key; `ratelimit explain` with the same "+
			"-domain and -descriptors says why, and which domain may be meant\n")
	}
	return b.String()
}

// levelsText returns the summary of all levels of a tree of limits in the metadata of descriptor i; empty for none.
func levelsText(resp *pb.RateLimitResponse, i int) string {
	descriptors := resp.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues()
	if i >= len(descriptors) {
		return ""
	}
	list := descriptors[i].GetStructValue().GetFields()["summary"].GetListValue()
	if list == nil {
		return ""
	}
	text, _ := json.Marshal(list.AsSlice()) // Marshal fails for infinite numbers; the text is empty then.
	return string(text)
}

const noLimitText = "no limit applies"

// limitText describes the limit of a descriptor, what remains of it and when it resets.
func limitText(st *pb.RateLimitResponse_DescriptorStatus) string {
	limit := st.GetCurrentLimit()
	if limit == nil {
		if st.GetLimitRemaining() > 0 {
			return "unlimited"
		}
		return noLimitText
	}
	unit := strings.ToLower(limit.GetUnit().String())
	if m := limit.GetUnitMultiplier().GetValue(); m > 1 {
		unit = fmt.Sprintf("%d %ss", m, unit)
	}
	text := fmt.Sprintf("%d per %s, %d remaining, resets in %v",
		limit.GetRequestsPerUnit(), unit, st.GetLimitRemaining(), st.GetDurationUntilReset().AsDuration())
	if limit.GetName() != "" {
		text = limit.GetName() + ": " + text
	}
	return text
}
