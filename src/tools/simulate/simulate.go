// Package simulate replays a recorded stream of requests against rules. The clock follows the recording.
//
// A reader parses lines (read.go, line.go) ahead of the limiter, which decides on them in order. Each answer becomes a
// line of output and is counted in the summary (summary.go, busiest.go).
package simulate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
	"ratelimit/src/rules"
)

// Config configures a Run.
type Config struct {
	Rules *rules.Set
	// LimitsFile has limits that were changed at run time; see WithLimits. It is empty for none.
	LimitsFile string
	Backend    backend.Backend // stores the counters of this run alone
	KeyPrefix  string          // begins every key in the store; the output omits it
	// EscapeKeys and AllOrNothing are as in limiter.Config.
	EscapeKeys, AllOrNothing bool
	Start                    time.Time // from which durations in the input count; zero: DefaultStart
	AllowClockSteps          bool      // accepts lines whose time is before that of an earlier line
	MaxMemoryBytes           int64     // caps the memory of counters in this process

	In       io.Reader      // has one request per line
	Name     string         // the name of In in error messages
	Out      io.Writer      // receives one decision per line of In
	Progress func(*Summary) // is called now and then with the summary so far; may be nil
}

// DefaultStart is an instant at which all windows but those of weeks begin.
var DefaultStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// ErrInterrupted is the error of a run whose context ended. All decisions made until then have been written.
var ErrInterrupted = errors.New("interrupted")

// Run decides on every line of the input, in order, and writes the decisions. The error is one of Lines, or of the
// output or the store. The summary covers the decisions made until then.
//
// Run flushes the output before it waits for input, so a program can send lines one at a time.
func Run(ctx context.Context, cfg Config) (*Summary, error) {
	r := &run{
		cfg: cfg, out: bufio.NewWriterSize(cfg.Out, 64<<10), ruleNames: ruleNamesAsJSON(cfg.Rules),
		summary: newSummary(cfg.Rules),
		limiter: limiter.New(limiter.Config{
			Backend: cfg.Backend, KeyPrefix: cfg.KeyPrefix, EscapeKeys: cfg.EscapeKeys, ChargeAllOrNothing: cfg.AllOrNothing,
		}),
		startedAt: time.Now(),
	}
	r.limiter.UseRules(cfg.Rules)
	err := r.decideAll(ctx)
	if flushErr := r.flush(); err == nil {
		err = flushErr
	}
	return r.summary, err
}

type run struct {
	cfg       Config
	limiter   *limiter.Limiter
	ruleNames [][]byte       // the result of ruleNamesAsJSON.
	answer    limiter.Answer // reused for each request.
	decision  []byte         // the current line of output.
	out       *bufio.Writer
	summary   *Summary
	startedAt time.Time
}

// progressLines is after how many lines Progress is called.
const progressLines = 256

func (r *run) decideAll(ctx context.Context) error {
	for l, err := range Lines(ctx, r.cfg) {
		if err == nil {
			err = r.decide(ctx, l)
		}
		if err == nil && l.mustFlush {
			err = r.flush()
		}
		if err != nil {
			return err
		}
		if r.summary.Lines%progressLines == 0 && r.cfg.Progress != nil {
			r.summary.Elapsed = time.Since(r.startedAt)
			r.cfg.Progress(r.summary)
		}
	}
	return nil
}

// flush writes the buffered output.
func (r *run) flush() error {
	r.summary.Elapsed = time.Since(r.startedAt)
	if err := r.out.Flush(); err != nil {
		return outputError(err)
	}
	return nil
}

func outputError(err error) error { return fmt.Errorf("the output: %w", err) }

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

// decide decides on one line and writes the decision, also when ctx has ended: what is counted is written.
func (r *run) decide(ctx context.Context, l *Line) error {
	if l.Lost > 0 {
		r.summary.Lost += l.Lost
		return nil
	}
	err := l.Refusal
	if err == nil {
		req := *l.Request // Lines with the same text share l.Request, so the time is set in a copy.
		req.Now = l.At
		err = r.limiter.Check(context.WithoutCancel(ctx), &req, &r.answer)
	}
	answer := AnswerOf(r.answer.Over, err)
	switch {
	case err == nil:
		r.summary.addDecision(l.At, &r.answer, len(r.cfg.KeyPrefix))
		r.decision, err = r.appendDecision(r.decision[:0], l.At)
	case errors.Is(err, limiter.ErrInvalidRequest):
		r.summary.addRefusal(l.At)
		r.decision, err = appendRefusal(r.decision[:0], l.At, err), nil
	}
	if err != nil {
		return fmt.Errorf("%s:%d: %w", r.cfg.Name, l.Number, err)
	}
	r.summary.compareAnswer(l, answer)
	if _, err := r.out.Write(r.decision); err != nil {
		return outputError(err)
	}
	return nil
}

// ruleNamesAsJSON returns the names of the rules without the domain, by their index, as quoted JSON strings.
func ruleNamesAsJSON(set *rules.Set) [][]byte {
	names := make([][]byte, len(set.Rules()))
	for i, r := range set.Rules() {
		names[i] = rls.AppendJSONString(nil, strings.TrimPrefix(r.FullName, r.Domain+"."))
	}
	return names
}

// appendDecision appends the line of output for the answer to a request.
func (r *run) appendDecision(dst []byte, at time.Time) ([]byte, error) {
	dst = appendLineStart(dst, at)
	dst = append(dst, `,"response":`...)
	dst, err := rls.AppendJSONResponse(dst, &r.answer)
	if err != nil {
		return nil, err
	}
	dst = append(dst, `,"verdicts":[`...)
	for i := range r.answer.Statuses {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(dst, '[')
		charges := r.answer.Statuses[i].Charges
		for j := range charges {
			if j > 0 {
				dst = append(dst, ',')
			}
			dst = r.appendVerdict(dst, &charges[j])
		}
		dst = append(dst, ']')
	}
	return append(dst, "]}\n"...), nil
}

func (r *run) appendVerdict(dst []byte, c *limiter.Charge) []byte {
	rule, retryAfter := []byte(`""`), "null"
	if c.Rule != nil { // A limit that came with the request has no rule.
		rule = r.ruleNames[c.Rule.Index]
	}
	if d, ok := c.RetryWait(); ok {
		retryAfter = strconv.FormatInt(limiter.MicrosecondsRoundedUp(d), 10)
	}
	reasons, _ := json.Marshal(operator.OverReasons(c)) // json.Marshal never fails for strings.
	dst = append(append(dst, `{"rule":`...), rule...)
	dst = rls.AppendJSONString(append(dst, `,"key":`...), c.CounterKey[len(r.cfg.KeyPrefix):])
	return fmt.Appendf(
		dst, `,"algorithm":"%v","over":%t,"limit":%d,"remaining":%d,"retry_after_us":%s,"reset_after_us":%d,"reasons":%s}`,
		c.Algorithm.Kind, c.Verdict.Over, c.Algorithm.Capacity(), c.Verdict.Remaining, retryAfter,
		limiter.MicrosecondsRoundedUp(c.Verdict.ResetAfter), reasons)
}

// appendRefusal appends the line of output for a request that the service would refuse as invalid.
func appendRefusal(dst []byte, at time.Time, err error) []byte {
	code := "INVALID_ARGUMENT"
	if errors.Is(err, limiter.ErrRequestTooLarge) {
		code = "RESOURCE_EXHAUSTED"
	}
	dst = fmt.Appendf(appendLineStart(dst, at), `,"error":{"code":"%s","message":`, code)
	return append(rls.AppendJSONString(dst, err.Error()), "}}\n"...)
}

// appendLineStart appends {"at":"...", the beginning of all lines of output.
func appendLineStart(dst []byte, at time.Time) []byte {
	dst = append(dst, `{"at":"`...)
	dst = at.AppendFormat(dst, time.RFC3339Nano)
	return append(dst, '"')
}
