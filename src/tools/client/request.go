// Package client builds the requests that people write on a command line or in the query
// of a URL, and prints the answers.
package client

import (
	"errors"
	"fmt"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
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
		d := r.descriptor()
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

// descriptor returns one without entries.
func (r *Request) descriptor() *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{IsNegativeHits: r.Refund}
	if r.HasHits {
		d.HitsAddend = wrapperspb.UInt64(r.Hits)
	}
	return d
}
