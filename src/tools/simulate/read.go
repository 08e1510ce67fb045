package simulate

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
)

// MaxLine is the longest line of input in bytes, without its newline.
const MaxLine = 1 << 20

// byteOrderMark begins UTF-8 files of some editors and shells, such as PowerShell. It is not part of the first line.
var byteOrderMark = []byte("\xef\xbb\xbf")

// batch is a group of lines that were read before the limiter needs them.
type batch struct {
	lines []Line
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
		parser: parser{start: cmp.Or(cfg.Start, DefaultStart).UTC(), allowClockSteps: cfg.AllowClockSteps},
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
			l.Number = r.number
			b.lines = append(b.lines, l)
		}
		if err != nil {
			return io.EOF
		}
		if arrived, _ := r.in.Peek(r.in.Buffered()); bytes.IndexByte(arrived, '\n') < 0 {
			if n := len(b.lines); n > 0 {
				b.lines[n-1].mustFlush = true
			}
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

// Lines yields the lines of cfg.In in order, until the end of the input or of ctx. Of cfg it uses In, Name, Start and
// AllowClockSteps. Its error is an InputError, ErrInterrupted or an error of the input; nothing follows an error.
//
// When ctx ends, Lines does not wait for a Read of the input that is under way.
func Lines(ctx context.Context, cfg Config) iter.Seq2[*Line, error] {
	return func(yield func(*Line, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		for batches := startReading(ctx, &cfg); ; {
			b := new(batch)
			select {
			case <-ctx.Done():
			case b = <-batches:
			}
			for i := range b.lines {
				if ctx.Err() != nil {
					break
				}
				if !yield(&b.lines[i], nil) {
					return
				}
			}
			switch {
			case ctx.Err() != nil:
				yield(nil, ErrInterrupted)
				return
			case b.end == io.EOF: //nolint:errorlint // never wrapped
				return
			case b.end != nil:
				yield(nil, b.end)
				return
			}
		}
	}
}
