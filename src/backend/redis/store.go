package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mediocregopher/radix/v4"

	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

// Config says which Redis, and how it is talked to. It has either Addr, or
// Sentinel, or Cluster.
type Config struct {
	// Addr is a server: host:port or the path of a socket.
	Addr string
	// Network is what Addr is in: "tcp" or "unix". Defaults to "tcp".
	Network string
	// Sentinel finds the server by asking sentinels.
	Sentinel *Sentinel
	// Cluster is host:port of some nodes of a cluster; they know the others.
	Cluster []string
	// Credentials are asked for each connection, so that they may change; nil:
	// none. Without a user and a password no AUTH is sent.
	Credentials func() (user, password string, err error)
	// DB is the number of the database.
	DB string
	// TLS is asked for each connection, so that certificates may change; nil:
	// no TLS.
	TLS func() (*tls.Config, error)
	// Connections is how many there are to each server. Defaults to 2: one batch is on its way
	// while the other is made up. More make smaller batches.
	Connections int
	// Timeout bounds every call, and how long a connection may stand still.
	// Defaults to 50ms.
	Timeout time.Duration
	// DialTimeout bounds the making of a connection: TLS, AUTH, SELECT and ROLE included.
	// Defaults to remote.SetupTimeout(Timeout): 1s, or more with a longer Timeout.
	DialTimeout time.Duration
	// PipelineWindow waits so long before each batch. Defaults to 0: batches
	// form by themselves while others are under way.
	PipelineWindow time.Duration
	// PipelineLimit is how many hits a batch has at most. 0: no limit.
	PipelineLimit int
	// ExpirationJitter is added to each key's time to live, in whole seconds
	// from 0 to one less than it. 0: none.
	ExpirationJitter time.Duration
	// TagKeys keeps every window under a key that names its length and has a
	// hash tag. Without it envoyproxy/ratelimit's windows have its keys, and
	// windows of two lengths that begin together share a counter.
	TagKeys bool
	// OnBatch, if set, is told of each batch that was sent: how many hits were in
	// it, and how long the answer took. It must not block.
	OnBatch func(hits int, took time.Duration)
	// Span, if set, is told of each call with the number of its hits, and what it
	// returns of its end: with nil, or an error of one of the hits. Calls that are
	// refused because too many wait are not told of.
	Span func(ctx context.Context, hits int) (end func(error))
	// MaxWaiting is how many calls may wait for Redis at a time, and how many
	// may stand in the queue of one connection, calls whose callers have left
	// included; more are refused at once. Defaults to 20,000. The keys of all of them
	// have remote.MaxBytes at most.
	MaxWaiting int64
	// BreakerFailures is how many attempts in a row have no answer before a server
	// is not asked any more, until it answers probes. Defaults to 5; below 0: it
	// always is asked.
	BreakerFailures int
	// OnBreaker, if set, is told when that is so, and why, and when it is over: why
	// is nil then if the server answered. It must not block.
	OnBreaker func(addr string, open bool, why error)
	// OnSlow, if set, is told of a server that answers, but later than the Timeout: when
	// that is found, and every minute while it is so. It must not block.
	OnSlow func(*remote.SlowError)
}

// Sentinel says which sentinels to ask for which primary.
type Sentinel struct {
	// Primary is the name under which the sentinels know it.
	Primary string
	// Addrs are host:port of some sentinels; they know the others.
	Addrs []string
	// Credentials are for the sentinels; nil: none.
	Credentials func() (user, password string, err error)
}

// Store is a limiter.Backend. It answers only while Run runs.
type Store struct {
	cfg        Config
	access     access // to the servers
	seed       maphash.Seed
	table      atomic.Pointer[table]
	kicks      chan struct{}  // the layout should be looked at
	discovered chan string    // nodes that others named
	running    sync.WaitGroup // writers
	stats      counters
	latency    *remote.Latency
}

// New returns a store that is not connected yet.
func New(cfg Config) (*Store, error) {
	switch {
	case cfg.Sentinel != nil && (cfg.Sentinel.Primary == "" || len(cfg.Sentinel.Addrs) == 0):
		return nil, errors.New("redis: a primary without a name, or no sentinels")
	case cfg.Addr == "" && cfg.Sentinel == nil && len(cfg.Cluster) == 0:
		return nil, errors.New("redis: no address")
	}
	if cfg.Network == "" {
		cfg.Network = "tcp"
	}
	setDefault(&cfg.Connections, 2)
	setDefault(&cfg.Timeout, 50*time.Millisecond)
	setDefault(&cfg.DialTimeout, remote.SetupTimeout(cfg.Timeout))
	setDefault(&cfg.MaxWaiting, 20_000)
	if cfg.BreakerFailures == 0 {
		cfg.BreakerFailures = 5
	}
	s := &Store{
		cfg: cfg, seed: maphash.MakeSeed(),
		kicks: make(chan struct{}, 1), discovered: make(chan string, 16),
	}
	s.access = access{
		network: cfg.Network, credentials: cfg.Credentials, db: cfg.DB, tls: cfg.TLS,
		timeout: cfg.Timeout, dialTimeout: cfg.DialTimeout, primary: cfg.Sentinel != nil, stats: &s.stats,
	}
	s.latency = remote.NewLatency(s.measure, cfg.OnSlow)
	s.access.stalled = s.latency.Stalled
	s.stats.errors = newTally()
	s.stats.room.MaxCalls, s.stats.room.MaxBytes = cfg.MaxWaiting, remote.MaxBytes
	s.stats.calls.New = func() any {
		c := new(call)
		c.Init()
		return c
	}
	s.table.Store(&table{replaced: make(chan struct{})})
	return s, nil
}

func setDefault[T int | int64 | time.Duration](v *T, fallback T) {
	if *v <= 0 {
		*v = fallback
	}
}

// Run serves Take until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	s.running.Go(func() { s.latency.Run(ctx) })
	if f := s.finder(); f != nil {
		s.watch(ctx, f)
	} else {
		s.use(ctx, layout{primaries: []string{s.cfg.Addr}})
	}
	<-ctx.Done()
	s.running.Wait()
	return nil
}

// finder is how the servers are found; nil when there is just the one.
func (s *Store) finder() finder {
	a := s.access
	a.primary, a.stalled = false, nil
	a.timeout = max(a.timeout, lookTimeout) // no call waits for it
	switch {
	case s.cfg.Sentinel != nil:
		a.credentials, a.db = s.cfg.Sentinel.Credentials, ""
		return &sentinels{panel: newPanel(&a, s.cfg.Sentinel.Addrs), primary: s.cfg.Sentinel.Primary}
	case len(s.cfg.Cluster) > 0:
		return &cluster{panel: newPanel(&a, s.cfg.Cluster)}
	}
	return nil
}

// lookTimeout is how long a question about the layout may take at least, so that a
// timeout of calls that is too short for the way is found out at the primary, and
// reported as such.
const lookTimeout = 250 * time.Millisecond

// find is what servers there are now.
func (s *Store) find(ctx context.Context) (layout, error) {
	f := s.finder()
	if f == nil {
		return layout{primaries: []string{s.cfg.Addr}}, nil
	}
	defer f.close()
	return f.find(ctx, false)
}

// Ping asks Redis whether it is there, over a connection of its own: the
// server, the primary, or the primaries of a cluster, one of which is enough.
// They are those that Run found; before it did, whoever was configured is asked
// for them. The error is a *remote.SlowError if Redis answers, but later than the Timeout.
func (s *Store) Ping(ctx context.Context) error {
	primaries := s.table.Load().primaries
	if len(primaries) == 0 {
		found, err := s.find(ctx)
		if err != nil {
			return err
		}
		primaries = found.primaries
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, len(primaries))
	for _, addr := range primaries {
		go func() {
			answers <- s.measure(ctx, addr)
		}()
	}
	var errs []error
	for range primaries {
		err := <-answers
		if err == nil {
			cancel() // who is still connecting need not
		}
		errs = append(errs, err)
	}
	if slices.Contains(errs, nil) {
		return nil
	}
	return remote.JoinErrors(errs)
}

// measure asks the server at addr whether it is there, and how long its answer takes.
func (s *Store) measure(ctx context.Context, addr string) error {
	a := s.access
	a.timeout, a.stalled, a.stats = max(a.timeout, a.dialTimeout), nil, new(counters) // not for calls
	l := newLink(&a, addr)
	defer l.Close()
	if err := l.ready(ctx); err != nil {
		return err
	}
	return remote.Measure("redis", addr, s.cfg.Timeout, func() error { return l.Do(ctx, radix.Cmd(nil, "PING")) })
}

// Slow returns the server that was found in the last 10 s to answer later than the
// Timeout; nil: none. It is looked for when calls time out.
func (s *Store) Slow() *remote.SlowError { return s.latency.Slow() }

// Stats is what a Store says of itself.
type Stats struct {
	// Servers is how many calls are sent to: one, or the primaries of a cluster.
	Servers int
	// Open is how many connections there are, Dials how often one was tried.
	Open, Dials int64
	// Waiting is how many calls wait now.
	Waiting int64
	// BreakersOpen is how many servers are not asked as they do not answer,
	// BreakerOpened how often one of them came to that.
	BreakersOpen  int
	BreakerOpened int64
	// Batches were sent with Commands in all, Failed of them without a whole
	// answer.
	Batches, Commands, Failed int64
	// SentOn is how many hits were sent again, elsewhere.
	SentOn int64
	// Errors is how many hits had no answer, by cause.
	Errors map[string]int64
}

// Stats reads the store's figures.
func (s *Store) Stats() Stats {
	t := s.table.Load()
	open := 0
	for _, n := range t.nodes {
		if n.breaker.Open() {
			open++
		}
	}
	return Stats{
		Servers: len(t.primaries), BreakersOpen: open, BreakerOpened: s.stats.opened.Load(),
		Open: s.stats.open.Load(), Dials: s.stats.dials.Load(), Waiting: s.stats.room.Calls(),
		Batches: s.stats.batches.Load(), Commands: s.stats.sent.Load(), Failed: s.stats.failed.Load(),
		SentOn: s.stats.redirects.Load(), Errors: s.stats.errors.Read(),
	}
}

// Take charges every hit of b; see limiter.Backend. When Redis does not answer
// within the Timeout, or a little before ctx ends (remote.Wait), each Verdict has an
// Err and what was charged is unknown. Nothing was charged by hits whose Err is
// a *remote.OpenError or ErrBusy.
func (s *Store) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Check(); err != nil {
		return err
	}
	if len(b.Hits) == 0 {
		return nil
	}
	now := b.Now.UnixNano()
	if b.Now.IsZero() {
		now = time.Now().UnixNano()
	}
	size := remote.KeyBytes(b)
	if !s.stats.room.Enter(size) {
		s.fail(b, ErrBusy)
		return nil
	}
	defer s.stats.room.Leave()
	if s.cfg.Span != nil {
		end := s.cfg.Span(ctx, len(b.Hits))
		defer func() { end(b.Err()) }()
	}
	c := s.stats.call()
	defer s.stats.release(c)
	c.Bytes = size
	c.fill(b, now, s.cfg.ExpirationJitter, s.cfg.TagKeys)
	wait := remote.Wait(ctx, s.cfg.Timeout)
	c.due = time.Now().Add(wait)
	c.Timer.Reset(wait)
	defer c.Timer.Stop()
	if err := s.give(ctx, c); err != nil {
		s.fail(b, err)
		return nil
	}
	for i := range b.Hits {
		b.Verdicts[i] = c.verdict(&b.Hits[i], i, now)
		if err := b.Verdicts[i].Err; err != nil {
			s.stats.errors.Add(causeOf(err))
		}
	}
	return nil
}

func (s *Store) fail(b *backend.Batch, err error) {
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: err}
	}
	s.stats.errors.AddAll(causeOf(err), len(b.Verdicts))
}
