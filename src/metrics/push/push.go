// Package push sends the figures to a statsd or DogStatsD server, or writes them as
// lines of JSON.
//
//	AddTimings ─┐
//	            ├─> waiting lines (4 MiB) ──batch──> server, or Config.Writer
//	flush ──────┘
//
// AddTimings never blocks. A flush adds the increase of each counter since the last flush. If the waiting lines are
// full, timings and gauges are dropped, and the increase of a counter is part of the next flush.
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
	ReadStats func() []metrics.Stat // returns all figures, sorted by name, such as (*metrics.Registry).FlushStats.
	Interval  time.Duration         // the time between two flushes. Defaults to 10 s.
	Format    Format
	Tags      map[string]string // added to all figures.
	// Mogrifiers rename figures; only the first one that matches applies. Only DogStatsD supports them.
	Mogrifiers []Mogrifier
	// Writer, if set, gets the lines instead of a server, many whole lines in each call. It may block.
	Writer  io.Writer
	Addr    string // host:port of the server. Each new connection resolves the host name again.
	Network string // "tcp" or "udp". Defaults to "tcp".
	// OnState, if set, gets nil when sending works for the first time, the error when it starts to fail, and nil when it
	// works again.
	OnState func(error)

	limits sinkLimits
}

// sinkLimits are bounds that only tests change.
type sinkLimits struct {
	batchBytes       int           // bounds one write. A longer line is dropped.
	bufferBytes      int           // bounds the waiting lines.
	retryPause       time.Duration // the least time between two attempts to connect.
	writeTimeout     time.Duration // bounds one write to a server.
	lastFlushTimeout time.Duration
}

var defaultLimits = sinkLimits{
	batchBytes: 64 << 10, bufferBytes: 4 << 20,
	retryPause: 3 * time.Second, writeTimeout: time.Second, lastFlushTimeout: time.Second,
}

const (
	// maxPacketBytes is limits.batchBytes for UDP, in bytes: an Ethernet frame with room for tunnels.
	maxPacketBytes = 1432
	// timingSendDelay is how long a timing waits for further ones, which are sent in the same packet.
	timingSendDelay = 100 * time.Millisecond
	// maxWaitForHangingWrite is how long Run waits for a write after its context was cancelled.
	maxWaitForHangingWrite = 100 * time.Millisecond
	// maxIdleBufferBytes is the largest capacity, in bytes, of an empty buffer.
	maxIdleBufferBytes = 1 << 20
)

// Sink sends figures. It sends nothing before Run.
type Sink struct {
	cfg        Config
	lineFormat lineFormat
	connection *connection
	// connection.writeLines; tests replace it.
	writeBatch   func(ctx context.Context, lines []byte) (done int, err error)
	state        sendingState // what the last call of OnState told.
	statDeltas   metrics.Deltas[*spelledName]
	scratchLine  []byte
	scratchBatch []byte
	droppedLines atomic.Uint64
	wakeSignal   chan struct{} // gets a value at the first waiting line, and at a full batch.

	mu              sync.Mutex // guards the fields below.
	waitingLines    bytes.Buffer
	timingSpellings map[string]spelledName // the names of timings since the last flush.
}

// New returns a Sink. It does not connect, so a server that is down is no error.
func New(cfg Config) (*Sink, error) {
	if cfg.ReadStats == nil {
		return nil, errors.New("statsd: Stats is nil: set it to the Flush of a registry")
	}
	if cfg.Format != DogStatsD && len(cfg.Mogrifiers) > 0 {
		return nil, errors.New("statsd: mogrifiers work with DogStatsD only: remove them or use it")
	}
	cfg.limits = defaultLimits
	s := &Sink{
		cfg: cfg, lineFormat: newFormat(&cfg), wakeSignal: make(chan struct{}, 1),
		timingSpellings: make(map[string]spelledName),
	}
	var err error
	if s.connection, err = newConnection(&s.cfg, s.countDropped); err != nil {
		return nil, err
	}
	s.writeBatch = s.connection.writeLines
	return s, nil
}

// Dropped returns the number of lines that were dropped and will not be sent.
func (s *Sink) Dropped() uint64 { return s.droppedLines.Load() }

// WaitingBytes returns the number of bytes that are not sent yet.
func (s *Sink) WaitingBytes() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waitingLines.Len()
}

// AddTimings queues n times the duration d, cut to whole milliseconds, for sending: n lines. It never blocks and is
// safe for concurrent use.
func (s *Sink) AddTimings(name string, n int, d time.Duration) {
	s.mu.Lock()
	spelled, known := s.timingSpellings[name]
	if !known {
		spelled = s.lineFormat.spellName(name)
		s.timingSpellings[name] = spelled
	}
	s.mu.Unlock()
	var scratch [512]byte
	line := s.lineFormat.appendLine(scratch[:0], spelled, max(0, d.Milliseconds()), kindTimer)
	s.droppedLines.Add(uint64(n - s.addLines(line, n)))
}

// addLines appends a line n times to the waiting lines. It returns how many of them were added: fewer than n if the
// waiting lines are full. It drops lines that are longer than a batch and returns n, because a second attempt would not
// help.
func (s *Sink) addLines(line []byte, n int) (added int) {
	limits := &s.cfg.limits
	if len(line) > limits.batchBytes {
		s.droppedLines.Add(uint64(n))
		return n
	}
	s.mu.Lock()
	before := s.waitingLines.Len()
	for added < n && s.waitingLines.Len()+len(line) <= limits.bufferBytes {
		s.waitingLines.Write(line)
		added++
	}
	after := s.waitingLines.Len()
	s.mu.Unlock()
	if after > before && (before == 0 || before < limits.batchBytes && after >= limits.batchBytes) {
		select {
		case s.wakeSignal <- struct{}{}:
		default:
		}
	}
	return added
}

// Run sends figures until ctx ends, and then flushes once more, within lastFlushTimeout. It
// returns while a write that ignores its context still runs. The error is always nil.
func (s *Sink) Run(ctx context.Context) error {
	sending, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		s.sendUntilDone(ctx, sending)
	}()
	<-ctx.Done()
	defer time.AfterFunc(s.cfg.limits.lastFlushTimeout, giveUp).Stop()
	select {
	case <-sent:
		return nil
	case <-sending.Done():
	}
	select {
	case <-sent:
	case <-time.After(maxWaitForHangingWrite):
	}
	return nil
}

// sendUntilDone flushes and sends until ctx ends. Then it flushes once more, until sending ends.
func (s *Sink) sendUntilDone(ctx, sending context.Context) {
	tick := time.NewTicker(cmp.Or(s.cfg.Interval, 10*time.Second))
	defer tick.Stop()
	due := time.NewTimer(0) // The timer fires after timingSendDelay, or when the next attempt to connect is due.
	<-due.C
	for ctx.Err() == nil {
		select {
		case <-tick.C:
			s.flushStats(sending)
		case <-s.wakeSignal:
			if s.WaitingBytes() < s.cfg.limits.batchBytes {
				due.Reset(timingSendDelay)
				continue
			}
		case <-due.C:
		case <-ctx.Done():
			continue
		}
		if !s.sendWaiting(sending) {
			due.Reset(s.cfg.limits.retryPause)
		}
	}
	defer s.connection.close()
	s.connection.lastDialTime = time.Time{} // A zero time allows another attempt at once.
	s.flushStats(sending)
	// A UDP write may report the error of the packet before it, so it is tried again.
	if !s.sendWaiting(sending) {
		s.connection.lastDialTime = time.Time{}
		s.sendWaiting(sending)
	}
}

// flushStats adds a line for each gauge, and for each counter that changed since the last flush.
// If the waiting lines are full, it sends them first.
func (s *Sink) flushStats(ctx context.Context) {
	stuck := false
	s.statDeltas.ForEachDelta(s.cfg.ReadStats(), func(st metrics.Stat, added int64, n **spelledName) bool {
		kind := kindCounter
		if st.Kind == metrics.KindGauge {
			kind = kindGauge
		} else if added == 0 {
			return true
		}
		if *n == nil {
			*n = new(s.lineFormat.spellName(st.Name))
		}
		s.scratchLine = s.lineFormat.appendLine(s.scratchLine[:0], **n, added, kind)
		for s.addLines(s.scratchLine, 1) == 0 {
			if stuck = stuck || !s.sendWaiting(ctx); stuck {
				if kind == kindGauge {
					s.droppedLines.Add(1)
				}
				return false
			}
		}
		return true
	})
	s.mu.Lock()
	clear(s.timingSpellings)
	s.mu.Unlock()
	if s.scratchLine = s.lineFormat.appendFlushEnd(s.scratchLine[:0]); len(s.scratchLine) > 0 {
		s.droppedLines.Add(uint64(1 - s.addLines(s.scratchLine, 1)))
	}
}

// sendWaiting sends all waiting lines. It returns false if that failed.
func (s *Sink) sendWaiting(ctx context.Context) bool {
	for ctx.Err() == nil {
		s.scratchBatch = s.appendBatch(s.scratchBatch[:0])
		if len(s.scratchBatch) == 0 {
			return true
		}
		done, err := s.writeBatch(ctx, s.scratchBatch)
		s.discardBytes(done)
		if errors.Is(err, errTooEarlyToDial) {
			return false
		}
		s.reportState(err)
		if err != nil {
			return false
		}
	}
	return false
}

// sendingState is whether lines can be sent.
type sendingState uint8

const (
	neverTried sendingState = iota
	sendingWorks
	sendingFails
)

// reportState calls OnState if sending works for the first time, started to fail or works again. err is that of the
// last attempt.
func (s *Sink) reportState(err error) {
	state := sendingWorks
	if err != nil {
		state = sendingFails
	}
	if s.state == state {
		return
	}
	s.state = state
	if err != nil {
		err = fmt.Errorf("statsd: sending to %s over %s: %w; trying again every %v", s.cfg.Addr, s.cfg.Network, err,
			s.cfg.limits.retryPause)
	}
	if s.cfg.OnState != nil {
		s.cfg.OnState(err)
	}
}

// appendBatch appends the first waiting lines to b, at most one batch, without removing them.
func (s *Sink) appendBatch(b []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.waitingLines.Bytes()
	if len(next) > s.cfg.limits.batchBytes {
		next = next[:s.cfg.limits.batchBytes]
		next = next[:bytes.LastIndexByte(next, '\n')+1]
	}
	return append(b, next...)
}

// discardBytes removes the first n bytes of the waiting lines.
func (s *Sink) discardBytes(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waitingLines.Next(n)
	if s.waitingLines.Len() == 0 && s.waitingLines.Cap() > maxIdleBufferBytes {
		s.waitingLines = bytes.Buffer{}
	}
}

func (s *Sink) countDropped(lines []byte) {
	s.droppedLines.Add(uint64(bytes.Count(lines, []byte{'\n'})))
}
