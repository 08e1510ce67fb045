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

// Protocol is what Redis and Memcached do differently.
type Protocol interface {
	// FillCall adds the hits of b to c. Now is the instant of b in ns since the Unix epoch. An
	// error becomes the error of each hit.
	FillCall(c *Call, b *backend.Batch, now int64) error
	// Verdicts turns the results of c into the verdicts of b.
	Verdicts(c *Call, b *backend.Batch, now int64)
	// NewExchanges returns an Exchange for each of n connections to one server.
	NewExchanges(n int) []Exchange
	Opener
	// CauseOf returns the name under which err is counted.
	CauseOf(err error) string
	// FindServers calls s.UseLayout with the servers at first and when they change, until ctx ends
	// or they cannot change. Until it has found servers, it calls s.FailUntilLayout with the reason.
	FindServers(ctx context.Context, s *Store)
	EditProtocol
}

// Store has the code that Redis and Memcached share. It answers only while Run runs.
type Store struct {
	Config     Config // the argument of New with defaults
	Access     Access
	Figures    Figures
	protocol   Protocol
	slowServer atomic.Pointer[SlowError]
	table      atomic.Pointer[Table]
	tableMu    sync.Mutex // is held while the table is replaced
	hashSeed   maphash.Seed
	callPool   sync.Pool
	goroutines sync.WaitGroup // waits for the goroutines of Run
	rareLinks  rareLinks
	// ServerSearchRequests has an element when FindServers should find the servers again.
	ServerSearchRequests chan struct{}

	errTimeout, errTooManyCalls, errOverload, errClosed error
}

// New returns a Store without servers. Until the first UseLayout, calls get the error unknown; if
// that is nil, they wait. Causes are the names that only p.CauseOf has.
func New(name string, cfg Config, p Protocol, unknown error, causes ...string) *Store {
	cfg.setDefaults()
	s := &Store{
		Config: cfg, protocol: p, hashSeed: maphash.MakeSeed(),
		ServerSearchRequests: make(chan struct{}, 1),
		errTimeout:           fmt.Errorf("%s: %w", name, ErrTimeout),
		errTooManyCalls:      fmt.Errorf("%s: %w", name, ErrTooManyCalls),
		errOverload:          fmt.Errorf("%s: %w", name, backend.ErrOverload),
		errClosed:            fmt.Errorf("%s: %w", name, ErrClosed),
	}
	s.Access = Access{
		Name: name, Opener: p, TLS: cfg.TLS, Timeout: cfg.Timeout, DialTimeout: cfg.DialTimeout,
		Figures: &s.Figures, stalledAddrs: make(chan string, 1),
	}
	s.Figures.errorsByCause = make(map[string]*atomic.Int64)
	for _, cause := range slices.Concat(sharedCauses, causes) {
		s.Figures.errorsByCause[cause] = new(atomic.Int64)
	}
	s.Figures.Admission.MaxCalls, s.Figures.Admission.MaxKeyBytes = cfg.MaxWaitingCalls, maxHeldKeyBytes
	s.callPool.New = func() any { return NewCall() }
	s.table.Store(&Table{Err: unknown, replacedSignal: make(chan struct{})})
	return s
}

// Go calls f in a goroutine for which Run waits. Only Protocol.FindServers may call it.
func (s *Store) Go(f func()) { s.goroutines.Go(f) }

// Run serves Take and Ping until ctx ends. It returns nil when all connections are closed.
func (s *Store) Run(ctx context.Context) error {
	s.goroutines.Go(func() { s.measureStalledServers(ctx) })
	s.protocol.FindServers(ctx, s)
	<-ctx.Done()
	s.tableMu.Lock() // UseLayout and nodeOfRedirect may still be starting writers.
	//lint:ignore SA2001 the lock is a wait
	s.tableMu.Unlock()
	s.goroutines.Wait()
	s.rareLinks.close()
	return nil
}

// Take charges every hit of b; see backend.Backend. If the server does not answer within the
// Timeout, or a little before ctx ends, each Verdict has an Err and it is unknown which hits
// were charged. A hit whose Err is an *OpenError or ErrTooManyCalls was not charged.
func (s *Store) Take(ctx context.Context, b *backend.Batch) error {
	if err := b.Validate(); err != nil || len(b.Hits) == 0 {
		return err
	}
	now := b.UnixNano()
	b.DecidedAt = now
	size := 0
	for i := range b.Hits {
		size += len(b.Hits[i].Key)
	}
	if !s.Figures.Admission.TryEnter(size) {
		s.failBatch(b, s.errTooManyCalls)
		return nil
	}
	defer s.Figures.Admission.waitingCalls.Add(-1) // The bytes are held until releaseCall.
	if s.Config.StartSpan != nil {
		end := s.Config.StartSpan(ctx, len(b.Hits))
		defer func() { end(b.FirstErr()) }()
	}
	c := s.newCall()
	defer s.releaseCall(c)
	c.heldKeyBytes = size
	err := s.protocol.FillCall(c, b, now)
	if err == nil {
		err = s.sendAndWait(ctx, c)
	}
	if err != nil {
		s.failBatch(b, err)
		return nil
	}
	s.protocol.Verdicts(c, b, now)
	for i := range b.Verdicts {
		if err := b.Verdicts[i].Err; err != nil {
			s.Figures.errorsByCause[s.protocol.CauseOf(err)].Add(1)
		}
	}
	return nil
}

func (s *Store) failBatch(b *backend.Batch, err error) {
	for i := range b.Verdicts {
		b.Verdicts[i] = backend.Verdict{Err: err}
	}
	s.Figures.errorsByCause[s.protocol.CauseOf(err)].Add(int64(len(b.Verdicts)))
}

func (s *Store) newCall() *Call { return s.callPool.Get().(*Call) }

// releaseCall removes a holder of c, and returns c to the pool after the last one.
func (s *Store) releaseCall(c *Call) {
	if c.removeHolder() {
		s.Figures.Admission.heldBytes.Add(-int64(c.heldKeyBytes))
		c.reset()
		s.callPool.Put(c)
	}
}

// Ping sends a ping to each server over a new connection, and returns nil if one server answers in time. It first waits
// until the servers are known. The error has a *SlowError for each server that answers later than the Timeout.
func (s *Store) Ping(ctx context.Context) error {
	c := s.newCall() // The timer of this call is stopped, so only ctx bounds the wait.
	defer s.releaseCall(c)
	t, err := s.awaitTable(ctx, c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, len(t.Addrs))
	for _, addr := range t.Addrs {
		go func() { answers <- s.measureLatency(ctx, addr) }()
	}
	var errs []error
	for range t.Addrs {
		err := <-answers
		if err == nil {
			cancel() // One answer is enough, so the other pings end.
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
	// OpenConnections is the number of connections. Dials counts the attempts to connect.
	OpenConnections, Dials int64
	// WaitingCalls is the number of calls that wait now.
	WaitingCalls int64
	// OpenBreakers is the number of servers whose breaker is open or half open.
	// BreakerOpenings counts how often a breaker opened.
	OpenBreakers    int
	BreakerOpenings int64
	// SilentServers is the number of servers that do not answer; the last of them ceased at SilentSince. Their breakers
	// need not be open yet.
	SilentServers int
	SilentSince   time.Time
	// Batches counts the batches that were sent, Commands the commands in them, and FailedBatches
	// the batches of which a reply is missing.
	Batches, Commands, FailedBatches int64
	// ResentHits counts the hits that were sent again, because of a Redirect.
	ResentHits int64
	// ErrorsByCause counts the hits without an answer, by cause.
	ErrorsByCause map[string]int64
}

// Figures are what a Store counts.
type Figures struct {
	Admission                                                                             Admission
	Dials, openConnections, breakerOpenings, batches, commands, failedBatches, resentHits atomic.Int64
	// counts the hits without an answer, by cause
	errorsByCause map[string]*atomic.Int64
}

func (f *Figures) countBatch(commands int, err error) {
	f.batches.Add(1)
	f.commands.Add(int64(commands))
	if err != nil {
		f.failedBatches.Add(1)
	}
}

// Stats returns the figures.
func (s *Store) Stats() Stats {
	t, f := s.Table(), &s.Figures
	var open, silent int
	var silentSince time.Time
	for _, n := range t.Nodes {
		if n.breaker.IsOpen() {
			open++
		}
		if since := n.breaker.SilentSince(); !since.IsZero() {
			if silent++; since.After(silentSince) {
				silentSince = since
			}
		}
	}
	errs := make(map[string]int64, len(f.errorsByCause))
	for cause, n := range f.errorsByCause {
		errs[cause] = n.Load()
	}
	return Stats{
		Servers: t.serverCount, OpenConnections: f.openConnections.Load(), Dials: f.Dials.Load(),
		WaitingCalls: f.Admission.WaitingCalls(),
		OpenBreakers: open, BreakerOpenings: f.breakerOpenings.Load(),
		SilentServers: silent, SilentSince: silentSince,
		Batches: f.batches.Load(), Commands: f.commands.Load(), FailedBatches: f.failedBatches.Load(),
		ResentHits: f.resentHits.Load(), ErrorsByCause: errs,
	}
}

// Admission bounds the calls whose callers wait, and the bytes of all keys, including those of
// abandoned calls in a queue. A key can have a megabyte, so a bound for calls is not enough.
type Admission struct {
	waitingCalls atomic.Int64 // TryEnter has counted them, and their callers still wait.
	heldBytes    atomic.Int64 // the keys of all calls and of their parts
	// MaxCalls and MaxKeyBytes are the bounds. A single call may have more than MaxKeyBytes.
	MaxCalls, MaxKeyBytes int64
}

// keyBytesHeadroom is how many times the bytes of a call must be free before it enters, so that a
// few callers with long keys leave room for callers with short keys.
const keyBytesHeadroom = 4

// maxHeldKeyBytes bounds the bytes of the keys of all calls of one store.
const maxHeldKeyBytes = 64 << 20

// TryEnter counts a call and its bytes. It reports whether there was room for them.
func (r *Admission) TryEnter(bytes int) bool {
	if r.waitingCalls.Add(1) > r.MaxCalls {
		r.waitingCalls.Add(-1)
		return false
	}
	n, others := r.heldBytes.Add(int64(bytes)), int64(keyBytesHeadroom-1)*int64(bytes)
	if n+others > r.MaxKeyBytes && n > int64(bytes) {
		r.heldBytes.Add(-int64(bytes))
		r.waitingCalls.Add(-1)
		return false
	}
	return true
}

// WaitingCalls returns how many calls wait.
func (r *Admission) WaitingCalls() int64 { return r.waitingCalls.Load() }

// HeldBytes returns how many bytes of keys are held.
func (r *Admission) HeldBytes() int64 { return r.heldBytes.Load() }
