// Package simulate replays a recorded stream of requests against rules. The clock follows the recording.
//
// A reader parses lines (read.go, line.go) ahead of the limiter, which decides on them in order. Each answer becomes a
// line of output (decision.go) and is counted in the summary (summary.go, busiest.go).
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

// Config configures a Run.
type Config struct {
	// Rules are required.
	Rules *rules.Set
	// Backend stores the counters of this run alone. Required.
	Backend backend.Backend
	// KeyPrefix begins every key in the store. The output omits it.
	KeyPrefix string
	// EscapeKeys and AllOrNothing are as in limiter.Config.
	EscapeKeys, AllOrNothing bool
	// Start is the instant from which durations in the input count. Defaults to DefaultStart.
	Start time.Time
	// AllowClockSteps accepts lines whose time is before that of an earlier line.
	AllowClockSteps bool
	// MaxMemoryBytes caps the memory of counters in this process.
	MaxMemoryBytes int64
	// In has one request per line. Required.
	In io.Reader
	// Name is the name of In in error messages. Required.
	Name string
	// Out receives one decision per line of In. Required.
	Out io.Writer
	// Progress is called about once a second. Nil: nothing is called.
	Progress func(Progress)
}

func (cfg *Config) setDefaults() {
	if cfg.Start.IsZero() {
		cfg.Start = DefaultStart
	}
}

// DefaultStart is an instant at which all windows but those of weeks begin.
var DefaultStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Progress tells how much of the input a run has decided.
type Progress struct {
	Lines   uint64
	Virtual time.Time     // the virtual time of the last line.
	Elapsed time.Duration // the real time since the run started.
}

// ErrInterrupted is the error of a run whose context ended. All decisions made until then have been written.
var ErrInterrupted = errors.New("interrupted")

// Run decides on every line of the input, in order, and writes the decisions. The error is an InputError,
// ErrInterrupted, or an error of the input, the output or the store. The summary covers the decisions made until then.
//
// Run flushes the output before it waits for input, so a program can send lines one at a time. When ctx ends, Run does
// not wait for a Read of the input that is under way.
func Run(ctx context.Context, cfg Config) (*Summary, error) {
	cfg.setDefaults()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	now := time.Now()
	r := &run{
		cfg: cfg, out: bufio.NewWriterSize(cfg.Out, 64<<10), ruleNames: ruleNamesAsJSON(cfg.Rules),
		summary: newSummary(cfg.Rules),
		limiter: limiter.New(limiter.Config{
			Backend: cfg.Backend, KeyPrefix: cfg.KeyPrefix, EscapeKeys: cfg.EscapeKeys, ChargeAllOrNothing: cfg.AllOrNothing,
		}),
		startedAt: now, progressAt: now,
	}
	r.limiter.UseRules(cfg.Rules)

	err := r.decideAll(ctx, startReading(ctx, &cfg))
	if flushErr := r.flush(); err == nil {
		err = flushErr
	}
	r.summary.Elapsed = time.Since(r.startedAt)
	return r.summary, err
}

// run is the state of a Run.
type run struct {
	cfg       Config
	limiter   *limiter.Limiter
	ruleNames [][]byte       // the result of ruleNamesAsJSON.
	answer    limiter.Answer // reused for each request.
	decision  []byte         // the current line of output.
	out       *bufio.Writer
	summary   *Summary

	startedAt  time.Time
	progressAt time.Time // when Config.Progress was last called.
}

func (r *run) decideAll(ctx context.Context, batches <-chan *batch) error {
	for {
		select {
		case <-ctx.Done():
			return ErrInterrupted
		case b := <-batches:
			for i := range b.lines {
				if ctx.Err() != nil {
					return ErrInterrupted
				}
				if err := r.decide(ctx, &b.lines[i]); err != nil {
					return err
				}
			}
			switch {
			case b.end == io.EOF: //nolint:errorlint // never wrapped
				return nil
			case b.end != nil:
				return b.end
			}
			if b.mustFlush {
				if err := r.flush(); err != nil {
					return err
				}
			}
			r.reportProgress()
		}
	}
}

// flush writes the buffered output.
func (r *run) flush() error {
	if err := r.out.Flush(); err != nil {
		return fmt.Errorf("the output: %w", err)
	}
	return nil
}

func (r *run) reportProgress() {
	now := time.Now()
	if r.cfg.Progress == nil || now.Sub(r.progressAt) < time.Second {
		return
	}
	r.progressAt = now
	r.cfg.Progress(Progress{Lines: r.summary.Lines, Virtual: r.summary.Last, Elapsed: now.Sub(r.startedAt)})
}

// AnswerOf returns the answer to a request that is over its limits, or not, or fails with err.
func AnswerOf(over bool, err error) string {
	switch {
	case err != nil:
		return AnswerError
	case over:
		return AnswerOverLimit
	}
	return AnswerOK
}

// decide decides on one line and writes the decision. It ignores the end of ctx, so that each counted decision is also
// written.
func (r *run) decide(ctx context.Context, l *line) error {
	if l.lost > 0 {
		r.summary.Lost += l.lost
		return nil
	}
	err := l.refusal
	if err == nil {
		req := *l.request // Lines with the same text share l.request, so the time is set in a copy.
		req.Now = l.at
		err = r.limiter.Check(context.WithoutCancel(ctx), &req, &r.answer)
	}
	switch {
	case err == nil:
		if r.decision, err = r.appendDecision(r.decision[:0], l.at); err != nil {
			return fmt.Errorf("%s:%d: %w", r.cfg.Name, l.number, err)
		}
		r.summary.addDecision(l.at, &r.answer, len(r.cfg.KeyPrefix))
		r.summary.compareAnswer(l, AnswerOf(r.answer.Over, nil))
	case errors.Is(err, limiter.ErrInvalidRequest):
		r.decision = appendRefusal(r.decision[:0], l.at, err)
		r.summary.addRefusal(l.at)
		r.summary.compareAnswer(l, AnswerOf(false, err))
	default:
		return fmt.Errorf("%s:%d: %w", r.cfg.Name, l.number, err)
	}
	if _, err := r.out.Write(r.decision); err != nil {
		return fmt.Errorf("the output: %w", err)
	}
	return nil
}
