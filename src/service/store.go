package service

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/fallback"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/overlimit"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
	"ratelimit/src/backend/split"
	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/metrics"
	"ratelimit/src/settings"
)

// store is the Backend of the limiter and its parts.
type store struct {
	backend.Backend
	pools    []*pool         // Redis, perhaps a second one, or Memcached; empty: memory
	fallback *fallback.Store // nil: counters are in this process, so the store always answers
	bytes    func() int64    // returns the memory of the counters in this process
}

// pool is Redis or Memcached, with the pings that find out whether it answers.
type pool struct {
	name       string // redis_pool, redis_per_second_pool or memcache
	product    string // Redis or Memcached
	label      string // names the store in messages, such as "Redis"
	variable   string // the setting of its timeout
	alwaysPing bool   // ping after the first answer, too, because health depends on it
	// The pause between two pings at the start doubles from firstPause to maxPause.
	firstPause, maxPause time.Duration
	startTimeout         time.Duration     // ends the process if no ping succeeded; 0: none
	batchHits            metrics.Sizes     // how many hits each batch had
	batchTimes           metrics.Histogram // how long each batch took
	pingTimeout          time.Duration
	server
}

// server is what Redis and Memcached have in common.
type server interface {
	Run(context.Context) error
	Ping(context.Context) error
	Stats() remote.Stats
	Slow() *remote.SlowError // the server that answers later than a call may take; nil: none
}

// poolConfig returns the settings that all stores with servers share.
func (s *Service) poolConfig(p *pool, conns int, timeout time.Duration) remote.Config {
	cfg := s.Settings
	p.pingTimeout = 2 * remote.SetupTimeout(timeout) // to find the server and to connect to it
	failures := cfg.Failure.BreakerFailures
	if failures == 0 { // off, while 0 is the default in remote.Config
		failures = -1
	}
	return remote.Config{
		Connections:      min(conns, max(2, runtime.GOMAXPROCS(0)/4)),
		Timeout:          timeout,
		ExpirationJitter: time.Duration(max(cfg.ExpirationJitter, 0)) * time.Second,
		TagKeys:          cfg.CacheKeyFormat == "v2",
		OnBatch: func(hits int, took time.Duration) {
			p.batchHits.Observe(hits)
			p.batchTimes.Observe(took)
		},
		MaxWaiting:      int64(cfg.Failure.MaxInFlight),
		BreakerFailures: failures,
		OnBreaker:       s.onBreaker(p.product),
		OnSlow:          func(e *remote.SlowError) { s.log.Warnf("calls time out: %v", p.tooSlow(e)) },
	}
}

// poolValues are the values of the figures of a pool.
type poolValues struct {
	Stats                 remote.Stats
	LocalClosed           int64 // connections that were closed
	BatchHits, BatchTimes metrics.Distribution
}

func (p *pool) values() poolValues {
	st := p.Stats()
	return poolValues{st, st.Dials - st.Open, &p.batchHits, &p.batchTimes}
}

// addPool adds the pool of a store that was made, and the figures that only its product has.
func (s *Service) addPool(p *pool, made server, own func() []metrics.Figure) {
	p.server = made
	s.store.pools = append(s.store.pools, p)
	s.runs = append(s.runs, made.Run, func(ctx context.Context) error { return s.watchPool(ctx, p) })
	s.counters.Add(figures("pool", p.name, p.values))
	s.counters.Add(own)
}

// note returns a remark about the pool that does not make the process unready; "": none.
func (p *pool) note() string {
	if slow := p.Slow(); slow != nil {
		return p.tooSlow(slow).class
	}
	if n := p.Stats().BreakersOpen; n > 0 {
		return plural(n, "server") + " without an answer, only probed"
	}
	return ""
}

// tooSlow returns the error of a server that answers later than the timeout.
func (p *pool) tooSlow(e *remote.SlowError) *storeError {
	class := fmt.Sprintf("%s answers in %s, %s is %s", p.label, remote.InMilliseconds(e.Took), p.variable, remote.InMilliseconds(e.Timeout))
	enough := (2*e.Took + 10*time.Millisecond).Truncate(10 * time.Millisecond)
	return &storeError{class, fmt.Sprintf("%s: set it to %v or more (%s)", class, enough, e.Addr)}
}

// buildStore makes the store that the settings choose. Redis and Memcached get the
// over-limit cache in front, if it is on, and the fallback in front of that.
func (s *Service) buildStore() error {
	cfg := s.Settings
	var err error
	switch cfg.BackendType {
	case "memory":
		m, err := memory.New(memory.Config{MaxBytes: cfg.MemoryMaxBytes})
		if err != nil {
			return fmt.Errorf("MEMORY_MAX_BYTES: %w", err)
		}
		s.store.Backend, s.store.bytes = m, m.Bytes
		s.counters.Add(figures("memory", "", m.Stats))
		return nil
	case "memcache":
		s.store.Backend, err = s.memcache()
	default:
		s.store.Backend, err = s.allRedis()
	}
	if err != nil {
		return err
	}
	if cfg.LocalCacheBytes > 0 {
		cache := overlimit.New(s.store.Backend, int(cfg.LocalCacheBytes))
		s.store.Backend = cache
		s.counters.Add(figures("overlimit", "", cache.Stats))
	}
	return s.fallBack()
}

// allRedis makes the store of one Redis, or of two if limits per second have their own.
func (s *Service) allRedis() (backend.Backend, error) {
	cfg := s.Settings
	p := &pool{name: "redis_pool", product: "Redis", label: "Redis", variable: "REDIS_TIMEOUT"}
	main, err := s.redis(p, cfg.Redis, s.tracing.Redis("pipeline length"))
	if err != nil || !cfg.RedisSplit {
		return main, err
	}
	p = &pool{name: "redis_per_second_pool", product: "Redis", label: "the Redis of limits by the second", variable: "REDIS_PERSECOND_TIMEOUT"}
	perSecond, err := s.redis(p, cfg.RedisPerSecond, s.tracing.Redis("perSecondPipeline length"))
	if err != nil {
		return nil, err
	}
	return split.New(perSecond, main), nil
}

// redis makes the store of one Redis. span starts the span of a batch.
func (s *Service) redis(p *pool, from settings.Redis, span func(context.Context, int) func(error)) (*redis.Store, error) {
	cfg := s.Settings
	p.alwaysPing, p.firstPause, p.maxPause, p.startTimeout = cfg.RedisHealthCheck, cfg.RedisStartupInitial, cfg.RedisStartupMax, cfg.RedisStartupElapsed
	rc := redis.Config{Config: s.poolConfig(p, from.PoolSize, from.Timeout), PipelineLimit: from.PipelineLimit}
	rc.PipelineWindow, rc.Span = from.PipelineWindow, span
	if err := ReachRedis(&rc, from, cfg.RedisTLS); err != nil {
		return nil, err
	}
	out, err := redis.New(rc)
	if err != nil {
		return nil, err
	}
	s.addPool(p, out, figures("redis", p.name, p.values))
	return out, nil
}

// onBreaker logs that a server is only probed, and that it answers again: at one level, so
// that a log with the first line has the second.
func (s *Service) onBreaker(product string) func(addr string, open bool, why error) {
	return func(addr string, open bool, why error) {
		switch {
		case open:
			s.log.Warnf("%s at %s is only probed until it answers: %v", product, addr, why)
		case why != nil:
			s.log.Warnf("%s at %s is not probed any more: %v", product, addr, why)
		default:
			s.log.Warnf("%s at %s answers again", product, addr)
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

// storeTLS returns a function that reads the files of a store for each connection. The names
// of its settings begin with prefix. It returns an error if the files cannot be used now.
func storeTLS(prefix string, f settings.TLSFiles) (func() (*tls.Config, error), error) {
	read := (&certs.Client{
		CA: f.CACert, Cert: f.ClientCert, Key: f.ClientKey, CAName: prefix + "CACERT", PairName: prefix + "CLIENT_CERT",
		AnyName: f.SkipHostname,
	}).Reader()
	_, err := read()
	return read, err
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

// watchPool pings p and tells health whether it answers. It returns after the first answer
// unless alwaysPing is set.
func (s *Service) watchPool(ctx context.Context, p *pool) error {
	i := slices.Index(s.store.pools, p)
	started, pause, wasUp := time.Now(), p.firstPause, false
	for {
		err := p.ping(ctx)
		if ctx.Err() != nil {
			return nil
		}
		up := err == nil
		worksWithoutStore := false
		wasUp = wasUp || up
		s.health.update(func(h *health) {
			h.stores[i].err, h.stores[i].answered, worksWithoutStore = err, wasUp, h.worksWithoutStore
		})
		switch {
		case up && !p.alwaysPing:
			return nil
		case up:
			pause = time.Second
		case wasUp:
			s.log.Warnf("unhealthy: %v", err)
		default: // still the start
			if p.startTimeout > 0 && time.Since(started) > p.startTimeout {
				return fmt.Errorf("REDIS_STARTUP_MAX_ELAPSED_TIME has passed: %w", err)
			}
			if worksWithoutStore {
				s.log.Warnf("%v; on_store_failure decides", err)
				pause = min(pause, withoutStorePause)
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
			pause = min(2*pause, p.maxPause)
		}
	}
}

// withoutStorePause is the longest pause between two pings if requests are answered without
// the store.
const withoutStorePause = time.Second

func (p *pool) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.pingTimeout)
	defer cancel()
	err := p.Ping(ctx)
	if err == nil {
		return nil
	}
	if slow, isSlow := errors.AsType[*remote.SlowError](err); isSlow {
		return p.tooSlow(slow)
	}
	return fmt.Errorf("%s does not answer: %w", p.label, err)
}
