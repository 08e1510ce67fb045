// Package divvy serves the line protocol of Button's divvy over TCP: it answers the line
// `HIT key=value key="a value"` with a line such as `OK true 41 30`. It turns lines into
// limiter.Requests, and the limiter's statuses into lines.
package divvy

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/limiter"
)

// Config configures a Server.
type Config struct {
	// Limiter decides the requests; required.
	Limiter *limiter.Limiter
	// Domain is the domain of a HIT that names none. It is required unless DomainKey is set;
	// then a HIT that names no domain is an error.
	Domain string
	// DomainFromOnlyList replaces Domain by the only ordered list of the loaded rules, if there is just one.
	DomainFromOnlyList bool
	// DomainKey is the key of the pair that names the domain. The pair is removed from the
	// request. If DomainKey is empty, clients cannot choose the domain.
	DomainKey string
	// TLS, if set, encrypts every connection.
	TLS *tls.Config
	// RoundSecondsUp rounds the seconds in replies up. By default they are rounded to the nearest,
	// as in divvy, so a reply may say 0 in the last half second.
	RoundSecondsUp bool
	Limits
	Events
}

// Limits bound what clients can use.
type Limits struct {
	// MaxLineBytes is the longest line in bytes, without its end, less than 64 MiB. Defaults to 1 MiB.
	MaxLineBytes int
	// MaxConnections is how many connections may be open. If all are, connlimit.Listener closes one
	// or refuses the new one. Defaults to 10,000.
	MaxConnections int
	// MemoryBudget, if set, is charged for long lines, and for replies while they are written.
	MemoryBudget *connlimit.MemoryBudget
	// MaxPipelinedRequests is how many requests of a connection the limiter decides in one call, at
	// most limiter.MaxDescriptors. Defaults to 128.
	MaxPipelinedRequests int
	// IdleTimeout is how long a connection may go without a complete line. 0 means no bound.
	IdleTimeout time.Duration
	// WriteTimeout is how long a client may block a write by not reading. Defaults to 10 seconds.
	WriteTimeout time.Duration
}

// Events are callbacks. They must be fast and safe for concurrent use.
type Events struct {
	// OnHits is called after n HITs were answered with OK. took is how long the decision took.
	OnHits func(n int, took time.Duration)
	// OnFailure is called with each error of the limiter that ended a connection.
	OnFailure func(error)
	// OnPanic is called for each panic that ended a connection.
	OnPanic func(value any, stack []byte)
}

const defaultMaxLineBytes = 1 << 20

// Server answers clients of divvy. Create it with New.
type Server struct {
	*pipeline.Server
	cfg           Config
	defaultDomain []byte
	now           time.Time // now is the time of all requests in tests. The zero time means the store's clock.

	batchPool sync.Pool // batchPool holds *batch values.

	answeredHits atomic.Uint64
	errorReplies map[string]*atomic.Uint64 // errorReplies counts ERR replies by code.
}

// New returns a server without a listener. It fails if cfg is invalid.
func New(cfg Config) (*Server, error) {
	cfg.MaxLineBytes = cmp.Or(cfg.MaxLineBytes, defaultMaxLineBytes)
	cfg.MaxPipelinedRequests = cmp.Or(cfg.MaxPipelinedRequests, 128)
	switch {
	case cfg.Limiter == nil:
		return nil, errors.New("divvy: Config.Limiter is missing")
	case cfg.Domain == "" && cfg.DomainKey == "":
		return nil, errors.New("divvy: Config.Domain and Config.DomainKey are both empty")
	case cfg.MaxLineBytes < 0 || cfg.MaxPipelinedRequests < 0:
		return nil, errors.New("divvy: a limit is negative")
	case cfg.MaxPipelinedRequests > limiter.MaxDescriptors:
		return nil, fmt.Errorf("divvy: %d requests at a time are more than %d", cfg.MaxPipelinedRequests, limiter.MaxDescriptors)
	}
	if cfg.OnHits == nil {
		cfg.OnHits = func(int, time.Duration) {}
	}
	if cfg.OnFailure == nil {
		cfg.OnFailure = func(error) {}
	}
	if cfg.OnPanic == nil {
		cfg.OnPanic = func(any, []byte) {}
	}
	s := &Server{cfg: cfg, defaultDomain: []byte(cfg.Domain)}
	s.errorReplies = map[string]*atomic.Uint64{errorCodeUnknown: {}, errorCodeUnknownCommand: {}}
	s.batchPool.New = func() any {
		return &batch{srv: s, req: limiter.Request{IndependentDescriptors: true, Protocol: limiter.ProtocolDivvy}}
	}
	server, err := pipeline.New(pipeline.Config{
		Protocol: "divvy", Request: "line",
		NewSession: func(net.Addr) pipeline.Session { return &session{srv: s} },
		FaultReply: s.faultReply,
		TLS:        cfg.TLS,
		OnPanic:    cfg.OnPanic,
		Limits: pipeline.Limits{
			MaxInputBytes:  cfg.MaxLineBytes + len("\r\n"),
			MaxConnections: cfg.MaxConnections, MemoryBudget: cfg.MemoryBudget,
			IdleTimeout: cfg.IdleTimeout, WriteTimeout: cfg.WriteTimeout,
		},
	})
	s.Server = server
	return s, err
}

// Stats are the figures of a Server, counted since the start.
type Stats struct {
	connlimit.Stats
	// AnsweredHits counts HITs that were answered with OK true or OK false.
	AnsweredHits uint64
	// ErrorReplies counts ERR replies by code. It has an element for each code.
	ErrorReplies map[string]uint64
}

// Stats returns the server's figures.
func (s *Server) Stats() Stats {
	st := Stats{Stats: s.Server.Stats(), AnsweredHits: s.answeredHits.Load(), ErrorReplies: make(map[string]uint64)}
	for code, n := range s.errorReplies {
		st.ErrorReplies[code] = n.Load()
	}
	return st
}
