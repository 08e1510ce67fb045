package service

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/changes"
	"ratelimit/src/backend/fallback"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/overlimit"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
	"ratelimit/src/backend/split"
	"ratelimit/src/files"
	"ratelimit/src/files/certs"
	"ratelimit/src/metrics"
	"ratelimit/src/operator/throttle"
	"ratelimit/src/service/tracing"
	"ratelimit/src/settings"
)

// store is the Backend of the limiter and its parts.
type store struct {
	*foundation
	spans *tracing.Provider
	backend.Backend
	pools        []*pool         // one or two of Redis or one of Memcached, and is empty for memory.
	fallback     *fallback.Store // nil for memory, which always answers
	clearCache   func()          // empties the over-limit cache.
	hasCache     bool
	counterBytes func() int64 // returns the memory of the counters in this process.
	// writeLast writes the last snapshot of the counters, if there is one. It ends when its context does.
	writeLast func(context.Context)

	lastBreakerChange atomic.Int64 // when a breaker last opened or closed, in nanoseconds since 1970; 0 if none did.
}

// pool is Redis or Memcached, with the pings that find out whether it answers.
type pool struct {
	name            string // redis_pool, redis_per_second_pool or memcache.
	productName     string // Redis or Memcached.
	labelInMessages string
	timeoutSetting  string // the name of a variable, for messages.
	alwaysPing      bool   // continues pings after the first answer, because health depends on them.
	// Before the first answer, the time between two messages about the failed pings doubles from firstPingPause to
	// maxPingPause.
	firstPingPause, maxPingPause time.Duration
	startTimeout                 time.Duration     // ends the process if no ping has succeeded. 0 means no timeout.
	BatchHits                    metrics.Sizes     // the number of hits of each batch.
	BatchTimes                   metrics.Histogram // the duration of each batch.
	pingTimeout                  time.Duration
	tlsCheck                     storeTLSCheck
	storeClient
}

// storeClient is what Redis and Memcached have in common.
type storeClient interface {
	backend.Backend
	changes.Texts
	Run(context.Context) error
	Ping(context.Context) error
	Stats() remote.Stats
	SlowServer() *remote.SlowError // SlowServer returns a server that answers later than a call may take, or nil.
}

// poolConfig returns the settings that all stores with servers share.
func (s *store) poolConfig(p *pool, conns int, timeout time.Duration) remote.Config {
	cfg := s.Settings
	p.pingTimeout = 2 * remote.DefaultDialTimeout(timeout) // A ping may have to find the server and to connect to it.
	failures := cfg.Failure.BreakerFailures
	if failures == 0 { // A negative number turns the breaker off in remote.Config.
		failures = -1
	}
	return remote.Config{
		Connections:      min(conns, max(2, runtime.GOMAXPROCS(0)/4)),
		Timeout:          timeout,
		ExpirationJitter: time.Duration(max(cfg.ExpirationJitter, 0)) * time.Second,
		TagKeys:          cfg.CacheKeyFormat == "v2",
		OnBatch: func(hits int, took time.Duration) {
			p.BatchHits.Observe(hits)
			p.BatchTimes.Observe(took)
		},
		MaxWaitingCalls: int64(cfg.Failure.MaxInFlight),
		BreakerFailures: failures,
		OnBreaker:       s.logBreaker(p.productName),
		OnSlowServer:    func(e *remote.SlowError) { s.log.Warnf("calls time out: %v", p.slowError(e)) },
	}
}

// ClosedConns returns the number of connections that were closed.
func (p *pool) ClosedConns() int64 {
	st := p.Stats()
	return st.Dials - st.OpenConnections
}

// addPool adds the pool of a store that was made, and its figures.
func (s *store) addPool(p *pool, made storeClient) {
	p.storeClient = made
	s.pools = append(s.pools, p)
	s.run(made.Run, func(ctx context.Context) error { return s.pingUntilHealthy(ctx, p) })
	s.counters.ShowFigures("pool", p.name, p)
}

// healthNote returns a remark about the pool that does not make the process unready; "": none.
func (p *pool) healthNote() string {
	if slow := p.SlowServer(); slow != nil {
		return p.slowError(slow).forCallers
	}
	if n := p.Stats().OpenBreakers; n > 0 {
		return plural(n, "server") + " without an answer, only probed"
	}
	return ""
}

// slowError returns the error of a server that answers later than the timeout.
func (p *pool) slowError(e *remote.SlowError) *storeError {
	class := fmt.Sprintf("%s answers in %s, %s is %s", p.labelInMessages, remote.InMilliseconds(e.PingTime),
		p.timeoutSetting, remote.InMilliseconds(e.Timeout))
	enough := (2*e.PingTime + 10*time.Millisecond).Truncate(10 * time.Millisecond)
	return &storeError{class, fmt.Sprintf("%s: set it to %v or more (%s)", class, enough, e.Addr)}
}

// openStore makes the store that the settings choose. Redis and Memcached get the
// over-limit cache in front, if it is on, and the fallback in front of that. Spans of its calls go to spans.
func openStore(f *foundation, spans *tracing.Provider) (*store, error) {
	s := &store{foundation: f, spans: spans}
	s.clearCache, s.writeLast = func() {}, func(context.Context) {}
	if err := s.build(); err != nil {
		return nil, err
	}
	f.health.useStore(s)
	f.Heap.Watch(s.counterBytes, f.Settings.MemoryMaxBytes)
	return s, nil
}

// build sets s.Backend.
func (s *store) build() (err error) {
	cfg := s.Settings
	switch cfg.BackendType {
	case "memory":
		m, err := memory.New(memory.Config{MaxBytes: cfg.MemoryMaxBytes, KeepNames: cfg.MemoryCounterNames})
		if err != nil {
			return fmt.Errorf("MEMORY_MAX_BYTES: %w", err)
		}
		s.Backend, s.counterBytes = m, m.Bytes
		s.counters.ShowFigures("memory", "", m.Stats)
		return s.openSnapshot(m)
	case "memcache":
		s.Backend, err = s.buildMemcached()
	default:
		s.Backend, err = s.buildRedis()
	}
	if err != nil {
		return err
	}
	if cfg.LocalCacheBytes > 0 {
		cache := overlimit.New(s.Backend, int(cfg.LocalCacheBytes))
		s.Backend, s.clearCache, s.hasCache = cache, cache.Clear, true
		s.counters.ShowFigures("overlimit", "", cache.Stats)
	}
	return s.buildFallback()
}

// buildRedis makes the store of one Redis, or of two if limits per second have their own.
func (s *store) buildRedis() (backend.Backend, error) {
	cfg := s.Settings
	if cfg.Redis.TLS || cfg.RedisSplit && cfg.RedisPerSecond.TLS {
		s.showClientCert("redis", cfg.RedisTLS.ClientCert)
	}
	p := &pool{name: "redis_pool", labelInMessages: "Redis", timeoutSetting: "REDIS_TIMEOUT"}
	main, err := s.buildOneRedis(p, cfg.Redis, "pipeline length")
	if err != nil || !cfg.RedisSplit {
		return main, err
	}
	p = &pool{
		name: "redis_per_second_pool", labelInMessages: "the Redis of limits by the second",
		timeoutSetting: "REDIS_PERSECOND_TIMEOUT",
	}
	perSecond, err := s.buildOneRedis(p, cfg.RedisPerSecond, "perSecondPipeline length")
	if err != nil {
		return nil, err
	}
	return split.New(perSecond, main), nil
}

// buildOneRedis makes the store of one Redis. hits is the attribute of a span that has the number of hits.
func (s *store) buildOneRedis(p *pool, from settings.Redis, hits string) (*redis.Store, error) {
	cfg := s.Settings
	p.productName = "Redis"
	p.alwaysPing, p.firstPingPause, p.maxPingPause, p.startTimeout = cfg.RedisHealthCheck, cfg.RedisStartupInitial,
		cfg.RedisStartupMax, cfg.RedisStartupElapsed
	rc := redis.Config{Config: s.poolConfig(p, from.PoolSize, from.Timeout), PipelineLimit: from.PipelineLimit}
	foreign := throttle.New(1, time.Minute)
	rc.OnForeignValue = func(algorithm, addr string) {
		if _, ok := foreign.Pass(time.Now()); ok {
			s.log.Errorf("Redis at %s holds what is no counter under the key of a %s limit, so requests to it fail: another "+
				"program writes to keys of this service. "+
				"Give the service its own database (REDIS_URL) or its own CACHE_KEY_PREFIX, or delete the key", addr, algorithm)
		}
	}
	rc.PipelineWindow, rc.StartSpan = from.PipelineWindow, s.spans.StoreCall("Redis Pipeline Execution", "redis", hits)
	if err := ReachRedis(&rc, from, cfg.RedisTLS); err != nil {
		return nil, err
	}
	p.tlsCheck = storeTLSCheck{
		cmp.Or(rc.Network, "tcp"), from.Addrs[0], from.TLS,
		strings.TrimSuffix(p.timeoutSetting, "TIMEOUT") + "TLS",
	}
	out, err := redis.New(rc)
	if err != nil {
		return nil, err
	}
	s.addPool(p, out)
	s.counters.ShowFigures("redis", p.name, p)
	return out, nil
}

// logBreaker logs at one level that a breaker opened and closed, so that a log with the first line has the second.
func (s *store) logBreaker(product string) func(addr string, open bool, why error) {
	return func(addr string, open bool, why error) {
		s.lastBreakerChange.Store(time.Now().UnixNano())
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
	}).TLS
	_, err := read()
	return read, err
}

// redisCredentials returns a function that reads auth, which is "user:password" or "password", or a file with the same
// text.
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

// pingUntilHealthy pings p and tells health whether it answers. It returns after the first answer unless alwaysPing is
// set.
func (s *store) pingUntilHealthy(ctx context.Context, p *pool) error {
	i := slices.Index(s.pools, p)
	started, pause, wasUp := time.Now(), min(p.firstPingPause, maxPauseBeforeAnswer), false
	nextLog, logPause, nextCheck := started, p.firstPingPause, started
	for {
		err := p.ping(ctx)
		if ctx.Err() != nil {
			return nil
		}
		up := err == nil
		worksWithoutStore := false
		wasUp = wasUp || up
		s.health.update(func(h *health) {
			st := &h.stores[i]
			if (st.lastErr == nil) != up {
				st.changedAt = time.Now()
			}
			st.lastErr, st.hasAnswered, worksWithoutStore = err, wasUp, h.healthyWithoutStore
		})
		switch {
		case up && !p.alwaysPing:
			return nil
		case up:
			pause = time.Second
		case wasUp:
			s.log.Warnf("unhealthy: %v", err)
		default: // No ping of the store has succeeded yet.
			if p.startTimeout > 0 && time.Since(started) > p.startTimeout {
				return fmt.Errorf("REDIS_STARTUP_MAX_ELAPSED_TIME has passed: %w", err)
			}
			if now := time.Now(); now.After(nextLog) {
				if worksWithoutStore {
					s.log.Warnf("%v; on_store_failure decides", err)
				} else {
					s.log.Warnf("not ready: %v", err)
				}
				nextLog = now.Add(logPause)
				logPause = min(2*logPause, p.maxPingPause)
			}
			if now := time.Now(); now.After(nextCheck) {
				nextCheck = now.Add(tlsCheckInterval)
				s.adviseTLS(ctx, p)
			}
			pause = min(2*pause, p.maxPingPause, maxPauseBeforeAnswer)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause/2+1)):
		case <-ctx.Done():
			return nil
		}
	}
}

// maxPauseBeforeAnswer is the longest pause between two pings before the first answer. Calls succeed as soon after the
// store is there, because that is also the longest pause between two probes of its breaker.
const maxPauseBeforeAnswer = 500 * time.Millisecond

// adviseTLS logs what to do if p does not answer because only one of the service and the store uses TLS.
func (s *store) adviseTLS(ctx context.Context, p *pool) {
	ctx, cancel := context.WithTimeout(ctx, p.pingTimeout)
	defer cancel()
	if advice := p.tlsCheck.advice(ctx); advice != "" {
		s.log.Warnf("%s at %s", p.productName, advice)
	}
}

func (p *pool) ping(ctx context.Context) *storeError {
	ctx, cancel := context.WithTimeout(ctx, p.pingTimeout)
	defer cancel()
	err := p.Ping(ctx)
	if err == nil {
		return nil
	}
	if slow, isSlow := errors.AsType[*remote.SlowError](err); isSlow {
		return p.slowError(slow)
	}
	silent := p.labelInMessages + " does not answer"
	return &storeError{silent, fmt.Sprintf("%s: %v", silent, err)}
}

// storeFiles returns how many files the connections to the store take.
func storeFiles(cfg *settings.Settings) (n int) {
	switch cfg.BackendType {
	case "redis":
		n = cfg.Redis.PoolSize * len(cfg.Redis.Addrs)
		if cfg.RedisSplit {
			n += cfg.RedisPerSecond.PoolSize * len(cfg.RedisPerSecond.Addrs)
		}
	case "memcache":
		n = cfg.Memcache.Conns * len(cfg.Memcache.Servers)
	}
	return n
}
