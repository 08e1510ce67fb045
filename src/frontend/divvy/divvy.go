// Package divvy speaks the line protocol of Button's divvy over TCP: a line
// `HIT key=value key="a value"`, answered by a line `OK true 41 30`. It turns
// lines into limiter.Requests and statuses into lines, and decides nothing.
package divvy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/frontend/budget"
	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/limiter"
)

// Config is what a Server is made of.
type Config struct {
	// Limiter decides; required.
	Limiter *limiter.Limiter
	// Domain is what HIT asks; required, unless DomainKey is set: then requests
	// that name none are refused.
	Domain string
	// OnlyList asks, instead of Domain, the only ordered list among the rules in
	// force, if there is just one.
	OnlyList bool
	// DomainKey is the key of a request whose value names the domain to ask
	// instead. It is no pair of the request then. Empty: none is, and no client can
	// ask another domain.
	DomainKey string
	// TLS, if set, is spoken on every connection.
	TLS *tls.Config

	// MaxLine is how long a line may be, in bytes without its end. Defaults to
	// 1 MiB, at most 64 MiB: what all connections together have for long ones.
	MaxLine int
	// MaxConns is how many connections may be open. Beyond it the longest idle one is
	// closed, or the new one is refused if none is idle. Defaults to 10,000.
	MaxConns int
	// Budget counts what connections hold: long lines, and replies being written. Nil:
	// no bound.
	Budget *budget.Budget
	// MaxPipelined is how many requests of a connection are decided at a time, in
	// one call of the store; what comes behind them waits. At most
	// limiter.MaxDescriptors. Defaults to 128.
	MaxPipelined int
	// Idle is how long a connection may go without a whole line. Less than 0: for
	// ever. Defaults to 10 minutes.
	Idle time.Duration
	// WriteTimeout is how long a client may take to make room for replies.
	// Defaults to 10 seconds.
	WriteTimeout time.Duration
	// RoundUp rounds seconds in replies up. Without it they are rounded to the
	// nearest, as divvy does, so that a refused client may be told 0 in the last
	// half second.
	RoundUp bool

	// OnHits, if set, is told of HITs that got an OK, n at a time, and how long it
	// took to decide them. It must be fast and safe for concurrent use.
	OnHits func(n int, took time.Duration)
	// Fallback, if set, is told of each error of the limiter that ended a
	// connection. It must be fast and safe for concurrent use.
	Fallback func(error)
	// OnPanic, if set, is told of each panic that ended a connection.
	OnPanic func(value any, stack []byte)
}

// The defaults of Config.
const (
	DefaultMaxLine      = 1 << 20
	DefaultMaxConns     = 10_000
	DefaultMaxPipelined = 128
	DefaultIdle         = 10 * time.Minute
	DefaultWriteTimeout = 10 * time.Second
)

// Server answers clients of divvy.
type Server struct {
	cfg    Config
	domain []byte          // cfg.Domain
	ctx    context.Context // of all requests
	cancel context.CancelFunc
	now    time.Time // of all requests, in tests; zero: the store's clock

	errLongLine, errCrowd, errIdle *fault

	batches sync.Pool // of *batch
	boxes   sync.Pool // of *[]byte, for replies

	hits, accepted, refused, overBudget, panics atomic.Uint64
	errors                                      [codes]atomic.Uint64
	long                                        atomic.Int64 // bytes of buffers for long lines, see maxLong

	mu       sync.Mutex
	listener *connlimit.Listener // nil: Serve was not called
	closing  chan struct{}       // closed by Shutdown
	conns    map[*conn]struct{}  // the refused ones included
	open     int                 // without these
	running  sync.WaitGroup      // of conns; nobody joins once closing is closed
}

// New returns a server that has no listener yet.
func New(cfg Config) (*Server, error) {
	cfg.MaxLine = cmp.Or(cfg.MaxLine, DefaultMaxLine)
	cfg.MaxConns = cmp.Or(cfg.MaxConns, DefaultMaxConns)
	cfg.MaxPipelined = cmp.Or(cfg.MaxPipelined, DefaultMaxPipelined)
	cfg.Idle = cmp.Or(cfg.Idle, DefaultIdle)
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, DefaultWriteTimeout)
	switch {
	case cfg.Limiter == nil:
		return nil, errors.New("divvy: there is no limiter")
	case cfg.Domain == "" && cfg.DomainKey == "":
		return nil, errors.New("divvy: there is no domain to ask")
	case cfg.MaxLine < 0 || cfg.MaxConns < 0 || cfg.MaxPipelined < 0 || cfg.WriteTimeout < 0:
		return nil, errors.New("divvy: a limit is below 0")
	case cfg.MaxLine > maxLong:
		return nil, fmt.Errorf("divvy: a line of %d bytes is too long, at most %d", cfg.MaxLine, maxLong)
	case cfg.MaxPipelined > limiter.MaxDescriptors:
		return nil, fmt.Errorf("divvy: %d requests are too many to decide at a time, at most %d", cfg.MaxPipelined, limiter.MaxDescriptors)
	}
	if cfg.OnHits == nil {
		cfg.OnHits = func(int, time.Duration) {}
	}
	if cfg.Fallback == nil {
		cfg.Fallback = func(error) {}
	}
	if cfg.OnPanic == nil {
		cfg.OnPanic = func(any, []byte) {}
	}
	s := &Server{
		cfg:         cfg,
		domain:      []byte(cfg.Domain),
		errLongLine: &fault{codeUnknown, fmt.Sprintf("Line is longer than %d bytes.", cfg.MaxLine)},
		errCrowd:    &fault{codeUnknown, fmt.Sprintf("More than %d connections.", cfg.MaxConns)},
		errIdle:     &fault{codeUnknown, fmt.Sprintf("No whole line within %v.", cfg.Idle)},
		closing:     make(chan struct{}),
		conns:       make(map[*conn]struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.batches.New = func() any {
		b := &batch{srv: s}
		b.clear()
		return b
	}
	s.boxes.New = func() any { return new([]byte) }
	return s, nil
}

// Stats is what a Server says of itself.
type Stats struct {
	// Open is how many connections there are.
	Open int
	// Accepted and Refused count connections since the start; refused were those
	// beyond MaxConns.
	Accepted, Refused uint64
	// Evicted counts connections closed to make room for others, OverBudget those
	// that held too many bytes.
	Evicted, OverBudget uint64
	// Hits counts HITs that got an OK, true or false.
	Hits uint64
	// Errors counts ERR replies by code, with all codes that there are.
	Errors map[string]uint64
	// Panics counts connections that a panic ended.
	Panics uint64
}

// Stats reads the server's figures.
func (s *Server) Stats() Stats {
	st := Stats{
		Accepted:   s.accepted.Load(),
		Refused:    s.refused.Load(),
		OverBudget: s.overBudget.Load(),
		Hits:       s.hits.Load(),
		Errors:     make(map[string]uint64, codes),
		Panics:     s.panics.Load(),
	}
	for c := range codes {
		st.Errors[codeNames[c]] = s.errors[c].Load()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.Open = s.open
	if s.listener != nil {
		st.Evicted = uint64(s.listener.Stats().Evicted)
	}
	return st
}
