// Package rls speaks Envoy's RateLimitService v3: over gRPC, and the same
// messages as JSON over HTTP. It turns a message into a limiter.Request and an
// Answer into a message, and decides nothing.
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

// Config configures a Service.
type Config struct {
	// Limiter decides; required.
	Limiter *limiter.Limiter
	// OnError, if set, is called for each request that failed for any reason,
	// and for panics. It must be fast and safe for concurrent use.
	OnError func(error)
	// OnCall, if set, is called after each call with the protocol ("grpc" or "json"), the
	// name of the method and how long it took. It must be fast and safe for concurrent use.
	OnCall func(protocol, method string, took time.Duration)
	// Span, if set, starts the trace span of each decision. It returns the context for the
	// decision and the function that ends the span, with "" or the text of the error for
	// callers. Only Span itself may call request.String.
	Span func(ctx context.Context, domain string, request fmt.Stringer) (_ context.Context, end func(problem string))
	// Headers names the response headers of answers; nil: there are none.
	Headers *HeaderNames
	// Metadata fills dynamic_metadata.
	Metadata bool
	// MaxDecisions bounds the bytes that large requests use at a time while they are
	// decoded and decided; others wait for their turn. Defaults to 64 MiB.
	MaxDecisions int64
	// Remote says that the limiter's store is a server. Large requests give up their core
	// while they wait for it.
	Remote bool
}

// Service answers RateLimitService calls.
type Service struct {
	cfg       Config
	pool      sync.Pool // of *call
	largePool sync.Pool // of *call for requests that have a turn
	turns     *turns
	now       time.Time // of all requests, in tests; zero: the store's clock
}

// New returns a service; NewServer and JSON make it reachable.
func New(cfg Config) *Service {
	if cfg.OnError == nil {
		cfg.OnError = func(error) {}
	}
	if cfg.OnCall == nil {
		cfg.OnCall = func(string, string, time.Duration) {}
	}
	return &Service{
		cfg:       cfg,
		pool:      sync.Pool{New: func() any { return new(call) }},
		largePool: sync.Pool{New: func() any { return &call{large: true} }},
		turns:     newTurns(cmp.Or(cfg.MaxDecisions, 64<<20)),
	}
}

// decide decides on the request in data, whose texts c refers to, in turn t. Errors have
// been reported to Config.OnError.
func (s *Service) decide(ctx context.Context, c *call, data []byte, t *turn) error {
	err := c.scan(data)
	if err == nil {
		err = s.check(ctx, c, t)
	}
	if err != nil {
		s.cfg.OnError(err)
	}
	return err
}

// check decides on c.req, in turn t. If ctx ends, t may be without its core afterwards.
func (s *Service) check(ctx context.Context, c *call, t *turn) error {
	paused := s.cfg.Remote && t.pause()
	c.req.Now = s.now
	var err error
	if s.cfg.Span != nil {
		err = s.checkInSpan(ctx, c)
	} else {
		err = s.cfg.Limiter.Check(ctx, &c.req, &c.answer)
	}
	if paused && err == nil {
		_ = t.resume(ctx) // what is left to do is the reply to a caller that is gone
	}
	return err
}

func (s *Service) checkInSpan(ctx context.Context, c *call) error {
	ctx, end := s.cfg.Span(ctx, string(c.req.Domain), (*described)(&c.req))
	problem := "panic"
	defer func() { end(problem) }()
	err := s.cfg.Limiter.Check(ctx, &c.req, &c.answer)
	problem = ""
	if err != nil {
		problem = classOf(err).text
	}
	return err
}

// errorClass is what callers are told of an error.
type errorClass struct {
	err    error
	code   codes.Code
	status int    // of HTTP
	text   string // empty: the text of the error, which is about the caller's own request
}

// errorClasses come in the order in which they are tried. The text of other errors may
// name keys, so callers are told the class alone.
var errorClasses = []errorClass{
	{limiter.ErrTooLarge, codes.ResourceExhausted, http.StatusRequestEntityTooLarge, ""},
	{limiter.ErrRequest, codes.InvalidArgument, http.StatusBadRequest, ""},
	{backend.ErrOverload, codes.ResourceExhausted, http.StatusServiceUnavailable, backend.ErrOverload.Error()},
	{limiter.ErrNotReady, codes.Unavailable, http.StatusServiceUnavailable, limiter.ErrNotReady.Error()},
	{limiter.ErrStore, codes.Unavailable, http.StatusServiceUnavailable, limiter.ErrStore.Error()},
	{context.DeadlineExceeded, codes.DeadlineExceeded, http.StatusServiceUnavailable, internalError},
	{context.Canceled, codes.Canceled, http.StatusServiceUnavailable, internalError},
}

const internalError = "internal error"

// classOf returns the class of err, with its text.
func classOf(err error) errorClass {
	i := slices.IndexFunc(errorClasses, func(c errorClass) bool { return errors.Is(err, c.err) })
	if i < 0 {
		return errorClass{err, codes.Internal, http.StatusInternalServerError, internalError}
	}
	class := errorClasses[i]
	class.text = cmp.Or(class.text, err.Error())
	return class
}
