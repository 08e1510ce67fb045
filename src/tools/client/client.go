// Package client builds the requests that people write on a command line or in the query
// of a URL, and prints the answers.
package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ratelimit/src/rules"
)

// Request is a request as text.
type Request struct {
	Domain      string
	Descriptors []string // each one key=value,key=value
	Paths       []string // each one word/word/word, for trees of limits
	Hits        uint64   // of each descriptor, if HasHits; 0 charges nothing
	HasHits     bool
	Refund      bool // give the hits back
}

// CheckedMessage is Message for a request that needs a domain and a descriptor.
func (r *Request) CheckedMessage() (*pb.RateLimitRequest, error) {
	if r.Domain == "" {
		return nil, errors.New("name a domain with -domain")
	}
	if len(r.Descriptors)+len(r.Paths) == 0 {
		return nil, errors.New("name at least one descriptor with -descriptors key=value, or -path word/word")
	}
	msg, err := r.Message()
	if err != nil {
		return nil, fmt.Errorf("-descriptors %w", err)
	}
	for _, path := range r.Paths {
		d := r.descriptor()
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

// Message returns the domain and the Descriptors as Envoy's message.
func (r *Request) Message() (*pb.RateLimitRequest, error) {
	msg := &pb.RateLimitRequest{Domain: r.Domain}
	for _, text := range r.Descriptors {
		entries, err := ParseEntries(text)
		if err != nil {
			return nil, err
		}
		d := r.descriptor()
		for _, e := range entries {
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: string(e.Key), Value: string(e.Value)})
		}
		msg.Descriptors = append(msg.Descriptors, d)
	}
	return msg, nil
}

// ParseEntries reads a descriptor, key=value,key=value.
func ParseEntries(text string) (entries []rules.Entry, err error) {
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || strings.Contains(value, "=") {
			return nil, fmt.Errorf("%s: write key=value, separated by commas; %q is not that", text, pair)
		}
		entries = append(entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
	}
	return entries, nil
}

// descriptor returns one without entries.
func (r *Request) descriptor() *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{IsNegativeHits: r.Refund}
	if r.HasHits {
		d.HitsAddend = wrapperspb.UInt64(r.Hits)
	}
	return d
}

// Describe returns an answer as text for people: the overall code, then a line for each
// descriptor.
func Describe(msg *pb.RateLimitRequest, resp *pb.RateLimitResponse) string {
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
	if list := all[i].GetStructValue().GetFields()["summary"].GetListValue(); list != nil {
		text, _ := json.Marshal(list.AsSlice()) // empty if it has numbers that JSON has not
		return string(text)
	}
	return ""
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
