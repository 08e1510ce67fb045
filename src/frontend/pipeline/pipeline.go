// Package pipeline serves protocols over TCP in which a client may send many requests before it reads a reply, such as
// divvy's and RESP. A Session answers the requests that have arrived together. The package bounds connections, memory
// and time, and stops with grace.
package pipeline

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/frontend/connlimit"
)

// Session answers the requests of one connection. Only the goroutine of the connection calls it.
type Session interface {
	// Answer answers the complete requests at the start of input, and writes their replies to r. If atEnd is set, the
	// client sends nothing more. Answer returns how many bytes of input it is done with, and how many requests it
	// answered. The next input starts with the bytes that are left. An error ends the connection. If it is a *Fault, the
	// client gets a reply that says why.
	Answer(ctx context.Context, input []byte, atEnd bool, r *Replies) (consumed, requests int, err error)
}

// Fault is an error that a client is told about before its connection is closed.
type Fault struct {
	// Code is a code of the protocol. It is empty for faults that this package finds.
	Code string
	Text string
}

// Error returns the text.
func (f *Fault) Error() string { return f.Text }

// Config configures a Server.
type Config struct {
	// Protocol is the name of the protocol in errors; Request is what it calls a request.
	Protocol, Request string
	// NewSession returns the session of a connection that client has opened. Required.
	NewSession func(client net.Addr) Session
	// FaultReply returns the reply for a fault. It is called once for each fault that is sent. Required.
	FaultReply func(*Fault) []byte
	// TLS, if set, encrypts every connection.
	TLS *tls.Config
	// OnPanic is called for each panic that ended a connection. Required.
	OnPanic func(value any, stack []byte)
	Limits
}

// MaxPipelined is the most requests of a connection that a front end decides in one call.
const MaxPipelined = 1000

// Limits bound what clients can use.
type Limits struct {
	// MaxInputBytes is the largest read buffer of a connection, at most MaxLargeInputBytes. A Session must return a Fault
	// for a request that does not fit. Required.
	MaxInputBytes int
	// MaxConnections is how many connections may be open. If all are, connlimit.Listener closes one
	// or refuses the new one. Defaults to 10,000.
	MaxConnections int
	// MemoryBudget, if set, is charged for large requests, and for replies while they are written.
	MemoryBudget *connlimit.MemoryBudget
	// IdleTimeout is how long a connection may go without a complete request. 0 means no bound.
	IdleTimeout time.Duration
	// WriteTimeout is how long a client may block a write by not reading. Defaults to 10 seconds.
	WriteTimeout time.Duration
}

// Server answers clients. Create it with New.
type Server struct {
	cfg      Config
	listener *connlimit.Listener

	repliesPool     sync.Pool // *Replies values.
	largeBuffers    largeBuffers
	largeInputBytes atomic.Int64 // the size of all buffers for large requests, at most MaxLargeInputBytes.

	ctx              context.Context // the context of all requests. When it ends, connections are closed.
	cancel           context.CancelFunc
	stoppingCtx      context.Context // Shutdown ends stoppingCtx.
	startStopping    context.CancelFunc
	lastReadDeadline time.Time // the read deadline of all connections after stoppingCtx has ended.

	mu             sync.Mutex
	refusedConns   int // how many refused connections are open; guarded by mu.
	connGoroutines sync.WaitGroup
}

// New returns a server without a listener. It fails if cfg is invalid.
func New(cfg Config) (*Server, error) {
	cfg.MaxConnections = cmp.Or(cfg.MaxConnections, 10_000)
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, 10*time.Second)
	switch {
	case cfg.NewSession == nil || cfg.FaultReply == nil || cfg.OnPanic == nil:
		return nil, errors.New(cfg.Protocol + ": a function of pipeline.Config is missing")
	case cfg.MaxInputBytes <= 0 || cfg.MaxConnections < 0 || cfg.WriteTimeout < 0:
		return nil, errors.New(cfg.Protocol + ": a limit is negative")
	case cfg.MaxInputBytes > MaxLargeInputBytes:
		return nil, fmt.Errorf("%s: the longest %s takes %d bytes, more than %d", cfg.Protocol, cfg.Request,
			cfg.MaxInputBytes, MaxLargeInputBytes)
	}
	s := &Server{cfg: cfg}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.stoppingCtx, s.startStopping = context.WithCancel(s.ctx)
	s.repliesPool.New = func() any { return new(Replies) }
	limit := connlimit.Config{
		MaxConnections: cfg.MaxConnections, UnreadTimeout: cfg.WriteTimeout,
		MemoryBudget: cfg.MemoryBudget, OnlyManualCharges: true, OnRefuse: s.startConn,
	}
	if cfg.TLS != nil {
		limit.GreetingWrites = tlsGreetingWrites
	}
	s.listener = connlimit.New(nil, limit)
	return s, nil
}

// Stats returns the figures of the connections.
func (s *Server) Stats() connlimit.Stats { return s.listener.Stats() }

// Replies collects the replies of a connection. Each Write must have only whole replies.
type Replies struct {
	bytes.Buffer
	conn *conn
}

// FlushIfLarge writes the collected replies to the client if they are many. It fails if the client does not read them
// in time. Then the connection must end.
func (r *Replies) FlushIfLarge() error {
	if r.Len() < flushThresholdBytes {
		return nil
	}
	err := r.conn.writeReplies(r.Bytes())
	r.Reset()
	return err
}

// maxPooledBytes is the size of the largest buffer that is pooled again.
const maxPooledBytes = 64 << 10

func (s *Server) newReplies(c *conn) *Replies {
	r := s.repliesPool.Get().(*Replies)
	r.conn = c
	return r
}

func (s *Server) releaseReplies(r *Replies) {
	r.conn = nil
	if r.Cap() <= maxPooledBytes {
		r.Reset()
		s.repliesPool.Put(r)
	}
}
