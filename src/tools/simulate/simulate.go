// Package simulate replays a recorded stream of requests against rules, with a
// clock that goes by the recording.
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
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Config is what a run is made of.
type Config struct {
	// Rules decide; required.
	Rules *rules.Set
	// Backend keeps the counters; required. Nobody else may use it.
	Backend backend.Backend
	// KeyPrefix stands in front of every key in the store, not in the output.
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
	// Progress, if set, is told how far the run is, about once a second.
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
	Mend string // how to mend it
}

func (e *InputError) Error() string {
	return fmt.Sprintf("%s:%d: %s; %s", e.Name, e.Line, e.What, e.Mend)
}

// ErrInterrupted is a run that ended because its context did. Everything that
// was decided has been written.
var ErrInterrupted = errors.New("interrupted")

// Run decides on every line of the input, in order, and writes what came of it.
// Its errors are an InputError, ErrInterrupted, or trouble with the input, the
// output or the store; the summary is of what was decided until then.
//
// Output is flushed before the input is waited for, so Run can be asked line by
// line. A Read of the input that is under way when ctx ends is left behind:
// nothing but the input can end it.
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
	r.told = r.begun

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
	json    rls.JSONWriter
	names   [][]byte // of rules, as JSON, by index
	answer  limiter.Answer
	line    []byte // of output
	out     *bufio.Writer
	summary *Summary

	begun, told time.Time // Progress was told last
}

// all decides on all batches.
func (r *run) all(ctx context.Context, in *reading) error {
	for {
		select {
		case <-ctx.Done():
			return ErrInterrupted
		case b := <-in.batches:
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
			in.free <- b
			r.progress()
		}
	}
}

func (r *run) progress() {
	if r.cfg.Progress == nil {
		return
	}
	if now := time.Now(); now.Sub(r.told) >= time.Second {
		r.told = now
		r.cfg.Progress(Progress{Lines: r.summary.Lines, At: r.summary.To, Took: now.Sub(r.begun)})
	}
}

// decide decides on one line and writes what came of it. A decision that has
// begun is brought to its end, so that none is counted and not written.
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
