// Package store makes the store that the settings choose: counters in memory, with their snapshot, or Redis or
// Memcached, with the over-limit cache and the fallback in front. It finds out by pings whether Redis or Memcached
// answers.
package store

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/fallback"
	"ratelimit/src/backend/leased"
	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/overlimit"
	"ratelimit/src/backend/remote"
	"ratelimit/src/backend/replicas"
	"ratelimit/src/files/certs"
	"ratelimit/src/metrics"
	"ratelimit/src/service/heap"
	"ratelimit/src/service/logging"
	"ratelimit/src/settings"
)

// Config is the configuration of a Store.
type Config struct {
	*settings.Settings
	Log     *logging.Loggers
	Figures *metrics.Registry
	Heap    *heap.Tuner // learns the memory of the counters. Nil: none does.
	// Spans returns what makes a span of each call; see otlp.Traces.StoreCall.
	Spans func(name, system, hits string) func(ctx context.Context, n int) (end func(error))
	// OnPing is called after each ping, when State has changed. It is not called before Runners run.
	OnPing func()
}

// Store is the Backend of the limiter and its parts.
type Store struct {
	cfg Config
	backend.Backend
	Pools      []*Pool           // one or two of Redis or one of Memcached; empty for memory.
	Fallback   *fallback.Store   // nil for memory, which always answers.
	Replicas   *replicas.Counter // nil for memory, which one process has.
	ClearCache func()            // empties the over-limit cache.
	HasCache   bool
	LeaseUses  func() map[uint32]leased.Use // see leased.Store.Uses; nil for memory.
	// Runners must run as long as the store is used.
	Runners []func(context.Context) error
	// Finish writes the last snapshot of the counters, or gives back the units of leases. It comes after the last hit, and
	// ends when its context does.
	Finish func(context.Context)
	// Close gives up the file of the snapshot, if there is one.
	Close func() error

	isAloneHealthy    atomic.Bool // State.WorksAlone
	hasLocalCounters  atomic.Bool // HasLocalCounters
	leasesNoted       sync.Once
	showLeases        func()       // shows the figures of leases, once
	lastBreakerChange atomic.Int64 // when a breaker last opened or closed, in nanoseconds since 1970; 0 if none did.
}

// Open makes the store that the settings choose. Run its Runners next.
func Open(cfg Config) (*Store, error) {
	s := &Store{
		cfg: cfg, ClearCache: func() {}, Finish: func(context.Context) {}, Close: func() error { return nil },
	}
	var err error
	switch cfg.BackendType {
	case "memory":
		return s, s.openMemory()
	case "memcache":
		s.Backend, err = s.openMemcached()
	default:
		s.Backend, err = s.openRedis()
	}
	if err != nil {
		return nil, err
	}
	if err := s.countReplicas(); err != nil {
		return nil, err
	}
	s.addLeases()
	if cfg.LocalCacheBytes > 0 {
		cache := overlimit.New(s.Backend, int(cfg.LocalCacheBytes))
		s.Backend, s.ClearCache, s.HasCache = cache, cache.Clear, true
		cfg.Figures.ShowFigures("overlimit", "", cache.Stats)
	}
	s.isAloneHealthy.Store(s.worksAlone(nil))
	return s, s.addFallback()
}

func (s *Store) openMemory() error {
	m, err := memory.New(memory.Config{MaxBytes: s.cfg.MemoryMaxBytes, KeepNames: s.cfg.MemoryCounterNames})
	if err != nil {
		return fmt.Errorf("MEMORY_MAX_BYTES: %w", err)
	}
	s.Backend = m
	s.cfg.Heap.Watch(m.Bytes, s.cfg.MemoryMaxBytes) // The collector must know of the counters before a snapshot is read.
	s.cfg.Figures.ShowFigures("memory", "", m.Stats)
	return s.openSnapshot(m)
}

// remoteConfig returns the settings that all stores with servers share.
func (s *Store) remoteConfig(p *Pool, conns int, timeout time.Duration) remote.Config {
	p.pingTimeout = 2 * remote.DefaultDialTimeout(timeout) // A ping may have to find the server and to connect to it.
	failures := s.cfg.Failure.BreakerFailures
	if failures == 0 { // A negative number turns the breaker off in remote.Config.
		failures = -1
	}
	return remote.Config{
		Connections:      min(conns, max(2, runtime.GOMAXPROCS(0)/4)),
		Timeout:          timeout,
		ExpirationJitter: time.Duration(max(s.cfg.ExpirationJitter, 0)) * time.Second,
		TagKeys:          s.cfg.CacheKeyFormat == "v2",
		OnBatch: func(hits int, took time.Duration) {
			p.BatchHits.Observe(hits)
			p.BatchTimes.Observe(took)
		},
		MaxWaitingCalls: int64(s.cfg.Failure.MaxInFlight),
		BreakerFailures: failures,
		OnBreaker:       s.logBreaker(p.productName),
		OnSlowServer:    func(e *remote.SlowError) { s.cfg.Log.Warnf("calls time out: %v", p.slowError(e)) },
	}
}

// logBreaker logs at one level that a breaker opened and closed, so that a log with the first line has the second.
func (s *Store) logBreaker(product string) func(addr string, open bool, why error) {
	return func(addr string, open bool, why error) {
		s.lastBreakerChange.Store(time.Now().UnixNano())
		switch {
		case open:
			s.cfg.Log.Warnf("%s at %s is only probed until it answers: %v", product, addr, why)
		case why != nil:
			s.cfg.Log.Warnf("%s at %s is not probed any more: %v", product, addr, why)
		default:
			s.cfg.Log.Warnf("%s at %s answers again", product, addr)
		}
	}
}

// clientTLS returns the TLS configuration of a store. The names of its settings begin with prefix.
func clientTLS(prefix string, f settings.TLSFiles) *certs.Client {
	return &certs.Client{
		CA: f.CACert, Cert: f.ClientCert, Key: f.ClientKey, CAName: prefix + "CACERT", PairName: prefix + "CLIENT_CERT",
		AnyName: f.SkipHostname,
	}
}

// FilesNeeded returns how many files the connections to the store take.
func FilesNeeded(cfg *settings.Settings) (n int) {
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

// State says whether the store answers.
type State struct {
	Pools []PoolState // one that always answers for memory.
	// WorksAlone is set if this process is healthy while the store does not answer, because on_store_failure decides.
	WorksAlone bool
	// DegradedNote is a remark about hits that on_store_failure decided a moment ago; empty without any.
	DegradedNote string
	ChangedAt    time.Time // when the store last began or ceased to answer; zero if it never did.
}

// PoolState says whether Redis or Memcached answers.
type PoolState struct {
	Name        string    // redis_pool, redis_per_second_pool, memcache or memory.
	Err         *Error    // nil if the store answered last time.
	HasAnswered bool      // set if the store has answered at least once.
	Note        string    // a remark that does not make the process unready.
	ChangedAt   time.Time // when the pool last began or ceased to answer pings; zero before the first answer.
	Outage      *Outage   // nil if all servers answer.
}

// Outage says that servers of a pool do not answer.
type Outage struct {
	Store                  string // Redis, Memcached, or the Redis of limits by the second.
	SilentServers, Servers int
	Since                  time.Time // when the last of them ceased to answer; zero if none has answered yet.
}

// Error says why a store cannot be used.
type Error struct {
	ForCallers, ForOperators string // Callers see no addresses.
}

func (e *Error) Error() string { return e.ForOperators }

// State returns the state of the store.
func (s *Store) State() State {
	st := State{WorksAlone: s.isAloneHealthy.Load(), DegradedNote: s.degradedNote(time.Now())}
	if len(s.Pools) == 0 {
		st.Pools = []PoolState{{Name: "memory", HasAnswered: true}}
	}
	for _, p := range s.Pools {
		pool := p.lastPing()
		pool.Note, pool.Outage = p.healthNote(), p.outage(&pool)
		st.Pools = append(st.Pools, pool)
		if pool.ChangedAt.After(st.ChangedAt) {
			st.ChangedAt = pool.ChangedAt
		}
	}
	if at := s.lastBreakerChange.Load(); at > 0 && time.Unix(0, at).After(st.ChangedAt) {
		st.ChangedAt = time.Unix(0, at)
	}
	for _, p := range st.Pools { // Calls notice an outage before a breaker does.
		if p.Outage != nil && !p.Outage.Since.IsZero() {
			st.ChangedAt = p.Outage.Since
		}
	}
	return st
}

// IsShared reports whether several replicas may share the store.
func (s *Store) IsShared() bool { return len(s.Pools) > 0 }
