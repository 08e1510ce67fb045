// Package divvy serves the line protocol of Button's divvy over TCP: a line
// `HIT key=value key="a value"` is answered by a line `OK true 41 30`. It turns
// lines into limiter.Requests and statuses into lines; the limiter decides.
package divvy

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/limiter"
)

// Config configures a Server.
type Config struct {
	// Limiter decides; required.
	Limiter *limiter.Limiter
	// Domain is the domain of a HIT that names none. Required, unless DomainKey is set:
	// then a HIT that names no domain is an error.
	Domain string
	// OnlyList replaces Domain by the only ordered list among the loaded rules, if
	// there is exactly one.
	OnlyList bool
	// DomainKey is the key of the pair that names the domain; the pair is removed from
	// the request. Empty: clients cannot choose the domain.
	DomainKey string
	// TLS encrypts every connection, if set.
	TLS *tls.Config
	// RoundUp rounds the seconds in replies up. By default they are rounded to the
	// nearest, as divvy does, so a reply may say 0 in the last half second.
	RoundUp bool
	Limits
	Events
}

// Limits bound what clients can use.
type Limits struct {
	// MaxLine is the longest line in bytes, without its end. Defaults to 1 MiB, at most
	// 64 MiB.
	MaxLine int
	// MaxConns is how many connections may be open. See connlimit for the connection
	// that makes room for another. Defaults to 10,000.
	MaxConns int
	// Budget counts long lines, and replies being written. Nil: no bound.
	Budget *connlimit.Budget
	// MaxPipelined is how many requests of a connection are decided in one call of the
	// limiter. At most limiter.MaxDescriptors. Defaults to 128.
	MaxPipelined int
	// Idle is how long a connection may go without a complete line. Negative: no bound.
	// Defaults to 10 minutes.
	Idle time.Duration
	// WriteTimeout is how long a write may be blocked by a client that does not read.
	// Defaults to 10 seconds.
	WriteTimeout time.Duration
}

// Events are callbacks. They must be fast and safe for concurrent use.
type Events struct {
	// OnHits is called after n HITs were answered with OK; took is the time that the
	// decision took.
	OnHits func(n int, took time.Duration)
	// OnFailure is called with each error of the limiter that ended a connection.
	OnFailure func(error)
	// OnPanic is called for each panic that ended a connection.
	OnPanic func(value any, stack []byte)
}

const (
	defaultMaxLine = 1 << 20
	defaultIdle    = 10 * time.Minute
)

// Server answers clients of divvy. Create it with New.
type Server struct {
	cfg    Config
	domain []byte          // cfg.Domain
	ctx    context.Context // of all requests
	cancel context.CancelFunc
	now    time.Time // the time of all requests, in tests; zero: the store's clock
	port   *connlimit.Listener
	pools  pools
	counts counts

	stopping context.Context // ended by Shutdown
	stop     context.CancelFunc
	deadline time.Time // the last read deadline; set before stopping ends

	mu         sync.Mutex
	conns      map[*conn]struct{} // guarded by mu; includes the refused ones
	turnedAway int                // guarded by mu; how many of conns were refused
	running    sync.WaitGroup     // the goroutines of conns; none is added while stopping
}

// counts are the figures that connlimit does not have.
type counts struct {
	hits      atomic.Uint64
	errors    map[string]*atomic.Uint64 // by code
	longBytes atomic.Int64              // of buffers for long lines; at most maxLong
}

// New returns a server without a listener.
func New(cfg Config) (*Server, error) {
	cfg.MaxLine = cmp.Or(cfg.MaxLine, defaultMaxLine)
	cfg.MaxConns = cmp.Or(cfg.MaxConns, 10_000)
	cfg.MaxPipelined = cmp.Or(cfg.MaxPipelined, 128)
	cfg.Idle = cmp.Or(cfg.Idle, defaultIdle)
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, 10*time.Second)
	switch {
	case cfg.Limiter == nil:
		return nil, errors.New("divvy: Config.Limiter is missing")
	case cfg.Domain == "" && cfg.DomainKey == "":
		return nil, errors.New("divvy: Config.Domain and Config.DomainKey are both empty")
	case cfg.MaxLine < 0 || cfg.MaxConns < 0 || cfg.MaxPipelined < 0 || cfg.WriteTimeout < 0:
		return nil, errors.New("divvy: a limit is negative")
	case cfg.MaxLine > maxLong:
		return nil, fmt.Errorf("divvy: the longest line is %d bytes, more than %d", cfg.MaxLine, maxLong)
	case cfg.MaxPipelined > limiter.MaxDescriptors:
		return nil, fmt.Errorf("divvy: %d requests at a time are more than %d", cfg.MaxPipelined, limiter.MaxDescriptors)
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
	s := &Server{cfg: cfg, domain: []byte(cfg.Domain), conns: make(map[*conn]struct{})}
	s.counts.errors = map[string]*atomic.Uint64{codeUnknown: {}, codeUnknownCommand: {}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.stopping, s.stop = context.WithCancel(s.ctx)
	s.pools.batches.New = func() any { return &batch{srv: s, req: limiter.Request{Independent: true}} }
	s.pools.replies.New = func() any { return new(bytes.Buffer) }
	limit := connlimit.Config{Max: cfg.MaxConns, Unread: cfg.WriteTimeout, Budget: cfg.Budget, Unmetered: true, Refuse: s.start}
	if cfg.TLS != nil {
		limit.Greeting = tlsGreeting
	}
	s.port = connlimit.New(nil, limit)
	return s, nil
}

// Stats are the figures of a Server. Counters count since the start.
type Stats struct {
	connlimit.Stats
	// Hits counts HITs that were answered with OK, true or false.
	Hits uint64
	// Errors counts ERR replies by code; it has every code.
	Errors map[string]uint64
}

// Stats returns the server's figures.
func (s *Server) Stats() Stats {
	st := Stats{Stats: s.port.Stats(), Hits: s.counts.hits.Load(), Errors: make(map[string]uint64)}
	for code, n := range s.counts.errors {
		st.Errors[code] = n.Load()
	}
	return st
}
