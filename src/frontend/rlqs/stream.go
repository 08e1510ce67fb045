// Package rlqs serves Envoy's RateLimitQuotaService v3: streams on which proxies report what they use of their quotas,
// and get assignments of units. Package quota divides the limits.
package rlqs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"ratelimit/src/frontend/rls"
	"ratelimit/src/quota"
	"ratelimit/src/rules"
)

// Config configures a Service.
type Config struct {
	// Divider divides the limits; required.
	Divider *quota.Divider
	// Rules returns the rule set in force, or nil if none is loaded; required.
	Rules func() *rules.Set
	// MaxReportBytes is the size of the longest report. Defaults to 64 KiB, some 700 buckets.
	MaxReportBytes int
	// OnRefusedBucket, if set, gets the domain of a bucket that is reported beyond the bounds. It must be fast.
	OnRefusedBucket func(domain string, err error)
	// OnRefusedStream, if set, gets the reason for which a proxy gets no quotas: the rules in force, or the length of its
	// reports. It must be fast.
	OnRefusedStream func(reason string)
}

// Service answers RateLimitQuotaService calls.
type Service struct{ cfg Config }

// New returns a service. Register offers it on a server.
func New(cfg Config) *Service {
	cfg.MaxReportBytes = cmp.Or(cfg.MaxReportBytes, 64<<10)
	if cfg.OnRefusedStream == nil {
		cfg.OnRefusedStream = func(string) {}
	}
	if cfg.OnRefusedBucket == nil {
		cfg.OnRefusedBucket = func(string, error) {}
	}
	return &Service{cfg}
}

// Register adds the service to a server of package rls.
func (s *Service) Register(server grpc.ServiceRegistrar) {
	original := &pb.RateLimitQuotaService_ServiceDesc
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: original.ServiceName,
		HandlerType: (*any)(nil), // HandlerType accepts any service, since the handler calls no method of it.
		Streams: []grpc.StreamDesc{{
			StreamName: original.Streams[0].StreamName, ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error {
				if err := s.serve(stream); !errors.Is(err, io.EOF) {
					return err
				}
				return nil // The proxy has closed the stream.
			},
		}},
		Metadata: original.Metadata,
	}, s)
}

// serve reads the reports of one proxy, and sends its assignments, until the stream ends.
func (s *Service) serve(stream grpc.ServerStream) error {
	in := rls.RawMessage{MaxBytes: s.cfg.MaxReportBytes}
	if err := s.receive(stream, &in); err != nil {
		return err
	}
	domain := bytes.Clone(domainField(in.Bytes))
	if len(domain) == 0 {
		return status.Error(codes.InvalidArgument, "the first report of the stream has no domain")
	}
	if err := s.checkDomain(domain); err != nil {
		return err
	}
	proxy := s.cfg.Divider.Connect(domain)
	proxy.Memory = rls.StreamMemory(stream.Context())
	if p, ok := peer.FromContext(stream.Context()); ok {
		proxy.Peer = p.Addr.String()
	}
	defer proxy.Close()
	ctx, cancel := context.WithCancel(stream.Context())
	var sender sync.WaitGroup
	sender.Go(func() {
		_ = send(ctx, stream, proxy, &s.cfg.Divider.Stats().Responses) // If the stream breaks, RecvMsg fails, too.
	})
	defer sender.Wait()
	defer cancel()
	for {
		if err := s.readReports(proxy, domain, in.Bytes); err != nil {
			return err
		}
		if err := s.receive(stream, &in); err != nil {
			return err
		}
		if err := s.checkDomain(domain); err != nil { // A reload may have taken the quotas away.
			return err
		}
	}
}

// receive reads a report into in.
func (s *Service) receive(stream grpc.ServerStream, in *rls.RawMessage) error {
	err := stream.RecvMsg(in)
	if long, ok := errors.AsType[*rls.MessageTooLongError](err); ok {
		reason := fmt.Sprintf("a report has %d bytes, at most %d are allowed: raise QUOTA_MAX_REPORT_BYTES, "+
			"or let proxies have fewer quota buckets", long.Bytes, long.MaxBytes)
		s.cfg.OnRefusedStream(reason)
		err = status.Error(codes.ResourceExhausted, reason)
	}
	return err
}

// checkDomain returns an error if the rules in force have no quotas for the domain.
func (s *Service) checkDomain(domain []byte) error {
	set, reason := s.cfg.Rules(), ""
	if set == nil {
		return status.Error(codes.Unavailable, "no rules are loaded yet")
	}
	switch d := set.Domain(domain); {
	case d == nil:
		reason = fmt.Sprintf("the domain %s has no rules", rules.Quote(string(domain)))
	case !d.HasQuotaBuckets:
		reason = fmt.Sprintf("the rules of the domain %s have no `quota_buckets: true`", rules.Quote(string(domain)))
	default:
		return nil
	}
	s.cfg.OnRefusedStream(reason +
		". Write `quota_buckets: true` into the rules of the domain that the proxy's rate_limit_quota filter names")
	return status.Error(codes.FailedPrecondition, reason)
}

// readReports passes the usages of a message on to the divider. Buckets beyond the bounds get no assignment.
func (s *Service) readReports(proxy *quota.Proxy, domain, message []byte) error {
	s.cfg.Divider.Stats().Reports.Add(1)
	now := quota.Now()
	r := reportReader{fields: rls.Fields{Message: message}}
	for r.next() {
		if len(r.domain) > 0 && !bytes.Equal(r.domain, domain) {
			return status.Errorf(codes.InvalidArgument, "a stream is for one domain: it began with %s, and now reports for %s",
				rules.Quote(string(domain)), rules.Quote(string(r.domain)))
		}
		err := proxy.Report(r.bucketID, r.allowed, r.denied, now, r.entries)
		switch {
		case errors.Is(err, quota.ErrTooManyBuckets):
			s.cfg.OnRefusedBucket(string(domain), err)
		case errors.Is(err, quota.ErrTooMuchMemory):
			return rls.ErrTooMuchMemory
		case err != nil:
			return status.Error(codes.InvalidArgument, err.Error())
		}
	}
	if r.err != nil {
		return status.Error(codes.InvalidArgument, r.err.Error())
	}
	return nil
}

// maxMessageBytes is how long a message gets before the next one starts.
const maxMessageBytes = 32 << 10

// send sends the assignments of a proxy until ctx ends. It counts the messages.
func send(ctx context.Context, stream grpc.ServerStream, proxy *quota.Proxy, responses *atomic.Uint64) error {
	var (
		pending []quota.Assignment
		out     rls.RawMessage
	)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-proxy.Ready():
		}
		pending = proxy.TakePending(pending[:0])
		for i := range pending {
			out.Bytes = appendActions(out.Bytes, &pending[i])
			if len(out.Bytes) < maxMessageBytes && i < len(pending)-1 {
				continue
			}
			if err := stream.SendMsg(&out); err != nil {
				return fmt.Errorf("rlqs: %w", err)
			}
			out.Bytes = out.Bytes[:0]
			responses.Add(1)
		}
		clear(pending)
	}
}
