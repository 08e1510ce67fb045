// Package logging has the loggers of the service, behind bounded queues in front of stdout and stderr. A reader that is
// slow or gone delays no caller and does not end the process:
//
//	callers ──Write──> queue (1 MiB, 10,000 lines) ──run──> stderr
//	                     └ full: the line is dropped and counted
//
// A part of the queue is reserved for important lines, so that a flood of ordinary lines
// does not push out the line that rules were reloaded.
package logging

import (
	"bytes"
	"fmt"
	"io"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

// queueLimit bounds the bytes and the lines that wait together.
type queueLimit struct{ bytes, lines int }

// maxLineBytes is the longest line that is written whole, in bytes with its line feed; a longer one is cut and ends in
// a mark.
const maxLineBytes = 16 << 10

// queue is an io.Writer that never blocks and never fails. Each Write is one line, with its line feed. Nothing is
// written before run.
type queue struct {
	dest                          io.Writer
	ordinaryLimit, importantLimit queueLimit    // An important line may use more of the queue than an ordinary one.
	retryPause                    time.Duration // the time between a failed write and the next attempt.
	lines                         chan []byte   // room for importantLimit.lines lines. A nil line only wakes run.
	closeRequested                chan struct{} // close closes closeRequested.
	runReturned                   chan struct{} // closed when run has returned.

	// The line that is being written counts as waiting.
	waitingLines, waitingBytes atomic.Int64
	droppedLines, failedWrites atomic.Uint64
	reportDropped              atomic.Pointer[func(dropped uint64)]
}

// Stats are counts of a queue.
type Stats struct {
	Dropped uint64 // counts lines for which the queue had no room.
	Failed  uint64 // counts writes to the destination that failed.
	Waiting int    // the number of bytes that are not written yet.
}

// newQueue returns an empty queue. to receives the lines, one in each Write, and
// may block. When it fails, the rest of the line is written again after 1 s.
func newQueue(to io.Writer) *queue {
	w := &queue{
		dest: to, ordinaryLimit: queueLimit{1 << 20, 10_000}, importantLimit: queueLimit{1<<20 + 256<<10, 11_000},
		retryPause:     time.Second,
		closeRequested: make(chan struct{}), runReturned: make(chan struct{}),
	}
	w.lines = make(chan []byte, w.importantLimit.lines)
	return w
}

// Write queues an ordinary line, or drops and counts it if there is no room.
func (w *queue) Write(line []byte) (int, error) { return w.add(line, w.ordinaryLimit) }

// important returns a writer of important lines, which have more room. They stay in order with the ordinary ones.
func (w *queue) important() io.Writer { return importantWriter{w} }

type importantWriter struct{ *queue }

func (i importantWriter) Write(line []byte) (int, error) { return i.add(line, i.importantLimit) }

func (w *queue) add(line []byte, limit queueLimit) (int, error) {
	if len(line) == 0 {
		return 0, nil
	}
	text := cutLine(line) // cutLine copies the line, because the caller uses its memory again.
	size := int64(len(text))
	lines, bytes := w.waitingLines.Add(1), w.waitingBytes.Add(size)
	if lines == 1 || lines <= int64(limit.lines) && bytes <= int64(limit.bytes) { // An empty queue accepts any line.
		select {
		case w.lines <- text:
			return len(line), nil
		default: // Nil lines fill the queue, so this line is dropped.
		}
	}
	w.waitingBytes.Add(-size)
	w.droppedLines.Add(1)
	if w.waitingLines.Add(-1) == 0 {
		select {
		case w.lines <- nil: // run has just emptied the queue and must report the dropped line.
		default:
		}
	}
	return len(line), nil
}

// cutLine copies line, without what is beyond maxLineBytes.
func cutLine(line []byte) []byte {
	if len(line) <= maxLineBytes {
		return bytes.Clone(line)
	}
	return append([]byte(cutText(string(line), maxLineBytes-1)), '\n')
}

// cutText returns text, or its start and a mark that says how many bytes are missing. The
// result has at most size bytes, or the mark alone. It does not split a character.
func cutText(text string, size int) string {
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

// onDrained sets the function that run calls when the queue is empty again after lines
// were dropped. It gets their number and may write a line.
func (w *queue) onDrained(report func(dropped uint64)) { w.reportDropped.Store(&report) }

// Stats returns the figures.
func (w *queue) Stats() Stats {
	return Stats{w.droppedLines.Load(), w.failedWrites.Load(), int(w.waitingBytes.Load())}
}

// run writes lines until close was called and the queue is empty, or until a write fails after close. It is called
// once.
func (w *queue) run() {
	defer close(w.runReturned)
	reported := uint64(0)
	for {
		dropped, report := w.droppedLines.Load(), w.reportDropped.Load()
		if report != nil && dropped > reported && w.waitingLines.Load() == 0 {
			(*report)(dropped - reported)
			reported = dropped
		}
		select {
		case line := <-w.lines:
			if !w.writeAll(line) {
				return
			}
			if line != nil {
				w.waitingBytes.Add(-int64(len(line)))
				w.waitingLines.Add(-1)
			}
		case <-w.closeRequested:
			if w.waitingLines.Load() == 0 {
				return
			}
		}
	}
}

// writeAll writes one line and retries until it succeeds. It returns false if close was called and the line could not
// be written.
func (w *queue) writeAll(line []byte) bool {
	for len(line) > 0 {
		n, _ := w.dest.Write(line) // A write that fails returns a number below len(line).
		line = line[min(max(n, 0), len(line)):]
		if len(line) == 0 {
			break
		}
		w.failedWrites.Add(1)
		select {
		case <-time.After(w.retryPause):
		case <-w.closeRequested:
			return false
		}
	}
	return true
}

// close makes run write the lines that wait and return. It waits for that until the deadline; Stats says whether some
// still wait. It leaves behind a run that hangs in a write. Call it once; lines written after it may be lost.
func (w *queue) close(deadline time.Time) {
	close(w.closeRequested)
	select {
	case <-w.runReturned:
	case <-time.After(time.Until(deadline)):
	}
}
