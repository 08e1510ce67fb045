// Package push sends the figures to a statsd or DogStatsD server, or writes them as
// lines of JSON.
//
//	Timing ──┐
//	         ├─> lines that wait (4 MiB) ──batch──> server, or Config.Writer
//	flush ───┘
//
// Callers of Timing never wait. A flush adds what each counter counted since the last
// one; what finds no room is in the next flush.
package push

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"ratelimit/src/metrics"
)

// Format is how lines are written.
type Format uint8

const (
	// Statsd has tags in the name: name.__key=value:1|c.
	Statsd Format = iota
	// DogStatsD has them at the end: name:1|c|#key:value.
	DogStatsD
	// JSONLines are those of the log of envoyproxy/ratelimit.
	JSONLines
)

// Config says where the figures go.
type Config struct {
	// Stats reads all figures, sorted by name: (*metrics.Registry).Flush.
	Stats func() []metrics.Stat
	// Interval is the time between two flushes. Defaults to 10 s.
	Interval time.Duration
	Format   Format
	// Tags are added to all figures.
	Tags map[string]string
	// Mogrifiers rename figures, with DogStatsD only. The first that matches applies.
	Mogrifiers []Mogrifier
	// Writer takes whole lines, many at a time, if no server does. It may block.
	Writer io.Writer
	// Addr is host:port of the server. Each connection resolves the name again.
	Addr string
	// Network is "tcp" or "udp". Defaults to "tcp", and to "udp" for DogStatsD.
	Network string
	// OnState, if set, gets the error when sending starts to fail, and nil when it works
	// again.
	OnState func(error)
	// MaxBuffer is how many bytes wait at most. Beyond it timings and gauges are dropped
	// and counted, and counters are sent later. Defaults to 4 MiB.
	MaxBuffer int
	// RetryInterval is the least time between two connections. Defaults to 3 s.
	RetryInterval time.Duration
	// WriteTimeout bounds one write to a server. Defaults to 1 s.
	WriteTimeout time.Duration
	// Grace bounds the last flush. Defaults to 1 s.
	Grace time.Duration

	batch int // bytes sent at once, and the longest line
}

const (
	// maxBatch is how many bytes are sent at once.
	maxBatch = 64 << 10
	// maxPacket is maxBatch for UDP: what fits into an Ethernet frame with room for tunnels.
	maxPacket = 1432
	// linger is how long a timing waits for others, so that few timings do not cost a
	// packet each.
	linger = 100 * time.Millisecond
	// leaveBehind is how long Run waits for a write that was told to give up.
	leaveBehind = 100 * time.Millisecond
	// keepBytes is how much memory an empty buffer keeps.
	keepBytes = 1 << 20
)

// Sink sends figures. It does nothing before Run.
type Sink struct {
	cfg     Config
	format  format
	write   func(ctx context.Context, batch []byte) (sent int, err error)
	server  *server // nil: there is a Writer
	failing bool    // as OnState knows
	deltas  metrics.Deltas[struct{}]
	line    []byte // scratch
	batch   []byte // scratch
	dropped atomic.Uint64
	wake    chan struct{} // holds a value when there is a line, or a whole batch

	mu    sync.Mutex   // guards what follows
	lines bytes.Buffer // that wait
}

// New returns a sink. It does not connect yet, so an absent server is no error.
func New(cfg Config) (*Sink, error) {
	if cfg.Stats == nil {
		return nil, errors.New("statsd: Stats is nil: set it to the Flush of a registry")
	}
	if cfg.Format != DogStatsD && len(cfg.Mogrifiers) > 0 {
		return nil, errors.New("statsd: mogrifiers work with DogStatsD only: remove them or use it")
	}
	cfg.MaxBuffer = cmp.Or(cfg.MaxBuffer, 4<<20)
	cfg.batch = maxBatch
	s := &Sink{wake: make(chan struct{}, 1)}
	if cfg.Writer != nil {
		s.write = s.toWriter
	} else {
		server, err := newServer(&cfg)
		if err != nil {
			return nil, err
		}
		s.server, s.write = server, server.write
	}
	s.cfg, s.format = cfg, newFormat(&cfg)
	return s, nil
}

// Dropped returns how many lines found no room and will never be sent.
func (s *Sink) Dropped() uint64 { return s.dropped.Load() }

// Waiting returns how many bytes are not sent yet.
func (s *Sink) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.Len()
}

// Timing sends d, cut to whole milliseconds, within a moment. It never waits, and is
// safe for concurrent use.
func (s *Sink) Timing(name string, d time.Duration) {
	var scratch [512]byte
	if !s.add(s.format.line(scratch[:0], name, max(0, d.Milliseconds()), timer)) {
		s.dropped.Add(1)
	}
}

// add adds a line to those that wait, and reports false if there is no room. It drops a
// line that could never be sent.
func (s *Sink) add(line []byte) bool {
	if len(line) > s.cfg.batch {
		s.dropped.Add(1)
		return true
	}
	s.mu.Lock()
	before := s.lines.Len()
	after := before + len(line)
	if after > s.cfg.MaxBuffer {
		s.mu.Unlock()
		return false
	}
	s.lines.Write(line)
	s.mu.Unlock()
	if before == 0 || before < s.cfg.batch && after >= s.cfg.batch {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// Run sends until ctx ends, and then what was counted by then, for Grace. A write that
// does not return even then is left behind.
func (s *Sink) Run(ctx context.Context) error {
	sending, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		s.loop(ctx, sending)
	}()
	<-ctx.Done()
	defer time.AfterFunc(cmp.Or(s.cfg.Grace, time.Second), giveUp).Stop()
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

// loop flushes and sends until ctx ends, and then once more until sending ends.
func (s *Sink) loop(ctx, sending context.Context) {
	tick := time.NewTicker(cmp.Or(s.cfg.Interval, 10*time.Second))
	defer tick.Stop()
	due := time.NewTimer(0) // lines have lingered, or the server can be tried again
	<-due.C
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			s.flush(sending)
		case <-s.wake:
			if s.Waiting() < s.cfg.batch {
				due.Reset(linger)
				continue
			}
		case <-due.C:
		case <-ctx.Done():
			continue
		}
		if !s.drain(sending) {
			due.Reset(s.cfg.RetryInterval)
		}
	}
	if s.server != nil {
		defer s.server.close()
		s.server.dialed = time.Time{} // now is the last time
	}
	s.flush(sending)
	// What a write over UDP reports may be the fate of the packet before.
	if !s.drain(sending) && s.server != nil {
		s.server.dialed = time.Time{}
		s.drain(sending)
	}
}

// flush adds a line for each counter that counted since the last flush, and for each
// gauge. It sends lines meanwhile if there is no room for all.
func (s *Sink) flush(ctx context.Context) {
	stuck := false
	s.deltas.Next(s.cfg.Stats(), func(st metrics.Stat, added int64, _ *struct{}) bool {
		kind := counter
		if st.Kind == metrics.KindGauge {
			kind = gauge
		} else if added == 0 {
			return true
		}
		s.line = s.format.line(s.line[:0], st.Name, added, kind)
		for !s.add(s.line) {
			if stuck = stuck || !s.drain(ctx); stuck {
				if kind == gauge {
					s.dropped.Add(1)
				}
				return false
			}
		}
		return true
	})
	if s.line = s.format.end(s.line[:0]); len(s.line) > 0 && !s.add(s.line) {
		s.dropped.Add(1)
	}
}

// drain sends all lines that wait, and reports false if that failed.
func (s *Sink) drain(ctx context.Context) bool {
	for ctx.Err() == nil {
		s.batch = s.peek(s.batch[:0])
		if len(s.batch) == 0 {
			return true
		}
		sent, err := s.write(ctx, s.batch)
		var lost *lostError
		if errors.As(err, &lost) {
			s.drop(s.batch)
			sent = len(s.batch)
		}
		s.discard(sent)
		if errors.Is(err, errTooEarly) {
			return false
		}
		s.report(err)
		if err != nil {
			return false
		}
	}
	return false
}

// report calls OnState if the state changed.
func (s *Sink) report(err error) {
	if s.failing == (err != nil) || s.server == nil {
		return
	}
	s.failing = err != nil
	if err != nil {
		err = fmt.Errorf("statsd: sending to %s over %s: %w; trying again every %v", s.cfg.Addr, s.cfg.Network, err, s.cfg.RetryInterval)
	}
	if s.cfg.OnState != nil {
		s.cfg.OnState(err)
	}
}

// peek appends the next lines to b, a batch at most, and leaves them there.
func (s *Sink) peek(b []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.lines.Bytes()
	if len(next) > s.cfg.batch {
		next = next[:s.cfg.batch]
		next = next[:bytes.LastIndexByte(next, '\n')+1]
	}
	return append(b, next...)
}

// discard takes out the first n bytes.
func (s *Sink) discard(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines.Next(n)
	if s.lines.Len() == 0 && s.lines.Cap() > keepBytes {
		s.lines = bytes.Buffer{}
	}
}

func (s *Sink) drop(lines []byte) { s.dropped.Add(uint64(bytes.Count(lines, []byte{'\n'}))) }

// toWriter writes a batch to Config.Writer. Lines that it does not take are lost.
func (s *Sink) toWriter(_ context.Context, batch []byte) (int, error) {
	if _, err := s.cfg.Writer.Write(batch); err != nil {
		s.drop(batch)
	}
	return len(batch), nil
}
