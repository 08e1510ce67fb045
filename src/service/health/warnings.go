package health

import (
	"context"
	"fmt"
	"sync"
	"time"

	"ratelimit/src/frontend/connlimit"
	"ratelimit/src/operator"
	"ratelimit/src/operator/output"
	"ratelimit/src/service/logging"
	"ratelimit/src/service/ports"
)

// Warnings watches what goes wrong beside the requests: full ports and lost log lines. /readyz and `ratelimit top` show
// its components, which do not make the process unready.
type Warnings struct {
	ports    []*portWarning
	log      *logging.Loggers
	logStats func() logging.Stats

	mu     sync.Mutex // guards logLines, and the spells of ports.
	logged spell
}

// portWarning watches the connections of one port.
type portWarning struct {
	*ports.Port
	stats func() connlimit.Stats
	spell
	unlogged uint64    // counts connections that no line of the log has told of. Only read uses it.
	nextLine time.Time // when the log may have the next line. Only read uses it.
}

// portLineInterval bounds the lines about a full port.
const portLineInterval = time.Minute

// spell is a time in which a count grew, without a pause of spellPause.
type spell struct {
	seen        uint64    // the count when it was last read.
	count       uint64    // how much it grew in this spell.
	first, last time.Time // when it was seen to grow. Zero: it never did.
}

// spellPause is how long a spell is shown after its count last grew.
const spellPause = 10 * time.Minute

// add reads the count, and returns how much it grew since it was last read.
func (s *spell) add(total uint64, now time.Time) (growth uint64) {
	growth, s.seen = total-s.seen, total
	if growth == 0 {
		return 0
	}
	if !s.isShown(now) {
		s.count, s.first = 0, now
	}
	s.count, s.last = s.count+growth, now
	return growth
}

func (s *spell) isShown(now time.Time) bool { return !s.last.IsZero() && now.Sub(s.last) < spellPause }

// times returns the time of the spell for people.
func (s *spell) times() string {
	from, to := s.first.UTC().Format(time.RFC3339), s.last.UTC().Format(time.RFC3339)
	if from == to {
		return "at " + from
	}
	return fmt.Sprintf("from %s to %s", from, to)
}

// NewWarnings returns Warnings that write to log, whose lost lines logStats counts.
func NewWarnings(log *logging.Loggers, logStats func() logging.Stats) *Warnings {
	return &Warnings{log: log, logStats: logStats}
}

// WatchPort has w watch the connections of p, for which stats returns the figures. Call it before Run.
func (w *Warnings) WatchPort(p *ports.Port, stats func() connlimit.Stats) {
	w.ports = append(w.ports, &portWarning{Port: p, stats: stats})
}

// warningInterval is how often counts are read.
const warningInterval = time.Second

// Run reads the counts until ctx ends.
func (w *Warnings) Run(ctx context.Context) error {
	next := time.NewTicker(warningInterval)
	defer next.Stop()
	for {
		select {
		case now := <-next.C:
			w.read(now)
		case <-ctx.Done():
			return nil
		}
	}
}

// read reads all counts, and logs which ports are full.
func (w *Warnings) read(now time.Time) {
	stats := w.logStats()
	w.mu.Lock()
	w.logged.add(stats.Dropped+stats.Failed, now)
	w.mu.Unlock()
	for _, p := range w.ports {
		st := p.stats()
		w.mu.Lock()
		p.unlogged += p.add(uint64(st.Evicted+st.Refused), now)
		w.mu.Unlock()
		if p.unlogged > 0 && !now.Before(p.nextLine) {
			w.log.Warnf("the %s port is full with %s: it closed the longest idle ones for new ones, or refused new ones, %s; %s",
				p.Name, output.Plural(p.MaxConns, "connection"), output.Plural(p.unlogged, "time"), p.CapAdvice())
			p.unlogged, p.nextLine = 0, now.Add(portLineInterval)
		}
	}
}

// Components returns a component for each warning that is shown.
func (w *Warnings) Components(now time.Time) (list []operator.Component) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, p := range w.ports {
		if p.isShown(now) {
			list = append(list, operator.Component{
				Name: p.Name + " port", IsWarning: true,
				Note: fmt.Sprintf("full with %s: %d were closed or refused %s; %s", output.Plural(p.MaxConns, "connection"),
					p.count, p.times(), p.CapAdvice()),
			})
		}
	}
	if w.logged.isShown(now) {
		list = append(list, operator.Component{
			Name: "log", IsWarning: true,
			Note: fmt.Sprintf("lines were dropped, or could not be written at once, %s %s: see the disk, or what reads stderr",
				output.Plural(w.logged.count, "time"), w.logged.times()),
		})
	}
	return list
}
