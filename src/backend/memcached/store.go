package memcached

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"ratelimit/src/backend/remote"
)

// Config names the servers and how to reach them. It has either Servers or SRV.
type Config struct {
	remote.Config
	// Servers are host:port, or paths of sockets. Their order decides which keys they
	// have, so it has to be the same everywhere. One that is there twice has twice as
	// many, unless Hash is Rendezvous.
	Servers []string
	// SRV finds the servers by a DNS record.
	SRV *SRV
	// Resolver is asked for SRV. Defaults to net.DefaultResolver.
	Resolver *net.Resolver
	// Hash chooses the server of a key. Defaults to Modulo.
	Hash Hash
	// InFlight is how many commands may be on their way to each server, each for a
	// counter of its own. Defaults to 128.
	InFlight int
	// OnChange, if set, hears that the servers that SRV finds are others than before.
	OnChange func(Change)
	// OnLookupFailure, if set, hears that SRV finds nothing.
	OnLookupFailure func(error)
}

// Store is a backend.Backend. It answers only while Run runs.
type Store struct {
	*remote.Store
	Counts Counts
	cfg    Config
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
	if cfg.InFlight <= 0 {
		cfg.InFlight = 128
	}
	s := &Store{cfg: cfg}
	s.Store = remote.New(name, cfg.Config, &protocol{&s.cfg, &s.Counts}, errNoServers, causes...)
	s.cfg.Config = s.Store.Config // with defaults
	return s, nil
}

// Run serves Take until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	s.Store.Run(ctx, func(ctx context.Context) {
		if s.cfg.SRV == nil {
			s.Use(ctx, layout(s.cfg.Hash, s.cfg.Servers))
		} else {
			s.watch(ctx)
		}
	})
	return nil
}

// Ping asks the servers whether they are there, over connections of its own. One is
// enough. The error has a *remote.SlowError for each that answers, but later than the
// Timeout.
func (s *Store) Ping(ctx context.Context) error {
	t := s.Table()
	if t.Err != nil {
		return t.Err // Run has not begun, or a DNS record is not known
	}
	return s.Store.Ping(ctx, t.Addrs)
}

// Counts are the figures of a Store in addition to remote.Stats.
type Counts struct {
	// Changes counts changes of the servers, FailedLookups the DNS lookups that failed.
	Changes, FailedLookups atomic.Int64
	// Increments and Adds change counters: Missed is an increment of one that was not
	// there, an add of one that was. Reads only look, each at one counter of
	// KeysRequested, of which KeysFound were there.
	Increments, Adds, Reads  Outcomes
	KeysRequested, KeysFound atomic.Int64

	commands, failed atomic.Int64
}

// Outcomes counts commands by how they ended.
type Outcomes struct{ Done, Missed, Failed atomic.Int64 }

// count counts a command that ended with err; missed is the error of a miss.
func (o *Outcomes) count(err, missed error) {
	switch {
	case err == nil:
		o.Done.Add(1)
	case errors.Is(err, missed):
		o.Missed.Add(1)
	default:
		o.Failed.Add(1)
	}
}

// Stats reads the store's figures. Each change or lookup of a counter is one of
// Commands, and Failed if it had no answer.
func (s *Store) Stats() remote.Stats {
	st := s.Store.Stats()
	st.Commands, st.Failed = s.Counts.commands.Load(), s.Counts.failed.Load()
	return st
}
