// Package flush is what the sinks that push figures share: the rhythm, what
// was added to each counter since the last time, and a bounded queue between
// those who count and a receiver that may be slow or away.
package flush

import (
	"cmp"
	"context"
	"time"

	"ratelimit/src/metrics"
)

// Config says what is flushed, how often and where to.
type Config struct {
	// Stats reads all figures, sorted by name: (*metrics.Registry).Flush.
	Stats func() []metrics.Stat
	// Interval is the time between two flushes. Defaults to 10 s.
	Interval time.Duration
	// Grace is how long the last flush may take after the end. Defaults to 1 s.
	Grace time.Duration
	// Line appends the line of one figure, its line feed included. Counters
	// carry what was added since the last flush.
	Line func(line []byte, s metrics.Stat) []byte
	// Done, if set, is called at the end of each flush.
	Done func()
	// Queue takes the lines.
	Queue *Queue
	// Send takes lines out of Queue as long as Queue.Wait says so, and returns
	// soon after ctx ends.
	Send func(ctx context.Context)
}

// Run flushes every Interval until ctx ends, then once more. Send runs beside
// it, and has Grace to empty the queue after that. A Send that does not return
// even then is left behind.
func Run(ctx context.Context, cfg Config) error {
	sending, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		cfg.Send(sending)
	}()
	f := flusher{cfg: cfg}
	tick := time.NewTicker(cmp.Or(cfg.Interval, 10*time.Second))
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			f.flush()
		case <-ctx.Done():
		}
	}
	defer time.AfterFunc(cmp.Or(cfg.Grace, time.Second), giveUp).Stop()
	for f.flush() > 0 && cfg.Queue.waitEmpty(sending) { // what found no room at first
	}
	cfg.Queue.Close()
	select {
	case <-sent:
		return nil
	case <-sending.Done():
	}
	select {
	case <-sent:
	case <-time.After(leaveBehind):
	}
	return nil
}

// leaveBehind is how long Run waits for a Send that was told to give up.
const leaveBehind = 100 * time.Millisecond

type flusher struct {
	cfg    Config
	deltas Deltas
	line   []byte // scratch
}

// flush puts a line for each figure into the queue and returns how many
// counters found no room.
func (f *flusher) flush() int {
	left := f.deltas.Next(f.cfg.Stats(), func(s metrics.Stat) bool {
		f.line = f.cfg.Line(f.line[:0], s)
		if f.cfg.Queue.Add(f.line) {
			return true
		}
		if s.Kind == metrics.KindGauge {
			f.cfg.Queue.Drop()
		}
		return false
	})
	if f.cfg.Done != nil {
		f.cfg.Done()
	}
	return left
}
