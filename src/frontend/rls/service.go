// Package rls serves Envoy's RateLimitService v3 over gRPC, and the same messages in JSON over
// HTTP. It turns each message into a limiter.Request, and the limiter's Answer into a message.
package rls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
)

// Limiter decides requests. It is a limiter.Limiter, or wraps one.
type Limiter interface {
	Check(context.Context, *limiter.Request, *limiter.Answer) error
	CheckMany(context.Context, *limiter.Many)
}

// Config configures a Service.
type Config struct {
	// Limiter decides the requests; required.
	Limiter Limiter
	// OnError, if set, is called after each panic and each failed request, but not for a body of
	// /json that is no request. It must be fast and safe for concurrent use.
	OnError func(error)
	// OnCalls, if set, is called after calls with their protocol ("grpc" or "json"), their method, their number, and
	// the duration of each. It must be fast and safe for concurrent use.
	OnCalls func(protocol, method string, calls int, took time.Duration)
	// Span, if set, starts the trace span of each decision. It returns the context for the decision and a function that
	// ends the span; problem is the error text that callers get, or empty. request is valid only until Span returns.
	StartSpan func(ctx context.Context, domain string, request fmt.Stringer) (_ context.Context, end func(problem string))
	// HeaderNames names the response headers of answers. If it is nil, answers have none.
	HeaderNames *HeaderNames
	// MetadataEnabled says whether answers have dynamic_metadata.
	MetadataEnabled bool
	// LargeRequestMemoryBytes is how many bytes large requests may use at a time while they are decoded
	// and decided. Further large requests wait. Defaults to 64 MiB.
	LargeRequestMemoryBytes int64
	// StoreIsRemote says that the store is a server. Large requests release their core while they wait for it.
	StoreIsRemote bool
}

// Service answers RateLimitService calls.
type Service struct {
	cfg           Config
	smallCallPool sync.Pool // *callMemory values for small requests.
	largeCallPool sync.Pool // *callMemory values for requests with a reservation.
	batchPool     sync.Pool // *batchMemory values.
	largeRequests *largeRequestCapacity
	now           time.Time // the time of all requests in tests. The zero time means the store's clock.
}

// New returns a service without a port. NewServer offers it over gRPC, JSON over HTTP.
func New(cfg Config) *Service {
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	if cfg.OnCalls == nil {
		cfg.OnCalls = func(string, string, int, time.Duration) {}
	}
	return &Service{
		cfg:           cfg,
		smallCallPool: sync.Pool{New: func() any { return new(callMemory) }},
		largeCallPool: sync.Pool{New: func() any { return &callMemory{fromLargePool: true} }},
		batchPool:     sync.Pool{New: func() any { return new(batchMemory) }},
		largeRequests: newLargeRequestCapacity(cmp.Or(cfg.LargeRequestMemoryBytes, 64<<20)),
	}
}

// decideMessage reads the request in data, which came with a protocol, into c and decides it with the reservation t. c
// refers to data until it is released. If ctx ends, t may have lost its core.
func (s *Service) decideMessage(
	ctx context.Context, c *callMemory, protocol string, data []byte, t *memoryReservation,
) error {
	if err := c.decodeRequest(data); err != nil {
		return err
	}
	c.req.Protocol = protocol
	return s.checkRequest(ctx, c, t)
}

// checkRequest decides c.req with the reservation t.
func (s *Service) checkRequest(ctx context.Context, c *callMemory, t *memoryReservation) error {
	paused := s.cfg.StoreIsRemote && t.releaseCore()
	c.req.Now = s.now
	var err error
	if s.cfg.StartSpan != nil {
		err = s.checkInTraceSpan(ctx, c)
	} else {
		err = s.cfg.Limiter.Check(ctx, &c.req, &c.answer)
	}
	if paused && err == nil {
		_ = t.acquireCore(ctx) // acquireCore fails only if the caller has gone, so that the reply does not matter.
	}
	return err
}

// checkInTraceSpan decides c.req inside a trace span.
func (s *Service) checkInTraceSpan(ctx context.Context, c *callMemory) error {
	ctx, end := s.cfg.StartSpan(ctx, string(c.req.Domain), (*requestText)(&c.req))
	problem := "panic"
	defer func() { end(problem) }()
	err := s.cfg.Limiter.Check(ctx, &c.req, &c.answer)
	problem = ""
	if err != nil {
		problem = errorClassOf(err).callerText
	}
	return err
}

// errorClass says what callers are told about errors that wrap err.
type errorClass struct {
	wrappedErr error
	grpcCode   codes.Code
	httpStatus int
	callerText string // what callers get. If it is empty, they get the text of the error itself.
}

// errorClasses are tried in this order. Callers get the error's own text only where it is about
// their request: other texts may name keys of other callers.
var errorClasses = []errorClass{
	{limiter.ErrRequestTooLarge, codes.ResourceExhausted, http.StatusRequestEntityTooLarge, ""},
	{limiter.ErrInvalidRequest, codes.InvalidArgument, http.StatusBadRequest, ""},
	{backend.ErrOverload, codes.ResourceExhausted, http.StatusServiceUnavailable, backend.ErrOverload.Error()},
	{limiter.ErrNoRules, codes.Unavailable, http.StatusServiceUnavailable, limiter.ErrNoRules.Error()},
	{limiter.ErrStoreFailed, codes.Unavailable, http.StatusServiceUnavailable, limiter.ErrStoreFailed.Error()},
	{limiter.ErrCallerLeft, codes.Canceled, http.StatusServiceUnavailable, limiter.ErrCallerLeft.Error()},
	{context.DeadlineExceeded, codes.DeadlineExceeded, http.StatusServiceUnavailable, internalErrorText},
	{context.Canceled, codes.Canceled, http.StatusServiceUnavailable, internalErrorText},
}

const internalErrorText = "internal error"

// errorClassOf returns the class of err, with the text for callers.
func errorClassOf(err error) errorClass {
	i := slices.IndexFunc(errorClasses, func(c errorClass) bool { return errors.Is(err, c.wrappedErr) })
	if i < 0 {
		return errorClass{err, codes.Internal, http.StatusInternalServerError, internalErrorText}
	}
	class := errorClasses[i]
	class.callerText = cmp.Or(class.callerText, err.Error())
	return class
}
