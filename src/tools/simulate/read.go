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

// byteOrderMark is written by some editors and shells, such as PowerShell, at the
// beginning of a UTF-8 file. It is not part of the first line.
var byteOrderMark = []byte("\xef\xbb\xbf")

// batch is some lines of the input, read ahead of the limiter.
type batch struct {
	lines []line
	// pause says that the next line has not arrived, so output is flushed.
	pause bool
	// end is set in the last batch: io.EOF, or an error of the input.
	end error
}

// batchLines and batchBytes bound a batch. A few batches are read ahead, so that reading
// and deciding need not wait for each other.
const (
	batchLines = 256
	batchBytes = 1 << 20
	readAhead  = 2 // batches
)

// startReading parses the input in a goroutine that ends with ctx or after the last batch,
// but not while it waits in a Read.
func startReading(ctx context.Context, cfg *Config) <-chan *batch {
	out := make(chan *batch, readAhead)
	l := &lines{
		in: bufio.NewReaderSize(cfg.In, MaxLine+1), name: cfg.Name,
		parser: parser{start: cfg.Start.UTC(), allowSteps: cfg.AllowClockSteps},
	}
	go func() {
		for end := false; !end; {
			b := l.next()
			end = b.end != nil
			select {
			case out <- b:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}

// lines reads the input.
type lines struct {
	in     *bufio.Reader
	name   string
	number int
	parser parser
}

// next returns the next lines.
func (l *lines) next() (b *batch) {
	b = new(batch)
	for size := 0; len(b.lines) < batchLines && size < batchBytes; {
		text, err := l.in.ReadSlice('\n')
		l.number++
		size += len(text)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			b.end = l.wrong(wrong("split the request, or leave it out", "the line is longer than %d MiB", MaxLine>>20))
			return b
		case err != nil && !errors.Is(err, io.EOF):
			b.end = fmt.Errorf("%s:%d: %w", l.name, l.number, err)
			return b
		}
		if l.number == 1 {
			text = bytes.TrimPrefix(text, byteOrderMark)
		}
		if text := bytes.Trim(text, " \t\r\n"); len(text) > 0 {
			parsed, problem := l.parser.parse(text)
			if problem != nil {
				b.end = l.wrong(problem)
				return b
			}
			parsed.number = l.number
			b.lines = append(b.lines, parsed)
		}
		if err != nil {
			b.end = io.EOF
			return b
		}
		if ready, _ := l.in.Peek(l.in.Buffered()); bytes.IndexByte(ready, '\n') < 0 {
			b.pause = true
			return b
		}
	}
	return b
}

func (l *lines) wrong(p *problem) error {
	return &InputError{Name: l.name, Line: l.number, What: p.what, Fix: p.fix}
}
