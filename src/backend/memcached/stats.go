package memcached

import (
	"sync/atomic"

	"ratelimit/src/backend/remote"
)

// Stats are the figures of a Store. Each change or lookup of a counter is one of
// Commands, and Failed if it had no answer.
type Stats struct {
	remote.Stats
	// Changes is how often the servers became others, FailedLookups how often they
	// could not be found.
	Changes, FailedLookups int64
	// Increments and Adds change counters: Missed is an increment of one that was not
	// there, an add of one that was. Reads only look, each at one counter of
	// KeysRequested, of which KeysFound were there.
	Increments, Adds, Reads  Outcomes
	KeysRequested, KeysFound int64
}

// Outcomes is how often a command ended how.
type Outcomes struct{ Done, Missed, Failed int64 }

// outcomes counts them.
type outcomes [3]atomic.Int64

const (
	done = iota
	missed
	failed
)

func (o *outcomes) read() Outcomes {
	return Outcomes{Done: o[done].Load(), Missed: o[missed].Load(), Failed: o[failed].Load()}
}

// figures are what a Store counts besides those of package remote.
type figures struct {
	commands, failed         atomic.Int64
	changes, failedLookups   atomic.Int64
	increments, adds, reads  outcomes
	keysRequested, keysFound atomic.Int64
}

// Stats reads the store's figures.
func (s *Store) Stats() Stats {
	f := &s.figures
	st := Stats{
		Stats: s.Store.Stats(), Changes: f.changes.Load(), FailedLookups: f.failedLookups.Load(),
		Increments: f.increments.read(), Adds: f.adds.read(), Reads: f.reads.read(),
		KeysRequested: f.keysRequested.Load(), KeysFound: f.keysFound.Load(),
	}
	st.Commands, st.Failed = f.commands.Load(), f.failed.Load()
	return st
}
