// Package simulate replays a recorded stream of requests against rules. The clock follows
// the recording.
//
// A reader parses lines (read.go, line.go) ahead of the limiter, which decides on them in
// order. Each answer becomes a line of output (decision.go) and goes into the summary
// (summary.go, busiest.go).
package simulate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Config is what a run is made of.
type Config struct {
	// Rules decide; required.
	Rules *rules.Set
	// Backend keeps the counters, for this run alone; required.
	Backend backend.Backend
	// KeyPrefix is the beginning of every key in the store; the output leaves it out.
	KeyPrefix string
	// EscapeKeys and AllOrNothing are as in limiter.Config.
	EscapeKeys, AllOrNothing bool
	// Start is what durations in the input count from. It defaults to
	// DefaultStart.
	Start time.Time
	// AllowClockSteps takes lines that are earlier than those before them.
	AllowClockSteps bool
	// In is read line by line, In's Name is shown in messages; Out gets a line
	// for each. All are required.
	In   io.Reader
	Name string
	Out  io.Writer
	// Progress, if set, is called about once a second.
	Progress func(Progress)
}

// DefaultStart is a Thursday, on which all units of time but the year begin.
var DefaultStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Progress is how far a run is.
type Progress struct {
	Lines uint64
	At    time.Time // of the last one
	Took  time.Duration
}

// InputError is a line of the input that is wrong. The lines before it have been
// decided and written.
type InputError struct {
	Name string
	Line int // counted from 1, blank ones too
	What string
	Fix  string // how to fix it
}

func (e *InputError) Error() string {
	return fmt.Sprintf("%s:%d: %s; %s", e.Name, e.Line, e.What, e.Fix)
}

// ErrInterrupted says that the context of the run ended. All decisions made until then have
// been written.
var ErrInterrupted = errors.New("interrupted")

// Run decides on every line of the input, in order, and writes the decisions. Its errors
// are an InputError, ErrInterrupted, or errors of the input, the output or the store; the
// summary covers the decisions made until then.
//
// Output is flushed before waiting for input, so a program can send lines one at a time.
// When ctx ends, Run does not wait for a Read of the input that is under way.
func Run(ctx context.Context, cfg Config) (*Summary, error) {
	if cfg.Start.IsZero() {
		cfg.Start = DefaultStart
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &run{cfg: cfg, out: bufio.NewWriterSize(cfg.Out, 64<<10)}
	r.limiter = limiter.New(limiter.Config{
		Backend: cfg.Backend, KeyPrefix: cfg.KeyPrefix, EscapeKeys: cfg.EscapeKeys, AllOrNothing: cfg.AllOrNothing,
	})
	r.limiter.Use(cfg.Rules)
	r.names = ruleNames(cfg.Rules)
	r.summary = newSummary(cfg.Rules)
	r.begun = time.Now()
	r.reported = r.begun

	err := r.all(ctx, startReading(ctx, &cfg))
	if err2 := r.out.Flush(); err == nil && err2 != nil {
		err = fmt.Errorf("the output: %w", err2)
	}
	r.summary.Took = time.Since(r.begun)
	return r.summary, err
}

// run is the state of a Run.
type run struct {
	cfg     Config
	limiter *limiter.Limiter
	names   [][]byte // of rules, as JSON, by index
	answer  limiter.Answer
	line    []byte // of output
	out     *bufio.Writer
	summary *Summary

	begun, reported time.Time // when the run began, and Progress was last called
}

// all decides on all batches.
func (r *run) all(ctx context.Context, in <-chan *batch) error {
	for {
		select {
		case <-ctx.Done():
			return ErrInterrupted
		case b := <-in:
			for i := range b.lines {
				if ctx.Err() != nil {
					return ErrInterrupted
				}
				if err := r.decide(ctx, &b.lines[i]); err != nil {
					return err
				}
			}
			if b.end != nil {
				if b.end == io.EOF { //nolint:errorlint // never wrapped
					return nil
				}
				return b.end
			}
			if b.pause {
				if err := r.out.Flush(); err != nil {
					return fmt.Errorf("the output: %w", err)
				}
			}
			r.progress()
		}
	}
}

func (r *run) progress() {
	if r.cfg.Progress == nil {
		return
	}
	if now := time.Now(); now.Sub(r.reported) >= time.Second {
		r.reported = now
		r.cfg.Progress(Progress{Lines: r.summary.Lines, At: r.summary.To, Took: now.Sub(r.begun)})
	}
}

// decide decides on one line and writes the decision. It ignores the end of ctx, so that no
// decision is counted and not written.
func (r *run) decide(ctx context.Context, l *line) error {
	err := l.bad
	if err == nil {
		req := *l.request // others may be of the same text
		req.Now = l.at
		err = r.limiter.Check(context.WithoutCancel(ctx), &req, &r.answer)
	}
	switch {
	case err == nil:
		if r.line, err = r.appendDecision(r.line[:0], l.at); err != nil {
			return fmt.Errorf("%s:%d: %w", r.cfg.Name, l.number, err)
		}
		r.summary.decided(l.at, &r.answer, len(r.cfg.KeyPrefix))
	case errors.Is(err, limiter.ErrRequest):
		r.line = appendFailure(r.line[:0], l.at, err)
		r.summary.failed(l.at)
	default:
		return fmt.Errorf("%s:%d: %w", r.cfg.Name, l.number, err)
	}
	if _, err := r.out.Write(r.line); err != nil {
		return fmt.Errorf("the output: %w", err)
	}
	return nil
}
