package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// clientOptions are the flags of `ratelimit client`.
type clientOptions struct {
	askOptions
	target  string
	repeat  int
	asJSON  bool
	timeout time.Duration
	tls     tlsOptions
}

// askOptions are the flags that make a request.
type askOptions struct {
	domain      string
	descriptors []string
	paths       []string
	hits        uint64
	refund      bool
}

func (opt *askOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&opt.domain, "domain", "", "domain to ask")
	f.StringArrayVar(&opt.descriptors, "descriptors", nil, "one descriptor, key=value,key=value; repeatable")
	f.StringArrayVar(&opt.paths, "path", nil, "one descriptor as a path of words, user/alex/trade, for trees of limits; repeatable")
	f.Uint64Var(&opt.hits, "hits", 1, "hits each descriptor is charged; 0 only looks")
	f.BoolVar(&opt.refund, "refund", false, "give the hits back instead")
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
			msg, err := opt.request(cmd.Flags().Changed("hits"))
			if err != nil {
				return fmt.Errorf("client: %w", err)
			}
			return opt.send(cmd.Context(), std, msg)
		},
	}
	f := cmd.Flags()
	f.StringVar(&opt.target, "dial-string", "localhost:8081", "address of the server, or unix:///path")
	opt.askOptions.flags(f)
	f.IntVar(&opt.repeat, "repeat", 1, "how many times to ask")
	f.BoolVar(&opt.asJSON, "json", false, "print answers as proto3 JSON, one per line")
	f.DurationVar(&opt.timeout, "timeout", 5*time.Second, "time limit of each request, connecting included")
	opt.tls.flags(f)
	f.String("oltp-protocol", "", "")
	_ = f.MarkDeprecated("oltp-protocol", "the client does not trace") // fails for unknown flags only
	return cmd
}

// request builds the message; hits given by hand stand in each descriptor,
// where 0 means a look.
func (opt *askOptions) request(hasHits bool) (*pb.RateLimitRequest, error) {
	if opt.domain == "" {
		return nil, errors.New("name a domain with -domain")
	}
	if len(opt.descriptors)+len(opt.paths) == 0 {
		return nil, errors.New("name at least one descriptor with -descriptors key=value, or -path word/word")
	}
	msg, err := opt.message(hasHits)
	if err != nil {
		return nil, fmt.Errorf("-descriptors %w", err)
	}
	for _, path := range opt.paths {
		d := opt.descriptor(hasHits)
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

// descriptor is one without entries.
func (opt *askOptions) descriptor(hasHits bool) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{IsNegativeHits: opt.refund}
	if hasHits {
		d.HitsAddend = wrapperspb.UInt64(opt.hits)
	}
	return d
}

// message is request without a look at what has to be there.
func (opt *askOptions) message(hasHits bool) (*pb.RateLimitRequest, error) {
	msg := &pb.RateLimitRequest{Domain: opt.domain}
	for _, text := range opt.descriptors {
		d := opt.descriptor(hasHits)
		for pair := range strings.SplitSeq(text, ",") {
			key, value, ok := strings.Cut(pair, "=")
			if !ok || strings.Contains(value, "=") {
				return nil, fmt.Errorf("%s: write key=value, separated by commas; %q is not that", text, pair)
			}
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
		msg.Descriptors = append(msg.Descriptors, d)
	}
	return msg, nil
}

func (opt *clientOptions) send(ctx context.Context, std stdio, msg *pb.RateLimitRequest) error {
	creds, err := opt.tls.credentials()
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	conn, err := grpc.NewClient(opt.target, grpc.WithTransportCredentials(creds))
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	defer func() { _ = conn.Close() }() // nothing is lost with it
	client := pb.NewRateLimitServiceClient(conn)
	var last pb.RateLimitResponse_Code
	for range opt.repeat {
		resp, err := opt.ask(ctx, client, msg)
		if err != nil {
			return fmt.Errorf("client: %s: %w", opt.target, err)
		}
		text := describe(msg, resp)
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
		return exit{exitOver}
	}
	return nil
}

func (opt *clientOptions) ask(ctx context.Context, client pb.RateLimitServiceClient, msg *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, opt.timeout)
	defer cancel()
	return client.ShouldRateLimit(ctx, msg)
}

// describe is an answer for people: the overall code, then a line for each
// descriptor.
func describe(msg *pb.RateLimitRequest, resp *pb.RateLimitResponse) string {
	var b strings.Builder
	fmt.Fprintln(&b, resp.GetOverallCode())
	for i, st := range resp.GetStatuses() {
		var pairs []string
		if i < len(msg.GetDescriptors()) {
			for _, e := range msg.GetDescriptors()[i].GetEntries() {
				pairs = append(pairs, e.GetKey()+"="+e.GetValue())
			}
		}
		fmt.Fprintf(&b, "  %s: %v, %s\n", strings.Join(pairs, ","), st.GetCode(), describeLimit(st))
		if short := summary(resp, i); short != "" {
			fmt.Fprintf(&b, "    all levels in one [limited, limit, remaining, retry after, reset after]: %s\n", short)
		}
	}
	return b.String()
}

// summary is what the metadata says of the levels of descriptor i in a tree of
// limits; empty if it says nothing.
func summary(resp *pb.RateLimitResponse, i int) string {
	all := resp.GetDynamicMetadata().GetFields()["descriptors"].GetListValue().GetValues()
	if i >= len(all) {
		return ""
	}
	list := all[i].GetStructValue().GetFields()["summary"].GetListValue()
	if list == nil {
		return ""
	}
	text, err := json.Marshal(list.AsSlice())
	if err != nil { // there are numbers that JSON has not
		return ""
	}
	return string(text)
}

func describeLimit(st *pb.RateLimitResponse_DescriptorStatus) string {
	limit := st.GetCurrentLimit()
	if limit == nil {
		if st.GetLimitRemaining() > 0 {
			return "unlimited"
		}
		return "no limit applies"
	}
	unit := strings.ToLower(limit.GetUnit().String())
	if m := limit.GetUnitMultiplier().GetValue(); m > 1 {
		unit = fmt.Sprintf("%d %ss", m, unit)
	}
	s := fmt.Sprintf("%d per %s, %d remaining, resets in %v",
		limit.GetRequestsPerUnit(), unit, st.GetLimitRemaining(), st.GetDurationUntilReset().AsDuration())
	if limit.GetName() != "" {
		s = limit.GetName() + ": " + s
	}
	return s
}
