package memcached

import (
	"errors"
	"fmt"
	"net"
	"sync/atomic"

	"ratelimit/src/backend/remote"
)

// Config names the servers and how to reach them. It has either Servers or SRV.
type Config struct {
	remote.Config
	// Servers are host:port, or paths of sockets. Each replica must list them in the same order, because the order
	// decides which keys a server has. With Hash Modulo, a server that is listed twice has twice as many keys.
	Servers []string
	// SRV finds the servers by a DNS record.
	SRV *SRV
	// Resolver looks up SRV. Defaults to net.DefaultResolver.
	Resolver *net.Resolver
	// Hash chooses the server of a key. Defaults to Modulo.
	Hash HashMethod
	// MaxInFlight is how many commands may be under way to each server at once, each for another counter. Defaults to
	// 128.
	MaxInFlight int
	// OnServersChange, if set, is called when SRV finds other servers than before.
	OnServersChange func(ServersChange)
	// OnLookupFailure, if set, is called with the error when SRV finds no servers.
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
	case cfg.Hash >= hashMethods:
		return nil, fmt.Errorf("memcached: hash %d is not known", cfg.Hash)
	}
	if cfg.Resolver == nil {
		cfg.Resolver = net.DefaultResolver
	}
	if cfg.MaxInFlight <= 0 {
		cfg.MaxInFlight = 128
	}
	s := &Store{cfg: cfg}
	s.Store = remote.New(storeName, cfg.Config, protocol{s}, errNoServers, causes...)
	return s, nil
}

// Counts are the figures of a Store in addition to remote.Stats.
type Counts struct {
	// ServerChanges counts changes of the servers, FailedLookups the DNS lookups that failed.
	ServerChanges, FailedLookups atomic.Int64
	// Increments and Adds change counters. Missed counts increments of counters that did not exist, and adds of
	// counters that did. Reads look up KeysRequested counters, of which KeysFound existed.
	Increments, Adds, Reads  CommandOutcomes
	KeysRequested, KeysFound atomic.Int64

	counterCommands, failedCommands atomic.Int64
}

// CommandOutcomes counts commands by how they ended.
type CommandOutcomes struct{ Done, Missed, Failed atomic.Int64 }

// countOutcome counts a command that ended with err. The error of a miss is missed.
func (o *CommandOutcomes) countOutcome(err, missed error) {
	switch {
	case err == nil:
		o.Done.Add(1)
	case errors.Is(err, missed):
		o.Missed.Add(1)
	default:
		o.Failed.Add(1)
	}
}

// Stats returns the store's figures. Commands counts each change or lookup of a counter,
// and FailedBatches those of them without an answer.
func (s *Store) Stats() remote.Stats {
	stats := s.Store.Stats()
	stats.Commands, stats.FailedBatches = s.Counts.counterCommands.Load(), s.Counts.failedCommands.Load()
	return stats
}
