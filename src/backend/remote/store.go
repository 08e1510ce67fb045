package remote

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/backend"
)

// Protocol is what Redis and Memcached add to a Store: what to send for a call, and
// what the replies mean.
type Protocol interface {
	// Fill adds the hits of b to c. Now is the instant of b in ns since the Unix
	// epoch. An error becomes that of each hit.
	Fill(c *Call, b *backend.Batch, now int64) error
	// Verdicts turns the results of c into the verdicts of b.
	Verdicts(c *Call, b *backend.Batch, now int64)
	// NewExchange returns the Exchange of one connection.
	NewExchange() Exchange
	// Open connects with d and sends what goes before the first command.
	Open(ctx context.Context, d *Dialer, addr string) (Session, error)
	// IsAnswer reports whether err is the reply of a server, which is therefore reachable.
	IsAnswer(err error) bool
	// CauseOf returns the name under which err is counted.
	CauseOf(err error) string
}

// Store does for Redis and Memcached what is the same in both. It answers only while
// Run runs.
type Store struct {
	Config   Config // with defaults
	Access   Access // to the servers
	Figures  Figures
	protocol Protocol
	slow     atomic.Pointer[SlowError]
	table    atomic.Pointer[Table]
	tables   sync.Mutex // held while the table is replaced
	seed     maphash.Seed
	calls    sync.Pool
	running  sync.WaitGroup // writers
	// Kicks has an element when the Table should be checked soon.
	Kicks chan struct{}

	errTimeout, errBusy, errOverload, errClosed error
}

// New returns a Store without servers. Causes are the names that p.CauseOf has
// besides those of CauseOf. Unknown is the error of calls until Use is called; nil:
// they wait for it.
func New(name string, cfg Config, p Protocol, unknown error, causes ...string) *Store {
	cfg.setDefaults()
	s := &Store{
		Config: cfg, protocol: p, seed: maphash.MakeSeed(),
		Kicks:      make(chan struct{}, 1),
		errTimeout: fmt.Errorf("%s: %w", name, ErrTimeout), errBusy: fmt.Errorf("%s: %w", name, ErrBusy),
		errOverload: fmt.Errorf("%s: %w", name, backend.ErrOverload), errClosed: fmt.Errorf("%s: %w", name, ErrClosed),
	}
	s.Access = Access{
		Name: name, Open: p.Open, IsAnswer: p.IsAnswer, TLS: cfg.TLS, Timeout: cfg.Timeout, DialTimeout: cfg.DialTimeout,
		Figures: &s.Figures, stalled: make(chan string, 1),
	}
	s.Figures.errors = NewTally(causes...)
	s.Figures.Room.MaxCalls, s.Figures.Room.MaxBytes = cfg.MaxWaiting, MaxBytes
	s.calls.New = func() any { return NewCall() }
	s.table.Store(&Table{Err: unknown, replaced: make(chan struct{})})
	return s
}

// Run has serve find the servers, and ends when ctx has ended and all connections
// are closed.
func (s *Store) Run(ctx context.Context, serve func(context.Context)) {
	s.running.Go(func() { s.watchLatency(ctx) })
	serve(ctx)
	<-ctx.Done()
	s.tables.Lock() // a Use that still starts nodes ends first; no node starts after it
	//lint:ignore SA2001 the lock is a wait
	s.tables.Unlock()
	s.running.Wait()
}

// Take charges every hit of b; see backend.Backend. If the server does not answer
// within the Timeout, or a little before ctx ends (see Wait), each Verdict has an Err
// and what was charged is unknown. Nothing was charged by hits whose Err is a
// *OpenError or ErrBusy.
func (s *Store) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Check(); err != nil || len(b.Hits) == 0 {
		return err
	}
	now := b.Now.UnixNano()
	if b.Now.IsZero() {
		now = time.Now().UnixNano()
	}
	size := KeyBytes(b)
	if !s.Figures.Room.Enter(size) {
		s.fail(b, s.errBusy)
		return nil
	}
	defer s.Figures.Room.Leave()
	if s.Config.Span != nil {
		end := s.Config.Span(ctx, len(b.Hits))
		defer func() { end(b.Err()) }()
	}
	c := s.newCall()
	defer s.release(c)
	c.bytes = size
	err := s.protocol.Fill(c, b, now)
	if err == nil {
		wait := Wait(ctx, s.Config.Timeout)
		c.due = time.Now().Add(wait)
		c.timer.Reset(wait)
		defer c.timer.Stop()
		err = s.serve(ctx, c)
	}
	if err != nil {
		s.fail(b, err)
		return nil
	}
	s.protocol.Verdicts(c, b, now)
	for i := range b.Verdicts {
		if err := b.Verdicts[i].Err; err != nil {
			s.Figures.errors.Add(s.protocol.CauseOf(err), 1)
		}
	}
	return nil
}

func (s *Store) fail(b *backend.Batch, err error) {
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: err}
	}
	s.Figures.errors.Add(s.protocol.CauseOf(err), len(b.Verdicts))
}

// newCall returns an empty call, which the caller holds.
func (s *Store) newCall() *Call {
	c := s.calls.Get().(*Call)
	c.reset()
	return c
}

// release returns c to the pool if nothing else holds it.
func (s *Store) release(c *Call) {
	if c.release() {
		s.Figures.Room.Free(c.bytes)
		s.calls.Put(c)
	}
}

// Ping asks all servers at addrs whether they are there, over connections of its own,
// and returns nil if one is. The error has a *SlowError for each that answers later
// than the Timeout.
func (s *Store) Ping(ctx context.Context, addrs []string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, len(addrs))
	for _, addr := range addrs {
		go func() { answers <- s.measure(ctx, addr) }()
	}
	var errs []error
	for range addrs {
		err := <-answers
		if err == nil {
			cancel() // the others need not go on connecting
		}
		errs = append(errs, err)
	}
	if slices.Contains(errs, nil) {
		return nil
	}
	return JoinErrors(errs)
}

// Stats are the figures of a Store.
type Stats struct {
	// Servers is the number of servers that calls are sent to.
	Servers int
	// Open is the number of connections, Dials how often one was tried.
	Open, Dials int64
	// Waiting is the number of calls that wait now.
	Waiting int64
	// BreakersOpen is the number of servers that are only probed, BreakerOpened how
	// often a breaker opened.
	BreakersOpen  int
	BreakerOpened int64
	// Batches were sent with Commands in all, Failed of them without a whole answer.
	Batches, Commands, Failed int64
	// SentOn is the number of hits that were sent again, elsewhere.
	SentOn int64
	// Errors is the number of hits without an answer, by cause.
	Errors map[string]int64
}

// Figures are what a Store counts.
type Figures struct {
	Room                                                           Room
	Dials, open, breakersOpened, batches, commands, failed, sentOn atomic.Int64
	errors                                                         Tally
}

func (f *Figures) countBatch(commands int, err error) {
	f.batches.Add(1)
	f.commands.Add(int64(commands))
	if err != nil {
		f.failed.Add(1)
	}
}

// Stats reads the figures.
func (s *Store) Stats() Stats {
	t, f := s.Table(), &s.Figures
	open := 0
	for _, n := range t.Nodes {
		if n.breaker.Open() {
			open++
		}
	}
	return Stats{
		Servers: t.servers, Open: f.open.Load(), Dials: f.Dials.Load(), Waiting: f.Room.Calls(),
		BreakersOpen: open, BreakerOpened: f.breakersOpened.Load(),
		Batches: f.batches.Load(), Commands: f.commands.Load(), Failed: f.failed.Load(),
		SentOn: f.sentOn.Load(), Errors: f.errors.Read(),
	}
}
