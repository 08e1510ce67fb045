// Package rls speaks Envoy's RateLimitService v3: over gRPC, and the same
// messages as JSON over HTTP. It turns a message into a limiter.Request and an
// Answer into a message, and decides nothing.
package rls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
)

// Config is what a Service is made of.
type Config struct {
	// Limiter decides; required.
	Limiter *limiter.Limiter
	// OnError, if set, is told of each request that failed for any reason,
	// and of panics. It must be fast and safe for concurrent use.
	OnError func(error)
	// OnCall, if set, is told of each call that came to its end: the protocol
	// ("grpc" or "json"), the method's name and how long it took. It must be
	// fast and safe for concurrent use.
	OnCall func(protocol, method string, took time.Duration)
	// Span, if set, begins the trace span of each decision, in whose context it is
	// made, and returns what ends the span: with "", or with what a caller may
	// know of the error. The text of request is made when it is asked for, which
	// must be before Span returns.
	Span func(ctx context.Context, domain string, request fmt.Stringer) (_ context.Context, end func(problem string))
	// Headers names the response headers of answers; nil: there are none.
	Headers *HeaderNames
	// Metadata fills dynamic_metadata.
	Metadata bool
	// MaxDecisions bounds the bytes that large requests take at a time while they are
	// decoded and decided; further ones wait for their turn. Defaults to 64 MiB.
	MaxDecisions int64
	// Remote says that the limiter's store is a server. Large requests that wait for
	// it let others have their core.
	Remote bool
}

// Service answers RateLimitService calls.
type Service struct {
	cfg  Config
	pool sync.Pool // of *call
	// largePool is of those that have a turn.
	largePool sync.Pool
	turns     *turns
	now       time.Time // of all requests, in tests; zero: the store's clock
}

// New returns a service; Register and JSON make it reachable.
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

// decide answers the request in data, whose texts c refers to, in turn t. The caller must
// Put the reply. Errors have been reported to Config.OnError.
func (s *Service) decide(ctx context.Context, c *call, data []byte, t *turn) (*reply, error) {
	r, err := s.tryDecide(ctx, c, data, t)
	if err != nil {
		s.cfg.OnError(err)
	}
	return r, err
}

func (s *Service) tryDecide(ctx context.Context, c *call, data []byte, t *turn) (*reply, error) {
	if err := c.scan(data); err != nil {
		return nil, err
	}
	if err := s.check(ctx, c, t); err != nil {
		return nil, err
	}
	r := newReply(len(c.answer.Statuses))
	r.bytes = appendStatuses(r.bytes[:0], &c.answer)
	if s.cfg.Headers != nil {
		r.bytes = s.cfg.Headers.appendTo(r.bytes, &c.answer)
	}
	if s.cfg.Metadata {
		var err error
		if r.bytes, err = c.appendMetadata(r.bytes); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// check decides on c.req, in turn t. After it t may lack its core, if ctx ended.
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
		problem = textOf(err)
	}
	return err
}

// codeOf is the table from errors to gRPC codes.
func codeOf(err error) codes.Code {
	switch {
	case errors.Is(err, limiter.ErrTooLarge):
		return codes.ResourceExhausted
	case errors.Is(err, limiter.ErrRequest):
		return codes.InvalidArgument
	case errors.Is(err, backend.ErrOverload):
		return codes.ResourceExhausted
	case errors.Is(err, limiter.ErrNotReady), errors.Is(err, limiter.ErrStore):
		return codes.Unavailable
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return codes.Internal
}

// textOf is what a caller may read of an error: what is wrong with its own
// request, and of ours only the class, since a store's text may name keys.
func textOf(err error) string {
	switch {
	case errors.Is(err, limiter.ErrRequest):
		return err.Error()
	case errors.Is(err, limiter.ErrNotReady):
		return limiter.ErrNotReady.Error()
	case errors.Is(err, backend.ErrOverload):
		return backend.ErrOverload.Error()
	case errors.Is(err, limiter.ErrStore):
		return limiter.ErrStore.Error()
	}
	return "internal error"
}
