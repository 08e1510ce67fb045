package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/mediocregopher/radix/v4"

	"ratelimit/src/algorithm"
)

// Config says which Redis, and how it is talked to.
type Config struct {
	// Network is "tcp" or "unix". Defaults to "tcp".
	Network string
	// Addr is host:port or the path of a socket; required.
	Addr string
	// Credentials are asked for each connection, so that they may change; nil:
	// none. Without a password no AUTH is sent.
	Credentials func() (user, password string, err error)
	// DB is the number of the database.
	DB string
	// TLS is asked for each connection, so that certificates may change; nil:
	// no TLS.
	TLS func() (*tls.Config, error)
	// Connections is how many there are. Defaults to 2: one batch is on its way
	// while the other is made up. More make smaller batches.
	Connections int
	// Timeout bounds every call, and how long a connection may stand still.
	// Defaults to 50ms.
	Timeout time.Duration
	// DialTimeout bounds connecting. Defaults to 1s.
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
	// MaxWaiting is how many calls may wait for Redis at a time, and how many
	// may stand in the queue of one connection, calls whose callers have left
	// included; more are refused at once. Defaults to 20,000.
	MaxWaiting int64
}

var (
	// ErrTimeout: Redis did not answer in time.
	ErrTimeout = errors.New("redis: no answer in time")
	// ErrBusy: too many calls wait already.
	ErrBusy = errors.New("redis: too many calls are waiting")

	errClosed = errors.New("redis: the store is closed")
)

// Store is a limiter.Backend. It answers only while Run runs.
type Store struct {
	cfg     Config
	seed    maphash.Seed
	writers []*writer
	stats   counters
}

// New returns a store that is not connected yet.
func New(cfg Config) (*Store, error) {
	if cfg.Addr == "" {
		return nil, errors.New("redis: no address")
	}
	if cfg.Network == "" {
		cfg.Network = "tcp"
	}
	setDefault(&cfg.Connections, 2)
	setDefault(&cfg.Timeout, 50*time.Millisecond)
	setDefault(&cfg.DialTimeout, time.Second)
	setDefault(&cfg.MaxWaiting, 20_000)
	s := &Store{cfg: cfg, seed: maphash.MakeSeed()}
	s.stats.calls.New = func() any {
		timer := time.NewTimer(time.Hour)
		timer.Stop()
		return &call{done: make(chan struct{}, 1), timer: timer}
	}
	for range cfg.Connections {
		client := &single{cfg: &s.cfg, stats: &s.stats}
		s.writers = append(s.writers, newWriter(client, &s.cfg, &s.stats))
	}
	return s, nil
}

func setDefault[T int | int64 | time.Duration](v *T, fallback T) {
	if *v <= 0 {
		*v = fallback
	}
}

// Run serves Take until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, w := range s.writers {
		wg.Go(func() { w.run(ctx) })
	}
	wg.Wait()
	return nil
}

// Ping asks Redis whether it is there, over a connection of its own.
func (s *Store) Ping(ctx context.Context) error {
	client := &single{cfg: &s.cfg, stats: &s.stats}
	defer func() { _ = client.Close() }()
	return client.Do(ctx, radix.Cmd(nil, "PING"))
}

// Stats is what a Store says of itself.
type Stats struct {
	// Open is how many connections there are, Dials how often one was tried.
	Open, Dials int64
	// Waiting is how many calls wait now.
	Waiting int64
	// Batches were sent with Commands in all, Failed of them without a whole
	// answer, and took Took together.
	Batches, Commands, Failed int64
	Took                      time.Duration
}

// Stats reads the store's figures.
func (s *Store) Stats() Stats {
	return Stats{
		Open: s.stats.open.Load(), Dials: s.stats.dials.Load(), Waiting: s.stats.waiting.Load(),
		Batches: s.stats.batches.Load(), Commands: s.stats.sent.Load(), Failed: s.stats.failed.Load(),
		Took: time.Duration(s.stats.took.Load()),
	}
}

// Take charges every hit of b; see limiter.Backend. When Redis does not answer
// within the Timeout, or before ctx ends, each Verdict has an Err and what was
// charged is unknown.
func (s *Store) Take(ctx context.Context, b *algorithm.Batch) error {
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
	if s.stats.waiting.Add(1) > s.cfg.MaxWaiting {
		s.stats.waiting.Add(-1)
		fail(b, ErrBusy)
		return nil
	}
	defer s.stats.waiting.Add(-1)
	c := s.stats.calls.Get().(*call)
	defer s.stats.release(c)
	c.holders.Store(2)
	c.gone.Store(false)
	c.fill(b, now, s.cfg.ExpirationJitter, s.cfg.TagKeys)
	if !s.writer(b.Hits[0].Key).put(c) {
		s.stats.release(c) // for the writer, who never saw it
		fail(b, ErrBusy)
		return nil
	}
	c.timer.Reset(s.cfg.Timeout)
	defer c.timer.Stop()
	select {
	case <-c.done:
		for i := range b.Hits {
			b.Verdicts[i] = c.verdict(&b.Hits[i], i, now)
		}
	case <-ctx.Done():
		c.gone.Store(true)
		fail(b, fmt.Errorf("redis: %w", context.Cause(ctx)))
	case <-c.timer.C:
		c.gone.Store(true)
		fail(b, ErrTimeout)
	}
	return nil
}

func fail(b *algorithm.Batch, err error) {
	for i := range b.Verdicts {
		b.Verdicts[i] = algorithm.Verdict{Err: err}
	}
}

// writer picks by key, so that hits on one key meet in one batch.
func (s *Store) writer(key []byte) *writer {
	return s.writers[maphash.Bytes(s.seed, key)%uint64(len(s.writers))]
}
