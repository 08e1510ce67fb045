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
	"bytes"
	"fmt"
	"io"
	"sync"
	"time"
	"unicode/utf8"
)

// queueLimit bounds the bytes and the lines that wait together.
type queueLimit struct{ bytes, lines int }

// DefaultMaxLine is the longest line that is written whole, in bytes with its line feed; a
// longer one is cut and ends in a mark.
const DefaultMaxLine = 16 << 10

// Writer is an io.Writer that never blocks and never fails. Each Write is one line,
// with its line feed. Nothing is written before Run.
type Writer struct {
	to                  io.Writer
	ordinary, important queueLimit    // of both kinds of lines together
	retry               time.Duration // the pause after a failed write
	wake                chan struct{} // holds a value once there is a line
	closing             chan struct{} // closed by Close
	ended               chan struct{} // closed when Run has returned

	mu         sync.Mutex // guards the fields below
	lines      [][]byte   // the first is being written
	stats      Stats
	unreported uint64 // lines dropped since report was called
	report     func(dropped uint64)
}

// Stats are counts of a Writer.
type Stats struct {
	Dropped uint64 // lines for which there was no room
	Failed  uint64 // writes that failed
	Waiting int    // bytes that are not written yet
}

// New returns a Writer with an empty queue. to receives the lines, one in each Write, and
// may block. When it fails, the rest of the line is written again after 1 s.
func New(to io.Writer) *Writer {
	return &Writer{
		to: to, ordinary: queueLimit{1 << 20, 10_000}, important: queueLimit{1<<20 + 256<<10, 11_000}, retry: time.Second,
		wake: make(chan struct{}, 1), closing: make(chan struct{}), ended: make(chan struct{}),
	}
}

// Write queues an ordinary line, or drops and counts it if there is no room.
func (w *Writer) Write(line []byte) (int, error) { return w.add(line, w.ordinary) }

// Important returns a writer of important lines, which have more room. They stay in order
// with the ordinary ones.
func (w *Writer) Important() io.Writer { return important{w} }

type important struct{ *Writer }

func (i important) Write(line []byte) (int, error) { return i.add(line, i.important) }

func (w *Writer) add(line []byte, limit queueLimit) (int, error) {
	if len(line) == 0 {
		return 0, nil
	}
	text := cut(line) // a copy: the caller uses line again
	w.mu.Lock()
	full := len(w.lines) >= limit.lines || w.stats.Waiting+len(text) > limit.bytes
	if full && len(w.lines) > 0 { // an empty queue accepts any line, so report can write one
		w.unreported++
		w.stats.Dropped++
		w.mu.Unlock()
		return len(line), nil
	}
	w.lines = append(w.lines, text)
	w.stats.Waiting += len(text)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // Run has not read the last signal yet
	}
	return len(line), nil
}

// cut copies line, without what is beyond DefaultMaxLine.
func cut(line []byte) []byte {
	if len(line) <= DefaultMaxLine {
		return bytes.Clone(line)
	}
	return append([]byte(Cut(string(line), DefaultMaxLine-1)), '\n')
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
	return w.stats
}

// Run writes lines until Close was called and the queue is empty, or until a write
// fails after Close. It is called once.
func (w *Writer) Run() {
	defer close(w.ended)
	for {
		line, dropped, report := w.next()
		switch {
		case line != nil:
			if !w.writeAll(line) {
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
	if w.unreported == 0 || w.report == nil {
		return nil, 0, nil
	}
	dropped, w.unreported = w.unreported, 0
	return nil, dropped, w.report
}

// remove takes the first line, which was written, out of the queue.
func (w *Writer) remove() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stats.Waiting -= len(w.lines[0])
	w.lines[0] = nil
	w.lines = w.lines[1:]
	if len(w.lines) == 0 {
		w.lines = nil // frees the memory of a long queue
	}
}

// writeAll writes one line and retries until it succeeds. It returns false if Close was called
// and the line could not be written.
func (w *Writer) writeAll(line []byte) bool {
	for {
		n, _ := w.to.Write(line) // an error shows in n
		line = line[min(max(n, 0), len(line)):]
		if len(line) == 0 {
			return true
		}
		w.mu.Lock()
		w.stats.Failed++
		w.mu.Unlock()
		select {
		case <-time.After(w.retry):
		case <-w.closing:
			return false
		}
	}
}

// Close makes Run write the lines that wait and return. It waits for that until the
// deadline, and reports whether all were written. It leaves behind a Run that hangs in a
// write. Call it once; lines written after it may be lost.
func (w *Writer) Close(deadline time.Time) bool {
	close(w.closing)
	select {
	case <-w.ended:
		return w.Stats().Waiting == 0
	case <-time.After(time.Until(deadline)):
		return false
	}
}
