package memcached

import (
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/backend/remote"
)

// Stats is what a Store says of itself.
type Stats struct {
	// Servers is how many there are.
	Servers int
	// Open is how many connections there are, Dials how often one was tried.
	Open, Dials int64
	// Waiting is how many calls wait now.
	Waiting int64
	// BreakersOpen is how many servers are not asked as they do not answer,
	// BreakerOpened how often one of them came to that.
	BreakersOpen  int
	BreakerOpened int64
	// Commands is how often a counter was changed or looked at, Failed how often
	// that failed.
	Commands, Failed int64
	// Changes is how often the servers became others, FailedLookups how often
	// they could not be found.
	Changes, FailedLookups int64
	// Errors is how many hits had no answer, by cause.
	Errors map[string]int64

	// Increments and Adds change counters: Missed is an increment of one that was
	// not there, an add of one that was. Reads only look, each at one counter of
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

// counters are what a Store counts of itself, and its pool of calls.
type counters struct {
	calls                    sync.Pool
	room                     remote.Room
	opened                   atomic.Int64 // breakers
	dials                    atomic.Int64
	open                     atomic.Int64
	commands                 atomic.Int64
	failed                   atomic.Int64
	changes                  atomic.Int64
	failedLookups            atomic.Int64
	increments, adds, reads  outcomes
	keysRequested, keysFound atomic.Int64
	errors                   remote.Tally
}

// Stats reads the store's figures.
func (s *Store) Stats() Stats {
	c := &s.stats
	t := s.table.Load()
	open := 0
	for _, n := range t.byAddr {
		if n.breaker.Open() {
			open++
		}
	}
	return Stats{
		Servers: len(t.byAddr), BreakersOpen: open, BreakerOpened: c.opened.Load(),
		Open: c.open.Load(), Dials: c.dials.Load(), Waiting: c.room.Calls(),
		Commands: c.commands.Load(), Failed: c.failed.Load(),
		Changes: c.changes.Load(), FailedLookups: c.failedLookups.Load(), Errors: c.errors.Read(),
		Increments: c.increments.read(), Adds: c.adds.read(), Reads: c.reads.read(),
		KeysRequested: c.keysRequested.Load(), KeysFound: c.keysFound.Load(),
	}
}

// sent counts what was done to one counter.
func (s *Store) sent(hits int, took time.Duration, err error) {
	s.stats.commands.Add(1)
	if err != nil {
		s.stats.failed.Add(1)
	}
	if s.cfg.OnCommand != nil {
		s.cfg.OnCommand(hits, took)
	}
}

// call is an empty one, held by whoever asked for it.
func (s *counters) call() *call {
	c := s.calls.Get().(*call)
	c.Reset()
	c.ops, c.keys = c.ops[:0], c.keys[:0]
	return c
}

// release puts c away if nobody else holds it.
func (s *counters) release(c *call) {
	if c.Release() {
		s.room.Free(c.Bytes)
		c.keys = remote.Spare(c.keys)
		s.calls.Put(c)
	}
}
