package remote

import "sync/atomic"

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
