// Package logging puts a bounded queue in front of stdout or stderr. A reader that is
// slow or gone delays no caller and does not end the process:
//
//	callers ──Write──> queue (1 MiB, 10,000 lines) ──Run──> stderr
//	                     └ full: the line is dropped and counted
//
// A part of the queue is reserved for important lines, so that a flood of ordinary lines
// does not push out the line that rules were reloaded.
package logging

import (
	"cmp"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// Config bounds a Writer.
type Config struct {
	// To receives the lines, one in each Write. It may block. When it fails, the rest
	// of the line is written again after RetryInterval.
	To io.Writer
	// MaxBytes and MaxLines bound the lines that wait. Default to 1 MiB and 10,000.
	MaxBytes, MaxLines int
	// ReservedBytes and ReservedLines are what important lines may take beyond that.
	// Default to 256 KiB and 1,000.
	ReservedBytes, ReservedLines int
	// MaxLine is the longest line in bytes, its line feed included; a longer one is cut
	// and ends in a mark. Defaults to 16 KiB.
	MaxLine int
	// RetryInterval is the pause after a failed write. Defaults to 1 s.
	RetryInterval time.Duration
}

// DefaultMaxLine is the longest line that is written whole, in bytes.
const DefaultMaxLine = 16 << 10

// Writer is an io.Writer that never blocks and never fails. Each Write is one line,
// with its line feed. Nothing is written before Run.
type Writer struct {
	cfg       Config
	dropped   atomic.Uint64
	failed    atomic.Uint64
	wake      chan struct{} // holds a value once there is a line
	closing   chan struct{} // closed by Close
	ended     chan struct{} // closed when Run has returned
	important important

	mu     sync.Mutex // guards what follows
	lines  [][]byte   // the first is being written
	bytes  int        // of lines
	unsaid uint64     // lines dropped since report was called
	report func(dropped uint64)
}

// Stats are the figures of a Writer.
type Stats struct {
	Dropped uint64 // lines for which there was no room
	Failed  uint64 // writes that failed
	Waiting int    // bytes that are not written yet
}

// New returns a Writer with an empty queue.
func New(cfg Config) *Writer {
	cfg.MaxBytes = cmp.Or(cfg.MaxBytes, 1<<20)
	cfg.MaxLines = cmp.Or(cfg.MaxLines, 10_000)
	cfg.ReservedBytes = cmp.Or(cfg.ReservedBytes, 256<<10)
	cfg.ReservedLines = cmp.Or(cfg.ReservedLines, 1000)
	cfg.MaxLine = cmp.Or(cfg.MaxLine, DefaultMaxLine)
	cfg.RetryInterval = cmp.Or(cfg.RetryInterval, time.Second)
	w := &Writer{cfg: cfg, wake: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{})}
	w.important.to = w
	return w
}

// Write queues an ordinary line, or drops and counts it if there is no room.
func (w *Writer) Write(line []byte) (int, error) {
	w.add(line, 0, 0)
	return len(line), nil
}

// Important returns a writer of important lines, which may use the reserve. They
// stay in order with the ordinary ones.
func (w *Writer) Important() io.Writer { return &w.important }

type important struct{ to *Writer }

func (i *important) Write(line []byte) (int, error) {
	i.to.add(line, i.to.cfg.ReservedLines, i.to.cfg.ReservedBytes)
	return len(line), nil
}

func (w *Writer) add(line []byte, moreLines, moreBytes int) {
	if len(line) == 0 {
		return
	}
	text := w.cut(line) // a copy: the caller uses line again
	w.mu.Lock()
	full := len(w.lines) >= w.cfg.MaxLines+moreLines || w.bytes+len(text) > w.cfg.MaxBytes+moreBytes
	if full && len(w.lines) > 0 { // one line always has room, so the report has
		w.unsaid++
		w.mu.Unlock()
		w.dropped.Add(1)
		return
	}
	w.lines = append(w.lines, text)
	w.bytes += len(text)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // Run has not read the last signal yet
	}
}

// cut copies line, without what is beyond MaxLine.
func (w *Writer) cut(line []byte) []byte {
	if len(line) <= w.cfg.MaxLine {
		return append([]byte(nil), line...)
	}
	return append([]byte(Cut(string(line), w.cfg.MaxLine-1)), '\n')
}

// Cut returns text, or its start and a mark that says how many bytes are missing. The
// result has at most size bytes, or the mark alone. It does not split a character.
func Cut(text string, size int) string {
	if len(text) <= size {
		return text
	}
	const markSize = len("… (9223372036854775807 bytes cut)")
	keep := max(0, size-markSize)
	for keep > 0 && !utf8.RuneStart(text[keep]) {
		keep--
	}
	return fmt.Sprintf("%s… (%d bytes cut)", text[:keep], len(text)-keep)
}

// OnDrained sets the function that Run calls, without locks, when the queue is empty
// again after lines were dropped. It gets their number and may write a line.
func (w *Writer) OnDrained(report func(dropped uint64)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.report = report
}

// Stats returns the figures.
func (w *Writer) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return Stats{Dropped: w.dropped.Load(), Failed: w.failed.Load(), Waiting: w.bytes}
}

// Run writes lines until Close was called and the queue is empty, or until a write
// fails after Close. It is called once.
func (w *Writer) Run() {
	defer close(w.ended)
	for {
		line, dropped, report := w.next()
		switch {
		case line != nil:
			if !w.put(line) {
				return
			}
			w.remove()
		case report != nil:
			report(dropped)
		default:
			select {
			case <-w.wake:
			case <-w.closing:
				if w.Stats().Waiting == 0 {
					return
				}
			}
		}
	}
}

// next returns the first line. If there is none but lines were dropped, it returns their
// number and the function that reports it.
func (w *Writer) next() (line []byte, dropped uint64, report func(uint64)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) > 0 {
		return w.lines[0], 0, nil
	}
	if w.unsaid == 0 || w.report == nil {
		return nil, 0, nil
	}
	dropped, w.unsaid = w.unsaid, 0
	return nil, dropped, w.report
}

// remove takes the first line, which was written, out of the queue.
func (w *Writer) remove() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes -= len(w.lines[0])
	w.lines[0] = nil
	w.lines = w.lines[1:]
	if len(w.lines) == 0 {
		w.lines = nil // frees the memory of a long queue
	}
}

// put writes one line and retries until it succeeds. It returns false if Close was called
// and the line could not be written.
func (w *Writer) put(line []byte) bool {
	for {
		n, _ := w.cfg.To.Write(line) // an error shows in n
		line = line[min(max(n, 0), len(line)):]
		if len(line) == 0 {
			return true
		}
		w.failed.Add(1)
		retry := time.NewTimer(w.cfg.RetryInterval)
		select {
		case <-retry.C:
		case <-w.closing:
			retry.Stop()
			return false
		}
	}
}

// Close makes Run write the lines that wait and return. It waits for that until the
// deadline, and reports whether all were written. It leaves behind a Run that hangs in a
// write. Call it once; lines written after it may be lost.
func (w *Writer) Close(deadline time.Time) bool {
	close(w.closing)
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case <-w.ended:
		return w.Stats().Waiting == 0
	case <-t.C:
		return false
	}
}
