// Package push sends the figures to a statsd or DogStatsD server, or writes them as
// lines of JSON.
//
//	Timing ──┐
//	         ├─> waiting lines (4 MiB) ──batch──> server, or Config.Writer
//	flush ───┘
//
// Timing never blocks. A flush adds the increase of each counter since the last flush. If
// the waiting lines are full, timings and gauges are dropped, and the increase of a counter
// is part of the next flush.
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

// Format is the format of the lines.
type Format uint8

const (
	// Statsd writes tags into the name: name.__key=value:1|c.
	Statsd Format = iota
	// DogStatsD writes tags at the end: name:1|c|#key:value.
	DogStatsD
	// JSONLines writes the lines of the log of envoyproxy/ratelimit.
	JSONLines
)

// Config is the configuration of a Sink.
type Config struct {
	// Stats returns all figures, sorted by name, such as (*metrics.Registry).Flush.
	Stats func() []metrics.Stat
	// Interval is the time between two flushes. Defaults to 10 s.
	Interval time.Duration
	Format   Format
	// Tags are added to all figures.
	Tags map[string]string
	// Mogrifiers rename figures; only the first one that matches applies. Only DogStatsD
	// supports them.
	Mogrifiers []Mogrifier
	// Writer, if set, gets the lines instead of a server, many whole lines in each call. It
	// may block.
	Writer io.Writer
	// Addr is host:port of the server. Each new connection resolves the host name again.
	Addr string
	// Network is "tcp" or "udp". Defaults to "udp" for DogStatsD, and else to "tcp".
	Network string
	// OnState, if set, gets the error when sending starts to fail, and nil when it works
	// again.
	OnState func(error)

	limits limits
}

// limits are bounds that only tests change.
type limits struct {
	batch  int           // bytes in one write; a longer line is dropped
	buffer int           // bytes of waiting lines
	retry  time.Duration // least time between two attempts to connect
	write  time.Duration // timeout of one write to a server
	grace  time.Duration // timeout of the last flush
}

var defaultLimits = limits{batch: 64 << 10, buffer: 4 << 20, retry: 3 * time.Second, write: time.Second, grace: time.Second}

const (
	// maxPacket is limits.batch for UDP, in bytes: an Ethernet frame with room for tunnels.
	maxPacket = 1432
	// linger is how long a timing waits for further ones, which are sent in the same packet.
	linger = 100 * time.Millisecond
	// leaveBehind is how long Run waits for a write after its context was cancelled.
	leaveBehind = 100 * time.Millisecond
	// keepBytes is the largest capacity, in bytes, of an empty buffer.
	keepBytes = 1 << 20
)

// Sink sends figures. It sends nothing before Run.
type Sink struct {
	cfg     Config
	format  format
	write   func(ctx context.Context, batch []byte) (sent int, err error)
	server  *server // nil if Config.Writer is set
	failing bool    // the last call of OnState got an error
	deltas  metrics.Deltas[struct{}]
	line    []byte // scratch
	batch   []byte // scratch
	dropped atomic.Uint64
	wake    chan struct{} // gets a value at the first waiting line, and at a full batch

	mu    sync.Mutex   // guards lines
	lines bytes.Buffer // the waiting lines
}

// New returns a Sink. It does not connect, so a server that is down is no error.
func New(cfg Config) (*Sink, error) {
	if cfg.Stats == nil {
		return nil, errors.New("statsd: Stats is nil: set it to the Flush of a registry")
	}
	if cfg.Format != DogStatsD && len(cfg.Mogrifiers) > 0 {
		return nil, errors.New("statsd: mogrifiers work with DogStatsD only: remove them or use it")
	}
	cfg.limits = defaultLimits
	s := &Sink{cfg: cfg, format: newFormat(&cfg), wake: make(chan struct{}, 1)}
	if cfg.Writer != nil {
		s.write = s.toWriter
		return s, nil
	}
	server, err := newServer(&s.cfg)
	if err != nil {
		return nil, err
	}
	s.server, s.write = server, server.write
	return s, nil
}

// Dropped returns the number of lines that were dropped and will not be sent.
func (s *Sink) Dropped() uint64 { return s.dropped.Load() }

// Waiting returns the number of bytes that are not sent yet.
func (s *Sink) Waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lines.Len()
}

// Timing queues the duration d, cut to whole milliseconds, for sending. It never blocks and
// is safe for concurrent use.
func (s *Sink) Timing(name string, d time.Duration) {
	var scratch [512]byte
	if !s.add(s.format.line(scratch[:0], name, max(0, d.Milliseconds()), timer)) {
		s.dropped.Add(1)
	}
}

// add appends a line to the waiting lines. It returns false if they are full. It drops a line
// that is longer than a batch and returns true, because a second attempt would not help.
func (s *Sink) add(line []byte) bool {
	if len(line) > s.cfg.limits.batch {
		s.dropped.Add(1)
		return true
	}
	s.mu.Lock()
	before := s.lines.Len()
	after := before + len(line)
	if after > s.cfg.limits.buffer {
		s.mu.Unlock()
		return false
	}
	s.lines.Write(line)
	s.mu.Unlock()
	if before == 0 || before < s.cfg.limits.batch && after >= s.cfg.limits.batch {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// Run sends figures until ctx ends, and then flushes once more, within limits.grace. It
// returns while a write that ignores its context still runs. The error is always nil.
func (s *Sink) Run(ctx context.Context) error {
	sending, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		s.loop(ctx, sending)
	}()
	<-ctx.Done()
	defer time.AfterFunc(s.cfg.limits.grace, giveUp).Stop()
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

// loop flushes and sends until ctx ends. Then it flushes once more, until sending ends.
func (s *Sink) loop(ctx, sending context.Context) {
	tick := time.NewTicker(cmp.Or(s.cfg.Interval, 10*time.Second))
	defer tick.Stop()
	due := time.NewTimer(0) // fires after linger, or when the next attempt to connect is due
	<-due.C
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			s.flush(sending)
		case <-s.wake:
			if s.Waiting() < s.cfg.limits.batch {
				due.Reset(linger)
				continue
			}
		case <-due.C:
		case <-ctx.Done():
			continue
		}
		if !s.drain(sending) {
			due.Reset(s.cfg.limits.retry)
		}
	}
	if s.server != nil {
		defer s.server.close()
		s.server.dialed = time.Time{} // allow the last attempt now
	}
	s.flush(sending)
	// A UDP write may report the error of the packet before it, so it is tried again.
	if !s.drain(sending) && s.server != nil {
		s.server.dialed = time.Time{}
		s.drain(sending)
	}
}

// flush adds a line for each gauge, and for each counter that changed since the last flush.
// If the waiting lines are full, it sends them first.
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

// drain sends all waiting lines. It returns false if that failed.
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

// report calls OnState if sending started to fail or works again. err is that of the last
// attempt.
func (s *Sink) report(err error) {
	if s.failing == (err != nil) || s.server == nil {
		return
	}
	s.failing = err != nil
	if err != nil {
		err = fmt.Errorf("statsd: sending to %s over %s: %w; trying again every %v", s.cfg.Addr, s.cfg.Network, err, s.cfg.limits.retry)
	}
	if s.cfg.OnState != nil {
		s.cfg.OnState(err)
	}
}

// peek appends the first waiting lines to b, at most one batch, without removing them.
func (s *Sink) peek(b []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.lines.Bytes()
	if len(next) > s.cfg.limits.batch {
		next = next[:s.cfg.limits.batch]
		next = next[:bytes.LastIndexByte(next, '\n')+1]
	}
	return append(b, next...)
}

// discard removes the first n bytes of the waiting lines.
func (s *Sink) discard(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines.Next(n)
	if s.lines.Len() == 0 && s.lines.Cap() > keepBytes {
		s.lines = bytes.Buffer{}
	}
}

// drop counts lines as dropped.
func (s *Sink) drop(lines []byte) { s.dropped.Add(uint64(bytes.Count(lines, []byte{'\n'}))) }

// toWriter writes a batch to Config.Writer. If that fails, it drops the whole batch.
func (s *Sink) toWriter(_ context.Context, batch []byte) (int, error) {
	if _, err := s.cfg.Writer.Write(batch); err != nil {
		s.drop(batch)
	}
	return len(batch), nil
}
