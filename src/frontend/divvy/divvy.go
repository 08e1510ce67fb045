// Package divvy serves the line protocol of Button's divvy over TCP: it answers the line
// `HIT key=value key="a value"` with a line such as `OK true 41 30`. It turns lines into
// limiter.Requests, and the limiter's statuses into lines.
package divvy

import (
	"cmp"
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Limiter decides requests. It is a limiter.Limiter, or wraps one.
type Limiter interface {
	CheckMany(context.Context, *limiter.Many)
	Rules() *rules.Set
	ShadowMode() bool
}

// Config configures a Server.
type Config struct {
	// Limiter decides the requests; required.
	Limiter Limiter
	// Domain is the domain of a HIT that names none. It is required unless DomainKey is set;
	// then a HIT that names no domain is an error.
	Domain string
	// DomainFromOnlyList replaces Domain by the only ordered list of the loaded rules, if there is just one.
	DomainFromOnlyList bool
	// DomainKey is the key of the pair that names the domain. The pair is removed from the
	// request. If DomainKey is empty, clients cannot choose the domain.
	DomainKey string
	// RoundSecondsUp rounds the seconds in replies up. By default they are rounded to the nearest,
	// as in divvy, so a reply may say 0 in the last half second.
	RoundSecondsUp bool
	// MaxLineBytes is the longest line in bytes, without its end, less than 64 MiB. Defaults to 1 MiB. It sets
	// MaxInputBytes.
	MaxLineBytes int
	pipeline.Config
}

// Server answers clients of divvy, and counts HITs that were answered with OK true or OK false. Create it with New.
type Server struct {
	*pipeline.Server
	cfg           Config
	defaultDomain []byte
	now           time.Time // the time of all requests in tests. The zero time means the store's clock.
	batchPool     sync.Pool // *batch values.
}

// New returns a server without a listener. It fails if cfg is invalid.
func New(cfg Config) (*Server, error) {
	cfg.MaxLineBytes = cmp.Or(cfg.MaxLineBytes, 1<<20)
	switch {
	case cfg.Limiter == nil:
		return nil, errors.New("divvy: Config.Limiter is missing")
	case cfg.Domain == "" && cfg.DomainKey == "":
		return nil, errors.New("divvy: Config.Domain and Config.DomainKey are both empty")
	case cfg.MaxLineBytes < 0:
		return nil, errors.New("divvy: a limit is negative")
	}
	s := &Server{cfg: cfg, defaultDomain: []byte(cfg.Domain)}
	s.batchPool.New = func() any { return &batch{srv: s} }
	s.cfg.Protocol, s.cfg.Request, s.cfg.MaxInputBytes = "divvy", "line", cfg.MaxLineBytes+len("\r\n")
	s.cfg.NewSession = func(net.Addr) pipeline.Session { return &session{srv: s} }
	s.cfg.FaultReply, s.cfg.ErrorCodes = s.faultReply, []string{errorCodeUnknown, errorCodeUnknownCommand}
	var err error
	s.Server, err = pipeline.New(&s.cfg.Config)
	return s, err
}
