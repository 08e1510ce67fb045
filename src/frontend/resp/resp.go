// Package resp serves RESP, the protocol of Redis, in the versions 2 and 3. So every client of Redis is a client of the
// limiter: RATELIMIT asks the rules, RATELIMIT.TREE a tree of limits, and CL.THROTTLE is that of redis-cell. All of
// these that have arrived on a connection are decided together, with one call of the store.
package resp

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
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Limiter decides requests. It is a limiter.Limiter, or wraps one.
type Limiter interface {
	CheckMany(context.Context, *limiter.Many)
	DryRun(context.Context, *limiter.Request, *limiter.Answer) error
	Rules() *rules.Set
}

// Config configures a Server.
type Config struct {
	// Limiter decides the requests; required.
	Limiter Limiter
	// ThrottleRefusal, if set, says why CL.THROTTLE is refused: the store cannot count it.
	ThrottleRefusal string
	// Version is the version that HELLO and INFO tell.
	Version string
	// TLS, if set, encrypts every connection.
	TLS *tls.Config
	Access
	Operations
	// MaxPipelined is how many requests of a connection the limiter decides in one call, at most pipeline.MaxPipelined.
	// Defaults to 128.
	MaxPipelined int
	// Limits bound what clients can use. MaxInputBytes, the longest command, defaults to 1 MiB.
	pipeline.Limits
	pipeline.Events
}

// Operations are commands for operators. They are refused where the function is nil.
type Operations struct {
	// Reset resets the counters of the descriptor, and returns how many there are. client goes into the log.
	Reset func(ctx context.Context, domain string, entries []rules.Entry, client Client) (counters int, err error)
}

// Client is the sender of a command for operators.
type Client struct {
	Addr string
	User string // the name that AUTH sent. Nothing checks it.
}

// ClientError is an error whose text is for the client. The texts of other errors are not sent.
type ClientError struct{ Text string }

func (e *ClientError) Error() string { return e.Text }

// Server answers clients of Redis. Create it with New.
type Server struct {
	*pipeline.Server
	cfg     Config
	started time.Time
	now     time.Time // the time of all requests in tests. The zero time means the store's clock.

	commandList    []*command
	commandsByName map[string]*command // also has the refused commands.

	batchPool sync.Pool // *batch values.
	lastID    atomic.Uint64

	commands     atomic.Uint64
	errorReplies pipeline.ErrorCounts
}

// New returns a server without a listener. It fails if cfg is invalid.
func New(cfg Config) (*Server, error) {
	cfg.MaxInputBytes = cmp.Or(cfg.MaxInputBytes, 1<<20)
	cfg.MaxPipelined = cmp.Or(cfg.MaxPipelined, 128)
	switch {
	case cfg.Limiter == nil:
		return nil, errors.New("resp: Config.Limiter is missing")
	case cfg.MaxInputBytes < minCommandBytes:
		return nil, fmt.Errorf("resp: the longest command has %d bytes, less than %d", cfg.MaxInputBytes, minCommandBytes)
	case cfg.MaxPipelined < 0 || cfg.MaxPipelined > pipeline.MaxPipelined:
		return nil, fmt.Errorf("resp: %d requests at a time are not between 1 and %d", cfg.MaxPipelined,
			pipeline.MaxPipelined)
	}
	cfg.SetDefaults()
	s := &Server{
		cfg: cfg, started: time.Now(), commandList: newCommandList(),
		errorReplies: pipeline.NewErrorCounts(errorCodes...),
	}
	s.commandsByName = indexCommands(s.commandList)
	s.batchPool.New = func() any { return &batch{srv: s} }
	server, err := pipeline.New(pipeline.Config{
		Protocol: "resp", Request: "command",
		NewSession: s.newSession,
		FaultReply: s.faultReply,
		TLS:        cfg.TLS,
		OnPanic:    cfg.OnPanic,
		Limits:     cfg.Limits,
	})
	s.Server = server
	return s, err
}

// faultReply returns the error reply for f, which ends the connection, and counts it.
func (s *Server) faultReply(f *pipeline.Fault) []byte {
	var b bytes.Buffer
	s.writeError(&b, &replyError{codeERR, f.Text})
	return b.Bytes()
}

// Stats are the figures of a Server, counted since the start.
type Stats struct {
	connlimit.Stats
	// Commands counts complete commands.
	Commands uint64
	// ErrorReplies counts error replies by code. It has an element for each code.
	ErrorReplies map[string]uint64
}

// Stats returns the server's figures.
func (s *Server) Stats() Stats {
	return Stats{Stats: s.Server.Stats(), Commands: s.commands.Load(), ErrorReplies: s.errorReplies.Read()}
}
