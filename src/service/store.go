package service

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/backend"
	"ratelimit/src/backend/fallback"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/overlimit"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
	"ratelimit/src/backend/split"
	"ratelimit/src/files"
	"ratelimit/src/metrics"
	"ratelimit/src/settings"
	"ratelimit/src/tracing"
)

// store holds the counters, with its long-lived parts and figures.
type store struct {
	backend.Backend
	runs    []func(context.Context) error // long-lived parts
	pools   []*pool                       // of Redis, or Memcached
	figures []func() []metrics.Figure

	fallback *fallback.Store // nil: the store is always there

	bytes func() int64 // that counters in this process take
}

// pinger is a store in other processes, which may not answer.
type pinger interface {
	Ping(ctx context.Context) error
}

// pool is one such store, and how the service waits for it.
type pool struct {
	pinger
	name   string // redis_pool, redis_per_second_pool or memcache
	what   string // in messages
	always bool   // health goes by it after the start, too
	// The pause between two attempts at the start doubles up to the longest.
	pause, longest time.Duration
	limit          time.Duration // on all of them; 0: none
	// broken is how many of its servers are only probed.
	broken func() int
	// slow is the server that answers later than a call may take; nil: none.
	slow     func() *remote.SlowError
	timeout  string        // the variable that says how long that is
	patience time.Duration // of one question whether it is there
}

// note returns a remark about the pool that does not make the process unready; "": none.
func (p *pool) note() string {
	slow := p.slow()
	if n := p.broken(); n > 0 && slow == nil {
		return plural(n, "server") + " without an answer, only probed"
	}
	if slow != nil {
		return tooSlow(p.what, p.timeout, slow).class
	}
	return ""
}

// tooSlow returns the reason for a store that answers later than the timeout that the
// variable sets.
func tooSlow(what, variable string, e *remote.SlowError) reason {
	class := fmt.Sprintf("%s answers in %s, %s is %s",
		what, remote.InMilliseconds(e.Took), variable, remote.InMilliseconds(e.Timeout))
	enough := (2*e.Took + 10*time.Millisecond).Truncate(10 * time.Millisecond)
	return reason{class, fmt.Sprintf("%s: set it to %v or more (%s)", class, enough, e.Addr)}
}

// onSlow logs that calls fail because the server answers later than the timeout.
func onSlow(log *logrus.Logger, what, variable string) func(*remote.SlowError) {
	return func(e *remote.SlowError) { log.Warnf("calls time out: %s", tooSlow(what, variable, e).full) }
}

// storeSpan is the hook for tracing of the stores' Configs.
type storeSpan = func(ctx context.Context, hits int) (end func(error))

// buildStore makes the store that the settings choose, and tells the garbage collector
// and the metrics of it.
func (s *Service) buildStore() (err error) {
	if s.store, err = newStore(s.Settings, s.tracing, s.log.Logger); err != nil {
		return err
	}
	s.Heap.Watch(s.store.bytes, s.Settings.MemoryMaxBytes)
	return nil
}

// newStore makes a store: memory, or Memcached or Redis, split by second, behind the
// over-limit cache, behind the fallback for when they do not answer.
func newStore(cfg *settings.Settings, spans *tracing.Provider, log *logrus.Logger) (*store, error) {
	s := new(store)
	switch cfg.BackendType {
	case "memory":
		m, err := memory.New(memory.Config{MaxBytes: cfg.MemoryMaxBytes})
		if err != nil {
			return nil, fmt.Errorf("MEMORY_MAX_BYTES: %w", err)
		}
		s.Backend, s.bytes = m, m.Bytes
		s.figures = append(s.figures, memoryFigures(m))
		return s, nil
	case "memcache":
		m, err := s.memcache(cfg, spans.Memcached(), log)
		if err != nil {
			return nil, err
		}
		s.Backend = m
	default:
		if err := s.allRedis(cfg, spans, log); err != nil {
			return nil, err
		}
	}
	if cfg.LocalCacheBytes > 0 {
		cache := overlimit.New(s.Backend, overlimit.Config{Bytes: int(cfg.LocalCacheBytes)})
		s.Backend = cache
		s.figures = append(s.figures, cacheFigures(cache))
	}
	return s, s.fallBack(cfg, log)
}

// allRedis makes the store of the one Redis, or of both.
func (s *store) allRedis(cfg *settings.Settings, spans *tracing.Provider, log *logrus.Logger) error {
	rest, err := s.redis(cfg, cfg.Redis, "redis_pool", "Redis", "REDIS_TIMEOUT", spans.Redis("pipeline length"), log)
	if err != nil {
		return err
	}
	s.Backend = rest
	if !cfg.RedisSplit {
		return nil
	}
	perSecond, err := s.redis(cfg, cfg.RedisPerSecond, "redis_per_second_pool", "the Redis of limits by the second", "REDIS_PERSECOND_TIMEOUT", spans.Redis("perSecondPipeline length"), log)
	if err != nil {
		return err
	}
	s.Backend = split.New(perSecond, rest)
	return nil
}

// redis makes the store of one Redis.
func (s *store) redis(cfg *settings.Settings, from settings.Redis, name, what, timeout string, span storeSpan, log *logrus.Logger) (*redis.Store, error) {
	batches := new(batchFigures)
	rc := redis.Config{
		PipelineLimit: from.PipelineLimit,
		Config: remote.Config{
			PipelineWindow:   from.PipelineWindow,
			Connections:      min(from.PoolSize, max(2, runtime.GOMAXPROCS(0)/4)),
			Timeout:          from.Timeout,
			ExpirationJitter: time.Duration(max(cfg.ExpirationJitter, 0)) * time.Second,
			TagKeys:          cfg.CacheKeyFormat == "v2",
			OnBatch:          batches.observe,
			Span:             span,
			MaxWaiting:       int64(cfg.Failure.MaxInFlight),
			BreakerFailures:  breakerFailures(cfg),
			OnBreaker:        onBreaker(log, "Redis"),
			OnSlow:           onSlow(log, what, timeout),
		},
	}
	if err := ReachRedis(&rc, from, cfg.RedisTLS); err != nil {
		return nil, err
	}
	out, err := redis.New(rc)
	if err != nil {
		return nil, err
	}
	s.runs = append(s.runs, out.Run)
	s.pools = append(s.pools, &pool{
		pinger: out, name: name, what: what, always: cfg.RedisHealthCheck,
		pause: cfg.RedisStartupInitial, longest: cfg.RedisStartupMax, limit: cfg.RedisStartupElapsed,
		broken: func() int { return out.Stats().BreakersOpen },
		slow:   out.Slow, timeout: timeout, patience: pingPatience(from.Timeout),
	})
	s.figures = append(s.figures, redisFigures(name, out, batches))
	return out, nil
}

// breakerFailures returns the setting for the stores' Configs, where 0 means the default.
func breakerFailures(cfg *settings.Settings) int {
	if cfg.Failure.BreakerFailures == 0 {
		return -1
	}
	return cfg.Failure.BreakerFailures
}

// onBreaker logs that a server is only probed, and that it answers again: at one level, so
// that a log with the first line has the second.
func onBreaker(log *logrus.Logger, what string) func(addr string, open bool, why error) {
	return func(addr string, open bool, why error) {
		switch {
		case open:
			log.Warnf("%s at %s is only probed until it answers: %v", what, addr, why)
		case why != nil:
			log.Warnf("%s at %s is not probed any more: %v", what, addr, why)
		default:
			log.Warnf("%s at %s answers again", what, addr)
		}
	}
}

// ReachRedis sets in rc the address and the credentials of a Redis.
func ReachRedis(rc *redis.Config, at settings.Redis, files settings.TLSFiles) error {
	rc.Credentials = redisCredentials(at.Auth, at.AuthFile)
	rc.DB = at.DB
	switch at.Type {
	case "SENTINEL":
		rc.Sentinel = &redis.Sentinel{
			Primary: at.Primary, Addrs: at.Addrs, Credentials: redisCredentials(at.SentinelAuth, at.SentinelAuthFile),
		}
	case "CLUSTER":
		rc.Cluster = at.Addrs
	default:
		rc.Network, rc.Addr = at.SocketType, at.Addrs[0]
	}
	if !at.TLS {
		return nil
	}
	var err error
	rc.TLS, err = storeTLS("REDIS_TLS_", files)
	return err
}

// redisCredentials returns a function that reads auth, which is "user:password" or
// "password", or a file with the same text.
func redisCredentials(auth, file string) func() (user, password string, err error) {
	reads := new(files.Reads)
	return func() (string, string, error) {
		text := auth
		if file != "" {
			data, err := files.Read(context.Background(), reads, func() ([]byte, error) { return os.ReadFile(file) })
			if err != nil {
				return "", "", fmt.Errorf("the file with the password: %w", err)
			}
			text = strings.TrimRight(string(data), "\r\n")
		}
		user, password, both := strings.Cut(text, ":")
		if !both {
			return "", text, nil
		}
		return user, password, nil
	}
}

// watchPool tells health whether pool i answers: until its first answer, and after that if
// the settings ask for it.
func (s *Service) watchPool(ctx context.Context, i int, p *pool) error {
	started, pause, wasUp := time.Now(), p.pause, false
	for {
		err := p.ping(ctx)
		if ctx.Err() != nil {
			return nil
		}
		up := err == nil
		storeless := false
		wasUp = wasUp || up
		s.health.update(func(h *health) {
			h.stores[i].err, h.stores[i].answered, storeless = err, wasUp, h.storeless
		})
		switch {
		case up && !p.always:
			return nil
		case up:
			pause = time.Second
		case wasUp:
			s.log.Warnf("unhealthy: %v", err)
		default: // still the start
			if p.limit > 0 && time.Since(started) > p.limit {
				return fmt.Errorf("REDIS_STARTUP_MAX_ELAPSED_TIME has passed: %w", err)
			}
			if storeless {
				s.log.Warnf("%v; on_store_failure decides", err)
				pause = min(pause, storelessPause)
			} else {
				s.log.Warnf("not ready: %v", err)
			}
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		case <-ctx.Done():
			return nil
		}
		if !wasUp {
			pause = min(2*pause, p.longest)
		}
	}
}

// storelessPause is the longest pause between two attempts of a service that answers
// requests without the store.
const storelessPause = time.Second

// pingPatience bounds one ping: finding the server and connecting to it.
func pingPatience(timeout time.Duration) time.Duration { return 2 * remote.SetupTimeout(timeout) }

func (p *pool) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.patience)
	defer cancel()
	err := p.Ping(ctx)
	if err == nil {
		return nil
	}
	if slow, isSlow := errors.AsType[*remote.SlowError](err); isSlow {
		return &slowPool{tooSlow(p.what, p.timeout, slow)}
	}
	return fmt.Errorf("%s does not answer: %w", p.what, err)
}

// slowPool is the error of a store that answers later than its timeout.
type slowPool struct{ why reason }

func (e *slowPool) Error() string { return e.why.full }
