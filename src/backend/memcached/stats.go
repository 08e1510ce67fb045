package memcached

import (
	"sync/atomic"

	"ratelimit/src/backend/remote"
)

// Counts are what a Store counts besides remote.Stats.
type Counts struct {
	// Changes is how often the servers became others, FailedLookups how often they
	// could not be found.
	Changes, FailedLookups atomic.Int64
	// Increments and Adds change counters: Missed is an increment of one that was not
	// there, an add of one that was. Reads only look, each at one counter of
	// KeysRequested, of which KeysFound were there.
	Increments, Adds, Reads  Outcomes
	KeysRequested, KeysFound atomic.Int64

	commands, failed atomic.Int64
}

// Outcomes is how often a command ended how.
type Outcomes struct{ Done, Missed, Failed atomic.Int64 }

// Stats reads the store's figures. Each change or lookup of a counter is one of
// Commands, and Failed if it had no answer.
func (s *Store) Stats() remote.Stats {
	st := s.Store.Stats()
	st.Commands, st.Failed = s.Counts.commands.Load(), s.Counts.failed.Load()
	return st
}
