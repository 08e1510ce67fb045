package memcached

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bradfitz/gomemcache/memcache"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

// Config says which Memcached, and how it is talked to. It has either Servers or
// SRV.
type Config struct {
	// Servers are host:port, or paths of sockets. Their order decides which keys
	// they have, so it has to be the same everywhere. One that is there twice has
	// twice as many, unless Hash is Rendezvous.
	Servers []string
	// SRV finds the servers by a DNS record.
	SRV *SRV
	// Resolver is asked for SRV. Defaults to net.DefaultResolver.
	Resolver *net.Resolver
	// Hash chooses the server of a key. Defaults to Modulo.
	Hash Hash
	// TLS is asked for each connection, so that certificates may change; nil:
	// no TLS.
	TLS func() (*tls.Config, error)
	// Connections is how many there are to each server. Defaults to 2.
	Connections int
	// InFlight is how many commands may be on their way to each server, each for a
	// counter of its own. Defaults to 128.
	InFlight int
	// Timeout bounds every call, and every command. Defaults to 50ms.
	Timeout time.Duration
	// DialTimeout bounds the making of a connection, TLS included. Defaults to
	// remote.SetupTimeout(Timeout): 1s, or more with a longer Timeout.
	DialTimeout time.Duration
	// ExpirationJitter is added to each key's time to live, in whole seconds
	// from 0 to one less than it. 0: none.
	ExpirationJitter time.Duration
	// TagKeys keeps every window under a key that names its length. Without it
	// envoyproxy/ratelimit's windows have its keys, and windows of two lengths
	// that begin together share a counter.
	TagKeys bool
	// OnCommand, if set, is told of each change or look at a counter: for how many
	// hits, and how long it took. It must not block.
	OnCommand func(hits int, took time.Duration)
	// OnChange, if set, is told when the servers that SRV finds are others than
	// before.
	OnChange func(Change)
	// OnLookupFailure, if set, is told when SRV finds nothing.
	OnLookupFailure func(error)
	// Span, if set, is told of each call with the number of its hits, and what it
	// returns of its end: with nil, or an error of one of the hits.
	Span func(ctx context.Context, hits int) (end func(error))
	// MaxWaiting is how many calls may wait for Memcached at a time, and how many
	// hits may wait for one server, those whose callers have left included, twice
	// as many of fixed windows; more are refused at once. Defaults to 20,000. The keys
	// of all of them have remote.MaxBytes at most.
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

// Store is a limiter.Backend. It answers only while Run runs.
type Store struct {
	cfg     Config
	access  access
	table   atomic.Pointer[table]
	running sync.WaitGroup // workers
	stats   counters
	latency *remote.Latency
}

// New returns a store that is not connected yet.
func New(cfg Config) (*Store, error) {
	switch {
	case len(cfg.Servers) == 0 && cfg.SRV == nil:
		return nil, errors.New("memcached: no servers")
	case len(cfg.Servers) > 0 && cfg.SRV != nil:
		return nil, errors.New("memcached: a list of servers and an SRV record exclude each other")
	case cfg.Hash >= hashes:
		return nil, fmt.Errorf("memcached: hash %d is not known", cfg.Hash)
	}
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	setDefault(&cfg.Connections, 2)
	setDefault(&cfg.InFlight, 128)
	setDefault(&cfg.Timeout, 50*time.Millisecond)
	setDefault(&cfg.DialTimeout, remote.SetupTimeout(cfg.Timeout))
	setDefault(&cfg.MaxWaiting, 20_000)
	if cfg.BreakerFailures == 0 {
		cfg.BreakerFailures = 5
	}
	s := &Store{cfg: cfg}
	s.access = access{tls: cfg.TLS, timeout: cfg.Timeout, dialTimeout: cfg.DialTimeout, stats: &s.stats}
	s.latency = remote.NewLatency(s.measure, cfg.OnSlow)
	s.access.stalled = s.latency.Stalled
	s.stats.errors = newTally()
	s.stats.room.MaxCalls, s.stats.room.MaxBytes = cfg.MaxWaiting, remote.MaxBytes
	s.stats.calls.New = func() any {
		c := new(call)
		c.Init()
		return c
	}
	s.table.Store(&table{err: errNobody})
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
	if s.cfg.SRV == nil {
		s.use(ctx, s.cfg.Servers)
	} else {
		s.watch(ctx)
	}
	<-ctx.Done()
	last := s.table.Swap(&table{err: errClosed})
	for _, n := range last.byAddr {
		n.close(errClosed)
	}
	s.running.Wait()
	return nil
}

// Ping asks the servers whether they are there, over connections of its own. One
// is enough. The error has a *remote.SlowError for each that answers, but later than the
// Timeout.
func (s *Store) Ping(ctx context.Context) error {
	addrs := s.cfg.Servers
	if s.cfg.SRV != nil {
		t := s.table.Load()
		if t.err != nil {
			return t.err
		}
		addrs = t.addrs()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, len(addrs))
	for _, addr := range addrs {
		go func() {
			answers <- s.measure(ctx, addr)
		}()
	}
	var errs []error
	for range addrs {
		err := <-answers
		if err == nil {
			cancel() // who is still connecting need not
		}
		errs = append(errs, err)
	}
	if slices.Contains(errs, nil) {
		return nil
	}
	return errors.Join(errs...)
}

// measure asks the server at addr whether it is there, and how long its answer takes.
func (s *Store) measure(ctx context.Context, addr string) error {
	a := s.access
	a.timeout, a.stalled, a.stats = max(a.timeout, a.dialTimeout), nil, new(counters) // not for calls
	w := &wire{access: &a, ctx: ctx, addr: server(addr), gate: new(remote.Gate)}
	defer w.close()
	if _, err := w.open(); err != nil {
		return err
	}
	l := newLink(w.addr, w.open)
	return remote.Measure("memcached", addr, s.cfg.Timeout, func() error { return l.Do((*memcache.Client).Ping) })
}

// Slow returns the server that was found in the last 10 s to answer later than the
// Timeout; nil: none. It is looked for when calls time out.
func (s *Store) Slow() *remote.SlowError { return s.latency.Slow() }

// Take charges every hit of b; see limiter.Backend. When Memcached does not
// answer within the Timeout, or a little before ctx ends (remote.Wait), each Verdict
// has an Err and what was charged is unknown; while one of several servers is away,
// those of its keys. Nothing was charged by hits whose Err is a *remote.OpenError,
// of limits with one counter, or ErrBusy.
func (s *Store) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Check(); err != nil {
		return err
	}
	if len(b.Hits) == 0 {
		return nil
	}
	for i := range b.Hits {
		if !canCount(&b.Hits[i]) {
			s.fail(b, ErrUnsupported)
			return nil
		}
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
	c.Timer.Reset(remote.Wait(ctx, s.cfg.Timeout))
	defer c.Timer.Stop()
	s.give(c)
	var err error
	select {
	case <-c.Done:
		c.verdicts(b, now)
		for i := range b.Verdicts {
			if err := b.Verdicts[i].Err; err != nil {
				s.stats.errors.Add(causeOf(err))
			}
		}
		return nil
	case <-ctx.Done():
		err = fmt.Errorf("memcached: %w", context.Cause(ctx))
	case <-c.Timer.C:
		err = ErrTimeout
		if c.overloaded(time.Now()) {
			err = ErrOverload
		}
	}
	c.Gone.Store(true)
	s.fail(b, err)
	return nil
}

// Kinds are the kinds of limit that Memcached can count by, if they count also
// what they refuse.
func Kinds() []algorithm.Kind {
	return []algorithm.Kind{algorithm.FixedWindow, algorithm.SlidingWindowCounter}
}

// canCount reports whether Memcached can do what h asks for.
func canCount(h *backend.Hit) bool {
	known := h.Limit.Kind == algorithm.FixedWindow || h.Limit.Kind == algorithm.SlidingWindowCounter
	return known && !h.Atomic && (h.Limit.CountBlocked || h.Op != algorithm.Charge)
}

// give hands the ops of c to the nodes that have their keys, all of one node at once.
func (s *Store) give(c *call) {
	c.Hold() // the ops
	t := s.table.Load()
	c.parts = c.parts[:0]
	for i := range c.ops {
		o := &c.ops[i]
		if t.err != nil {
			o.settle(0, t.err, &s.stats)
			continue
		}
		n := t.pick(o.key())
		c.part(n).push(o)
	}
	for i := range c.parts {
		p := c.parts[i]
		err := p.node.put(p)
		for err != nil && p.count > 0 {
			o := p.pop()
			if errors.Is(err, errRetired) && s.table.Load() != t {
				s.giveAlone(o)
			} else {
				o.settle(0, err, &s.stats)
			}
		}
	}
}

// giveAlone hands o to the node that has its key by now.
func (s *Store) giveAlone(o *op) {
	for {
		t := s.table.Load()
		err := t.err
		if err == nil {
			p := &part{call: o.call, node: t.pick(o.key())}
			p.push(o)
			if err = p.node.put(p); err == nil {
				return
			}
		}
		if !errors.Is(err, errRetired) || s.table.Load() == t {
			o.settle(0, err, &s.stats)
			return
		}
	}
}

func (s *Store) fail(b *backend.Batch, err error) {
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: err}
		s.stats.errors.Add(causeOf(err))
	}
}
