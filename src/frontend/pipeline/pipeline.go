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
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/frontend/connlimit"
)

// Session answers the requests of one connection. One goroutine at a time calls it.
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

// Faultf returns a fault without a code.
func Faultf(format string, args ...any) *Fault { return &Fault{Text: fmt.Sprintf(format, args...)} }

// Error returns the text.
func (f *Fault) Error() string { return f.Text }

// OneLine returns a text with spaces in place of line ends, which a quoted part of a request may have.
func OneLine(text string) string { return lineEndReplacer.Replace(text) }

var lineEndReplacer = strings.NewReplacer("\n", " ", "\r", " ")

// Config configures a Server. The front end that implements a protocol sets the fields up to ErrorCodes, and New sets
// those that are 0 to their defaults.
type Config struct {
	// Protocol is the name of the protocol in errors; Request is what it calls a request.
	Protocol, Request string
	// NewSession returns the session of a connection that client has opened.
	NewSession func(client net.Addr) Session
	// FaultReply returns the reply for a fault. It is called once for each fault that is sent.
	FaultReply func(*Fault) []byte
	// ErrorCodes are the codes of all error replies.
	ErrorCodes []string

	// TLS, if set, encrypts every connection.
	TLS *tls.Config
	// MaxInputBytes is the largest read buffer of a connection, at most MaxLargeInputBytes. A Session must return a Fault
	// for a request that does not fit. Required.
	MaxInputBytes int
	// MaxPollers is how many goroutines may serve the connections without TLS together, on Linux. If it is 0, each
	// connection has a goroutine. Answers must not wait for others, unless Replies.MayWait is called.
	MaxPollers int
	// MaxPipelined is how many requests of a connection are decided in one call, at most 1,000. Defaults to 128.
	MaxPipelined int
	// MaxConnections is how many connections may be open. If all are, connlimit.Listener closes one
	// or refuses the new one. Defaults to 10,000.
	MaxConnections int
	// MemoryBudget, if set, is charged for large requests, and for replies while they are written.
	MemoryBudget *connlimit.MemoryBudget
	// IdleTimeout is how long a connection may go without a complete request. 0 means no bound.
	IdleTimeout time.Duration
	// WriteTimeout is how long a client may block a write by not reading. Defaults to 10 seconds.
	WriteTimeout time.Duration
	Events
}

const maxPipelined = 1000

// Server answers clients. Create it with New.
type Server struct {
	// Answered counts the requests that were answered. The front end adds to it.
	Answered atomic.Uint64

	cfg      *Config
	listener *connlimit.Listener
	pollers  pollers

	repliesPool     sync.Pool // *Replies values.
	largeBuffers    largeBuffers
	errorReplies    map[string]*atomic.Uint64 // by code.
	largeInputBytes atomic.Int64              // the size of all buffers for large requests, at most MaxLargeInputBytes.

	ctx              context.Context // the context of all requests. When it ends, connections are closed.
	cancel           context.CancelFunc
	stoppingCtx      context.Context // Shutdown ends stoppingCtx.
	startStopping    context.CancelFunc
	lastReadDeadline time.Time // the read deadline of all connections after stoppingCtx has ended.

	mu             sync.Mutex
	refusedConns   int // how many refused connections are open; guarded by mu.
	connGoroutines sync.WaitGroup
}

// New returns a server without a listener. It sets the defaults of cfg, and fails if cfg is invalid.
func New(cfg *Config) (*Server, error) {
	cfg.MaxPipelined, cfg.MaxConnections = cmp.Or(cfg.MaxPipelined, 128), cmp.Or(cfg.MaxConnections, 10_000)
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, 10*time.Second)
	cfg.Events.setDefaults()
	switch {
	case cfg.MaxInputBytes <= 0,
		min(cfg.MaxPipelined, cfg.MaxPollers, cfg.MaxConnections) < 0, cfg.WriteTimeout < 0:
		return nil, errors.New(cfg.Protocol + ": a limit is negative")
	case cfg.MaxPipelined > maxPipelined:
		return nil, fmt.Errorf("%s: %d requests at a time are more than %d", cfg.Protocol, cfg.MaxPipelined, maxPipelined)
	case cfg.MaxInputBytes > MaxLargeInputBytes:
		return nil, fmt.Errorf("%s: the longest %s takes %d bytes, more than %d", cfg.Protocol, cfg.Request,
			cfg.MaxInputBytes, MaxLargeInputBytes)
	}
	s := &Server{cfg: cfg, errorReplies: make(map[string]*atomic.Uint64)}
	for _, code := range cfg.ErrorCodes {
		s.errorReplies[code] = new(atomic.Uint64)
	}
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

// CountErrorReply counts an error reply with one of Config.ErrorCodes.
func (s *Server) CountErrorReply(code string) { s.errorReplies[code].Add(1) }

// Stats are the figures of a Server, counted since the start.
type Stats struct {
	connlimit.Stats
	Answered     uint64            // Server.Answered.
	ErrorReplies map[string]uint64 // by code, with an element for each code.
}

// Stats returns the server's figures.
func (s *Server) Stats() Stats {
	st := Stats{Stats: s.listener.Stats(), Answered: s.Answered.Load(), ErrorReplies: make(map[string]uint64)}
	for code, n := range s.errorReplies {
		st.ErrorReplies[code] = n.Load()
	}
	return st
}

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

// MayWait tells the server that the rest of an answer may wait, although Config.MaxPollers is set. Then other
// connections do not wait for it.
func (r *Replies) MayWait() {
	if r.conn.isPolled() {
		r.conn.leavePoller()
	}
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

// Events are callbacks of a front end. They must be fast and safe for concurrent use. Those that are nil do nothing.
type Events struct {
	// OnDecisions is called after n requests were decided together. took is how long that took.
	OnDecisions func(n int, took time.Duration)
	// OnFailure is called with the error of a request that the limiter could not decide.
	OnFailure func(error)
	// OnPanic is called for each panic that ended a connection.
	OnPanic func(value any, stack []byte)
}

// setDefaults replaces callbacks that are nil.
func (e *Events) setDefaults() {
	if e.OnDecisions == nil {
		e.OnDecisions = func(int, time.Duration) {}
	}
	if e.OnFailure == nil {
		e.OnFailure = func(error) {}
	}
	if e.OnPanic == nil {
		e.OnPanic = func(any, []byte) {}
	}
}
