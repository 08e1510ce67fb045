package record

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/operator/output"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

const (
	// maxLineBytes is more than the longest line: the 64 KiB of a request can take six times as much in JSON.
	maxLineBytes = 1 << 20
	// lastLinesTime is how long lines are received after ctx ends. The service sends a line up to 0.2 s after the request.
	lastLinesTime = 300 * time.Millisecond
)

// recording is a recording that is being received.
type recording struct {
	opt    *options
	client *reach.Client
	out    io.Writer
	errOut io.Writer
	create func() (io.WriteCloser, error) // makes the file to write instead of out; nil: there is none.

	started        time.Time
	requests, lost uint64
	bytes          int64
	end            string // the value of admin.RecordEndTrailer.
}

// run records until the service ends the recording, or until shortly after ctx ends, which is no error.
func (r *recording) run(ctx context.Context) error {
	query := url.Values{
		"sample": {r.opt.sample}, "for": {r.opt.duration.String()}, "max_bytes": {strconv.FormatInt(r.opt.maxBytes, 10)},
	}
	if r.opt.byKey != "" {
		query.Set("by", r.opt.byKey)
	}
	if r.opt.domain != "" {
		query.Set("domain", r.opt.domain)
	}
	receiving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastLinesTime, stop) })()
	r.started = time.Now()
	show := command.ProgressLine(r.errOut)
	err := r.client.Open(receiving, "/api/record", query, "application/x-ndjson", func(resp *http.Response) error {
		return r.receive(resp, func() { show("%s", r) })
	})
	show("")
	interrupted := ctx.Err() != nil
	if err == nil || interrupted && r.end == "" && !errors.As(err, new(*outputError)) {
		fmt.Fprintf(r.errOut, "%s%s\n", r, r.endText(interrupted))
		return nil
	}
	if r.requests > 0 {
		fmt.Fprintln(r.errOut, r)
	}
	return err
}

// outputError is a failure of writing the recording.
type outputError struct{ err error }

func (e *outputError) Error() string { return "the recording cannot be written: " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }

// receive writes the lines of an answer, and calls progress now and then.
func (r *recording) receive(resp *http.Response, progress func()) error {
	if r.create == nil {
		return r.copyLines(resp, r.out, progress)
	}
	file, err := r.create()
	if err != nil {
		return &outputError{err}
	}
	err = r.copyLines(resp, file, progress)
	if failed := file.Close(); failed != nil && err == nil {
		err = &outputError{failed}
	}
	return err
}

// copyLines writes the lines of an answer to out.
func (r *recording) copyLines(resp *http.Response, out io.Writer, progress func()) error {
	lines := bufio.NewReaderSize(resp.Body, maxLineBytes)
	buffered := bufio.NewWriterSize(out, 64<<10)
	for {
		line, err := lines.ReadSlice('\n')
		if err == nil && len(line) > 1 { // An empty line says that the service is there.
			r.count(line)
			if _, err := buffered.Write(line); err != nil {
				return &outputError{err}
			}
		}
		if err != nil || lines.Buffered() == 0 { // The next line may take long.
			if err := buffered.Flush(); err != nil {
				return &outputError{err}
			}
		}
		progress()
		if errors.Is(err, io.EOF) && len(line) == 0 {
			r.end = resp.Trailer.Get(admin.RecordEndTrailer)
			return nil
		}
		if err != nil {
			return &reach.Error{
				Temporary: true,
				Err:       fmt.Errorf("%s: the recording broke off: %w; its whole lines are written", r.client.Address, err),
			}
		}
	}
}

// lostKey follows the time of a line that says how many requests are missing.
var lostKey = []byte(`","lost":`)

// count counts a line.
func (r *recording) count(line []byte) {
	r.bytes += int64(len(line))
	if !bytes.Contains(line[:min(len(line), 64)], lostKey) {
		r.requests++
		return
	}
	var missing struct{ Lost uint64 }
	_ = json.Unmarshal(line, &missing) // The service writes no other such lines.
	r.lost += missing.Lost
}

// String says what is recorded so far.
func (r *recording) String() string {
	took := time.Since(r.started).Round(100 * time.Millisecond)
	text := fmt.Sprintf("%s in %v, %d bytes", output.Plural(r.requests, "request"), took, r.bytes)
	if r.lost > 0 {
		text += fmt.Sprintf("; %d more were lost, so answers of a replay may differ", r.lost)
	}
	return text
}

// endText returns why the recording ended, if not after --for.
func (r *recording) endText(interrupted bool) string {
	switch {
	case interrupted:
		return "; ended early"
	case r.end == admin.RecordEndMaxBytes:
		return "; ended by --max-bytes"
	}
	return ""
}
