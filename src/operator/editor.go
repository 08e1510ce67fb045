package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/overrides"
	"ratelimit/src/rules"
)

// Editor reads and changes the counters of a store.
type Editor struct {
	Limiter *limiter.Limiter
	Backend backend.Backend
	// Publish tells the other replicas that share the store of a change.
	Publish func(ctx context.Context, change []byte) error
	// OnChange is called after each change. err says why it failed, perhaps in part.
	OnChange func(report *CounterReport, client Client, err error)
}

// ChangeTimeout bounds the time of a change of one descriptor.
const ChangeTimeout = 5 * time.Second

// ChangeDescriptor performs a change that names a whole descriptor. Its errors are those of Change.
func (e *Editor) ChangeDescriptor(ctx context.Context, c *CounterChange, client Client) (*CounterReport, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, ChangeTimeout)
	defer cancel()
	return e.Change(ctx, *c, client, func(int) {})
}

// ParsePublished parses what Publish got on another replica. ok is false if it is not known which counters were
// changed.
func ParsePublished(text []byte) (c CounterChange, ok bool) {
	err := json.Unmarshal(text, &c)
	return c, err == nil && !c.IsPattern()
}

// Hits returns the hits that set the counters of c: one for each counter. It asks no store.
func (e *Editor) Hits(c *CounterChange) (*backend.Batch, error) {
	req, a := c.request(), new(limiter.Answer)
	b := a.OwnBatch(req)
	if err := e.Limiter.Prepare(context.Background(), e.Limiter.Rules(), req, a, b); err != nil {
		return nil, err
	}
	hits, used := b.Hits[:0], uint64(0)
	if c.Used != nil {
		used = *c.Used
	}
	for _, h := range b.Hits {
		isSame := func(other backend.Hit) bool {
			return bytes.Equal(other.Key, h.Key) && other.Limit.Window() == h.Limit.Window()
		}
		if !slices.ContainsFunc(hits, isSame) { // A canary may share a counter.
			h.Amount, h.Op, h.Atomic = min(used, algorithm.MaxAmount), algorithm.Force, false
			hits = append(hits, h)
		}
	}
	b.Hits, b.Verdicts = hits, make([]backend.Verdict, len(hits))
	return &b.Batch, nil
}

// request returns a request for one unit with the descriptor of c.
func (c *CounterChange) request() *limiter.Request {
	return &limiter.Request{
		Domain: []byte(c.Domain), Descriptors: []limiter.Descriptor{{Entries: c.entries()}},
		IgnoresHolds: true,
	}
}

// entries returns the entries of c. Of a pattern, the last value is a prefix.
func (c *CounterChange) entries() (entries []rules.Entry) {
	for _, e := range c.Descriptor {
		if e.Prefix != nil {
			e.Value = *e.Prefix
		}
		entries = append(entries, rules.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
	}
	return entries
}

// Change performs c, which must be valid. client goes to OnChange. progress is called now and then with the number of
// counters that a pattern matches so far. An error that is a *Refusal is the client's.
func (e *Editor) Change(ctx context.Context, c CounterChange, client Client,
	progress func(int),
) (*CounterReport, error) {
	report := &CounterReport{CounterChange: c}
	change := e.changeDescriptor
	if c.IsPattern() {
		change = e.changePattern
	}
	err := change(ctx, report, progress)
	if c.Changes() {
		e.OnChange(report, client, err)
	}
	if err != nil {
		return nil, clientError(err)
	}
	return report, nil
}

// clientError returns err as a *Refusal if the client can fix it.
func clientError(err error) error {
	switch {
	case errors.Is(err, limiter.ErrInvalidRequest):
		return Refuse(http.StatusBadRequest, "%v", err)
	case errors.Is(err, backend.ErrNoNames):
		return Refuse(http.StatusNotImplemented, "%v: name whole descriptors, or set MEMORY_COUNTER_NAMES=true", err)
	case errors.Is(err, overrides.ErrTooMany):
		return Refuse(http.StatusConflict, "%v", err)
	}
	return err
}

// errNoLimit returns the error of a descriptor without counters.
func errNoLimit(c *CounterChange) error {
	return Refuse(http.StatusUnprocessableEntity, "no limit of domain %s applies to %s; /explain says why",
		rules.Quote(c.Domain), c.DescriptorText())
}

// changeDescriptor reports or changes the counters of one descriptor.
func (e *Editor) changeDescriptor(ctx context.Context, report *CounterReport, _ func(int)) error {
	c := &report.CounterChange
	req := c.request()
	counters, err := e.read(ctx, req)
	if err != nil {
		return err
	}
	report.Counters = counters
	if len(counters) == 0 {
		return errNoLimit(c)
	}
	if !c.Changes() {
		return nil
	}
	batch, err := e.Hits(c)
	if err != nil {
		return err
	}
	report.Before = counters
	if err := backend.EditorOf(e.Backend).SetCounts(ctx, batch); err != nil {
		return fmt.Errorf("it is unknown which counters were changed; send the change again: %w", err)
	}
	report.Warning = e.publish(ctx, c)
	report.Counters, err = e.read(ctx, req)
	return err
}

// publish tells all replicas of a change. It returns a warning if that fails.
func (e *Editor) publish(ctx context.Context, c *CounterChange) (warning string) {
	text, err := json.Marshal(c)
	if err == nil {
		err = e.Publish(ctx, text)
	}
	if err == nil {
		return ""
	}
	return fmt.Sprintf("the store has the change, but replicas with an over-limit cache may refuse until its entries "+
		"expire; send the change again: %v", err)
}

// read returns the counters that req would charge, as they are now.
func (e *Editor) read(ctx context.Context, req *limiter.Request) ([]Counter, error) {
	var a limiter.Answer
	if err := e.Limiter.DryRun(ctx, req, &a); err != nil {
		return nil, err
	}
	counters := make([]Counter, 0, len(a.Charges))
	for i := range a.Charges {
		counters = append(counters, newCounter(&a.Charges[i]))
	}
	return counters, nil
}

// CountedCapacity returns how many units the counter of c admits at once: those of the limit, or those of this
// replica's share while the store does not answer.
func CountedCapacity(c *limiter.Charge) uint64 {
	if c.Verdict.Fallback == backend.FallbackLocal {
		return c.Verdict.Share
	}
	return c.Algorithm.Capacity()
}

func newCounter(c *limiter.Charge) Counter {
	v, capacity := c.Verdict, c.Algorithm.Capacity()
	admitted := CountedCapacity(c)
	out := Counter{
		Rule: c.Rule.FullName, Key: string(c.CounterKey), Algorithm: c.Algorithm.Kind.String(), Shadow: c.InShadowMode(),
		Limit: capacity, PeriodSeconds: c.Algorithm.Period.Seconds(),
		Share: v.Share, Used: v.Before, Held: v.HeldHere, Remaining: admitted - min(admitted, v.Before),
		ResetAfterSeconds: v.ResetAfter.Seconds(),
		Refuses:           v.Over, RetryAfterSeconds: RetrySeconds(v.RetryAfter),
	}
	if out.HoldSeconds = c.Algorithm.Hold.Seconds(); c.Algorithm.Kind == algorithm.Concurrency {
		out.PeriodSeconds = 0
	}
	if c.Algorithm.Calendar != nil {
		out.PeriodSeconds, out.CalendarWindow = 0, c.Rule.CalendarWindow()
	}
	if v.Fallback != backend.FallbackError {
		out.Fallback = v.Fallback.String()
	}
	return out
}

// changePattern reports or resets all counters that begin with a descriptor.
func (e *Editor) changePattern(ctx context.Context, report *CounterReport, progress func(int)) error {
	c := &report.CounterChange
	entries, set := c.entries(), e.Limiter.Rules()
	if set == nil {
		return limiter.ErrNoRules
	}
	domain := set.Domain([]byte(c.Domain))
	if domain == nil || len(entries) == 0 {
		return errNoLimit(c)
	}
	prefixes, err := e.Limiter.KeyFormat().KeyPrefixes(domain, entries)
	if err != nil {
		return fmt.Errorf("%w: %w", limiter.ErrInvalidRequest, err)
	}
	if len(prefixes) == 0 {
		return errNoLimit(c)
	}
	report.Names = []string{}
	err = backend.EditorOf(e.Backend).ResetPrefixes(ctx, prefixes, !c.Changes(), func(names [][]byte) {
		report.Matching += len(names)
		for _, name := range names[:min(len(names), MaxNames-len(report.Names))] {
			report.Names = append(report.Names, string(bytes.Clone(name)))
		}
		progress(report.Matching)
	})
	if err == nil && c.Changes() {
		report.Warning = e.publish(ctx, c)
	}
	return err
}

// DescriptorText returns the descriptor of c as commands take it.
func (c *CounterChange) DescriptorText() string {
	entries := c.entries()
	text := callertext.WholeDescriptor(entries)
	if !c.IsPattern() {
		return text
	}
	if len(entries[len(entries)-1].Value) == 0 {
		text += "="
	}
	return text + "*"
}
