package simulate

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
)

// MaxLine is the longest line of input, in bytes without its end.
const MaxLine = 1 << 20

// byteOrderMark is what some editors and shells, PowerShell's among them, begin
// a file of UTF-8 with. It is no part of the first line.
var byteOrderMark = []byte("\xef\xbb\xbf")

// batch is some lines of the input, read ahead of the limiter.
type batch struct {
	lines []line
	// pause says that what comes next is not there yet.
	pause bool
	// end is why this is the last batch: io.EOF, or what is wrong.
	end error
}

// A batch is full with so many lines or bytes. There are a few of them, so that
// reading and deciding need not wait for each other.
const (
	batchLines = 256
	batchBytes = 1 << 20
	batches    = 4
)

// reading is where batches come from, and where they go for the next lines.
type reading struct{ batches, free chan *batch }

// startReading parses the input in a goroutine that ends with ctx, or when the
// last batch has been taken, but not while it waits in a Read.
func startReading(ctx context.Context, cfg *Config) *reading {
	in := &reading{make(chan *batch), make(chan *batch, batches)}
	for range batches {
		in.free <- new(batch)
	}
	l := &lines{
		in: bufio.NewReaderSize(cfg.In, MaxLine+1), name: cfg.Name,
		parser: parser{start: cfg.Start.UTC(), allowSteps: cfg.AllowClockSteps},
	}
	go func() {
		for {
			var b *batch
			select {
			case b = <-in.free:
			case <-ctx.Done():
				return
			}
			l.fill(b)
			select {
			case in.batches <- b:
			case <-ctx.Done():
				return
			}
			if b.end != nil {
				return
			}
		}
	}()
	return in
}

// lines reads the input.
type lines struct {
	in     *bufio.Reader
	name   string
	number int
	parser parser
}

// fill makes b the next lines.
func (l *lines) fill(b *batch) {
	*b = batch{lines: b.lines[:0]}
	for size := 0; len(b.lines) < batchLines && size < batchBytes; {
		text, err := l.in.ReadSlice('\n')
		l.number++
		size += len(text)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			b.end = l.wrong(wrong("split the request, or leave it out", "the line is longer than %d MiB", MaxLine>>20))
			return
		case err != nil && !errors.Is(err, io.EOF):
			b.end = fmt.Errorf("%s:%d: %w", l.name, l.number, err)
			return
		}
		if l.number == 1 {
			text = bytes.TrimPrefix(text, byteOrderMark)
		}
		if text := bytes.Trim(text, " \t\r\n"); len(text) > 0 {
			parsed, problem := l.parser.parse(text)
			if problem != nil {
				b.end = l.wrong(problem)
				return
			}
			parsed.number = l.number
			b.lines = append(b.lines, parsed)
		}
		if err != nil {
			b.end = io.EOF
			return
		}
		if ready, _ := l.in.Peek(l.in.Buffered()); bytes.IndexByte(ready, '\n') < 0 {
			b.pause = true
			return
		}
	}
}

func (l *lines) wrong(p *problem) error {
	return &InputError{Name: l.name, Line: l.number, What: p.what, Fix: p.fix}
}
