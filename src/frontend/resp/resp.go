// Package resp serves RESP, the protocol of Redis, in the versions 2 and 3. So every client of Redis is a client of the
// limiter: RATELIMIT asks the rules, RATELIMIT.TREE a tree of limits, and CL.THROTTLE is that of redis-cell. All of
// these that have arrived on a connection are decided together, with one call of the store.
package resp

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
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
	// Version is the version that HELLO and INFO tell. Defaults to 0.0.0.
	Version string
	Access
	// Reset resets the counters of a descriptor, as operator.Editor does. Without it, RATELIMIT.RESET is refused.
	Reset           func(context.Context, *operator.CounterChange, operator.Client) (*operator.CounterReport, error)
	pipeline.Config // MaxInputBytes, the longest command, defaults to 1 MiB.
}

// Server answers clients of Redis, and counts complete commands. Create it with New.
type Server struct {
	*pipeline.Server
	cfg     Config
	started time.Time
	now     time.Time // the time of all requests in tests. The zero time means the store's clock.

	commandList    []*command
	commandsByName map[string]*command // also has the refused commands.

	batchPool sync.Pool // *batch values.
	lastID    atomic.Uint64
}

// New returns a server without a listener. It fails if cfg is invalid.
func New(cfg Config) (*Server, error) {
	cfg.MaxInputBytes = cmp.Or(cfg.MaxInputBytes, 1<<20)
	cfg.Version = cmp.Or(cfg.Version, "0.0.0")
	switch {
	case cfg.Limiter == nil:
		return nil, errors.New("resp: Config.Limiter is missing")
	case cfg.MaxInputBytes < minCommandBytes:
		return nil, fmt.Errorf("resp: the longest command has %d bytes, less than %d", cfg.MaxInputBytes, minCommandBytes)
	}
	s := &Server{cfg: cfg, started: time.Now(), commandList: newCommandList()}
	s.commandsByName = indexCommands(s.commandList)
	s.batchPool.New = func() any { return &batch{srv: s} }
	s.cfg.Protocol, s.cfg.Request, s.cfg.ErrorCodes = "resp", "command", errorCodes
	s.cfg.NewSession, s.cfg.FaultReply = s.newSession, s.faultReply
	var err error
	s.Server, err = pipeline.New(&s.cfg.Config)
	return s, err
}

// faultReply returns the error reply for f, which ends the connection, and counts it.
func (s *Server) faultReply(f *pipeline.Fault) []byte {
	var b bytes.Buffer
	s.writeError(&b, &replyError{codeERR, f.Text})
	return b.Bytes()
}
