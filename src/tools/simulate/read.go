package simulate

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"time"

	"ratelimit/src/limiter"
)

// MaxLine is the longest line of input in bytes, without its newline.
const MaxLine = 1 << 20

// byteOrderMark begins UTF-8 files of some editors and shells, such as PowerShell. It is not part of the first line.
var byteOrderMark = []byte("\xef\xbb\xbf")

// batch is a group of lines that were read before the limiter needs them.
type batch struct {
	lines []line
	// mustFlush is true if the next line has not arrived: the sender may wait for the output of these lines.
	mustFlush bool
	// end is set in the last batch only: io.EOF, or an error of the input.
	end error
}

// Batches are read ahead, so that parsing and deciding need not wait for each other.
const (
	maxBatchLines   = 256
	maxBatchBytes   = 1 << 20
	maxBatchesAhead = 2
)

// startReading parses the input in a goroutine. The goroutine ends after the last batch; if ctx ends, it ends when the
// Read that is under way returns.
func startReading(ctx context.Context, cfg *Config) <-chan *batch {
	batches := make(chan *batch, maxBatchesAhead)
	r := &lineReader{
		in: bufio.NewReaderSize(cfg.In, MaxLine+1), name: cfg.Name,
		parser: parser{start: cfg.Start.UTC(), allowClockSteps: cfg.AllowClockSteps},
	}
	go func() {
		for ended := false; !ended; {
			b := new(batch)
			b.end = r.fill(b)
			ended = b.end != nil
			select {
			case batches <- b:
			case <-ctx.Done():
				return
			}
		}
	}()
	return batches
}

// lineReader reads the input.
type lineReader struct {
	in     *bufio.Reader
	name   string // the name of the input in error messages.
	number int    // of the line that was read last.
	parser parser
}

// fill reads lines into b until b is full or the next line has not arrived. Its error is io.EOF after the last line.
func (r *lineReader) fill(b *batch) error {
	for size := 0; len(b.lines) < maxBatchLines && size < maxBatchBytes; {
		text, err := r.in.ReadSlice('\n')
		r.number++
		size += len(text)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			return r.located(invalidLine("split the request, or leave it out", "the line is longer than %d MiB", MaxLine>>20))
		case err != nil && !errors.Is(err, io.EOF):
			return fmt.Errorf("%s:%d: %w", r.name, r.number, err)
		}
		if r.number == 1 {
			text = bytes.TrimPrefix(text, byteOrderMark)
		}
		if text := bytes.Trim(text, " \t\r\n"); len(text) > 0 {
			l, invalid := r.parser.parse(text)
			if invalid != nil {
				return r.located(invalid)
			}
			l.number = r.number
			b.lines = append(b.lines, l)
		}
		if err != nil {
			return io.EOF
		}
		if arrived, _ := r.in.Peek(r.in.Buffered()); bytes.IndexByte(arrived, '\n') < 0 {
			b.mustFlush = true
			return nil
		}
	}
	return nil
}

// located adds the input's name and the number of the current line to e.
func (r *lineReader) located(e *InputError) error {
	e.Name, e.Line = r.name, r.number
	return e
}

// RecordedRequest is a line of a recording.
type RecordedRequest struct {
	Line int       // the line's number, from 1.
	At   time.Time // in UTC.
	// Request is shared by lines with the same text; Now is not set. It is nil if Refusal is set.
	Request *limiter.Request
	// Refusal is the error with which the service would refuse the request.
	Refusal error
	Answer  string // the recorded answer, one of the constants Answer…; empty if the line has none.
}

// Requests yields the requests of cfg.In in order, until the end of the input or of ctx. Of cfg it uses In, Name, Start
// and AllowClockSteps. Its errors are those of Run; nothing follows an error.
func Requests(ctx context.Context, cfg Config) iter.Seq2[RecordedRequest, error] {
	cfg.setDefaults()
	return func(yield func(RecordedRequest, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for batches := startReading(ctx, &cfg); ; {
			select {
			case <-ctx.Done():
				yield(RecordedRequest{}, ErrInterrupted)
				return
			case b := <-batches:
				for _, l := range b.lines {
					if l.lost == 0 && !yield(RecordedRequest{l.number, l.at, l.request, l.refusal, l.answer}, nil) {
						return
					}
				}
				if b.end != nil && !errors.Is(b.end, io.EOF) {
					yield(RecordedRequest{}, b.end)
				}
				if b.end != nil {
					return
				}
			}
		}
	}
}
