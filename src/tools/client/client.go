// Package client sends requests that people write on a command line, and prints the answers.
package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/src/operator/callertext"
)

// Request is a request as people write it.
type Request struct {
	Domain string
	// Descriptors have the form key=value,key=value.
	Descriptors []string
	// Paths are descriptors of trees of limits, in the form word/word/word.
	Paths []string
	// Hits are charged to each descriptor if HasHits; 0 charges nothing.
	Hits    uint64
	HasHits bool
	// Refund gives the hits back.
	Refund bool
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
	msg, err := r.message()
	if err != nil {
		return nil, fmt.Errorf("-descriptors %w", err)
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

// message returns the domain and Descriptors, without Paths, as Envoy's message.
func (r *Request) message() (*pb.RateLimitRequest, error) {
	msg := &pb.RateLimitRequest{Domain: r.Domain}
	for _, text := range r.Descriptors {
		entries, err := callertext.ParseDescriptor(text)
		if err != nil {
			return nil, err
		}
		d := r.newDescriptor()
		for _, e := range entries {
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: string(e.Key), Value: string(e.Value)})
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
	for i, st := range resp.GetStatuses() {
		var pairs []string
		if i < len(msg.GetDescriptors()) {
			for _, e := range msg.GetDescriptors()[i].GetEntries() {
				pairs = append(pairs, e.GetKey()+"="+e.GetValue())
			}
		}
		fmt.Fprintf(&b, "  %s: %v, %s\n", strings.Join(pairs, ","), st.GetCode(), limitText(st))
		if levels := levelsText(resp, i); levels != "" {
			fmt.Fprintf(&b, "    all levels in one [limited, limit, remaining, retry after, reset after]: %s\n", levels)
		}
	}
	return b.String()
}

// levelsText returns the summary in the metadata of descriptor i, of all levels of its path in a tree of limits. It is
// empty if the metadata has none.
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

// limitText describes the limit of a descriptor, what remains of it and when it resets.
func limitText(st *pb.RateLimitResponse_DescriptorStatus) string {
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
	text := fmt.Sprintf("%d per %s, %d remaining, resets in %v",
		limit.GetRequestsPerUnit(), unit, st.GetLimitRemaining(), st.GetDurationUntilReset().AsDuration())
	if limit.GetName() != "" {
		text = limit.GetName() + ": " + text
	}
	return text
}
