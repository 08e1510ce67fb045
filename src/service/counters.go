package service

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/changes"
	"ratelimit/src/backend/overlimit"
	"ratelimit/src/frontend/admin"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// counterEditor is the admin.Counters of a service.
type counterEditor struct{ service *Service }

// buildChanges makes the feed that tells all replicas of changes. cache is nil if there is no over-limit cache.
func (s *Service) buildChanges(cache *overlimit.Cache) {
	main := s.store.pools[0] // The second pool, if there is one, has limits per second.
	s.store.changes = changes.New(changes.Config{
		Store: main, Texts: main, KeyPrefix: s.Settings.CacheKeyPrefix,
		Needed: func() bool { return cache != nil || s.store.fallback.LocalEnabled() },
		OnChange: func(texts [][]byte, all bool) {
			if cache != nil {
				cache.Clear()
			}
			s.changeLocalCounters(texts, all)
			if len(texts) > 0 || !all {
				s.log.Debug("a change of counters is known here")
			}
		},
	})
	s.runners = append(s.runners, s.store.changes.Run)
}

// changeLocalCounters makes changes of other replicas to the counters of this process. If it does not know what was changed, it forgets
// all of them.
func (s *Service) changeLocalCounters(texts [][]byte, all bool) {
	known := all
	for _, text := range texts {
		var c admin.CounterChange
		if json.Unmarshal(text, &c) != nil || c.IsPattern() {
			known = false
			break
		}
	}
	if !known {
		if err := s.store.fallback.ForgetLocalCounts(); err != nil {
			s.log.Warnf("the counters of on_store_failure: local keep their old counts: %v", err)
		}
		return
	}
	for _, text := range texts {
		var c admin.CounterChange
		_ = json.Unmarshal(text, &c) // It succeeded before.
		var a limiter.Answer
		batch, err := s.limiter.CounterHits(counterRequest(&c), &a, usedUnits(&c))
		if err == nil {
			err = s.store.fallback.SetLocalCounts(context.Background(), batch)
		}
		if err != nil {
			s.log.Debugf("a change of counters does not apply to this replica: %v", err)
		}
	}
}

// counterRequest returns a request for one unit with the descriptor of c.
func counterRequest(c *admin.CounterChange) *limiter.Request {
	return &limiter.Request{Domain: []byte(c.Domain), Descriptors: []limiter.Descriptor{{Entries: counterEntries(c)}}, IgnoresHolds: true}
}

// counterEntries returns the entries of c. Of a pattern, the last value is a prefix.
func counterEntries(c *admin.CounterChange) (entries []rules.Entry) {
	for _, e := range c.Descriptor {
		if e.Prefix != nil {
			e.Value = *e.Prefix
		}
		entries = append(entries, rules.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
	}
	return entries
}

func usedUnits(c *admin.CounterChange) uint64 {
	if c.Used == nil {
		return 0
	}
	return *c.Used
}

// Change reports or changes counters; see admin.Counters.
func (e counterEditor) Change(ctx context.Context, c admin.CounterChange, client admin.Client, progress func(int)) (*admin.CounterReport, error) {
	report := &admin.CounterReport{CounterChange: c}
	change := e.changeDescriptor
	if c.IsPattern() {
		change = e.changePattern
	}
	err := change(ctx, report, progress)
	if c.Changes() {
		e.logChange(report, client, err)
	}
	if err != nil {
		return nil, clientError(err)
	}
	return report, nil
}

// clientError returns err as an admin.CounterError if the client can fix it.
func clientError(err error) error {
	switch {
	case errors.Is(err, limiter.ErrInvalidRequest):
		return &admin.CounterError{Status: http.StatusBadRequest, Reason: err.Error()}
	case errors.Is(err, backend.ErrNoNames):
		return &admin.CounterError{Status: http.StatusNotImplemented, Reason: err.Error() + ": name whole descriptors, or set MEMORY_COUNTER_NAMES=true"}
	}
	return err
}

// errNoLimit returns the error of a descriptor without counters.
func errNoLimit(c *admin.CounterChange) error {
	return &admin.CounterError{
		Status: http.StatusUnprocessableEntity,
		Reason: fmt.Sprintf("no limit of domain %s applies to %s; /explain says why", rules.Quote(c.Domain), descriptorText(c)),
	}
}

// changeDescriptor reports or changes the counters of one descriptor.
func (e counterEditor) changeDescriptor(ctx context.Context, report *admin.CounterReport, _ func(int)) error {
	c := &report.CounterChange
	req := counterRequest(c)
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
	var a limiter.Answer
	batch, err := e.service.limiter.CounterHits(req, &a, usedUnits(c))
	if err != nil {
		return err
	}
	report.Before = counters
	if err := backend.EditorOf(e.service.store.Backend).SetCounts(ctx, batch); err != nil {
		return fmt.Errorf("it is unknown which counters were changed; send the change again: %w", err)
	}
	report.Warning = e.publish(ctx, c)
	report.Counters, err = e.read(ctx, req)
	return err
}

// publish tells all replicas of a change. It returns a warning if that fails.
func (e counterEditor) publish(ctx context.Context, c *admin.CounterChange) (warning string) {
	feed := e.service.store.changes
	if feed == nil {
		return "" // Counters are in memory.
	}
	text, err := json.Marshal(c)
	if err == nil {
		err = feed.Publish(ctx, text)
	}
	if err == nil {
		return ""
	}
	return fmt.Sprintf("the store has the change, but replicas with an over-limit cache may refuse until its entries expire; send the change again: %v", err)
}

// read returns the counters that req would charge, as they are now.
func (e counterEditor) read(ctx context.Context, req *limiter.Request) ([]admin.Counter, error) {
	var a limiter.Answer
	if err := e.service.limiter.DryRun(ctx, req, &a); err != nil {
		return nil, err
	}
	counters := make([]admin.Counter, 0, len(a.Charges))
	for i := range a.Charges {
		counters = append(counters, newCounter(&a.Charges[i]))
	}
	return counters, nil
}

func newCounter(c *limiter.Charge) admin.Counter {
	v, capacity := &c.Verdict, c.Algorithm.Capacity()
	out := admin.Counter{
		Rule: c.Rule.FullName, Key: string(c.CounterKey), Algorithm: c.Algorithm.Kind.String(), Shadow: c.InShadowMode(),
		Limit: capacity, PeriodSeconds: c.Algorithm.Period.Seconds(),
		Used: v.Before, Remaining: capacity - min(capacity, v.Before), ResetAfterSeconds: v.ResetAfter.Seconds(),
		Refuses: v.Over, RetryAfterSeconds: v.RetryAfter.Seconds(),
	}
	if out.HoldSeconds = c.Algorithm.Hold.Seconds(); c.Algorithm.Kind == algorithm.Concurrency {
		out.PeriodSeconds = 0
	}
	if c.Algorithm.Calendar != nil {
		out.PeriodSeconds, out.CalendarWindow = 0, c.Rule.CalendarWindow()
	}
	if v.RetryAfter == algorithm.Never {
		out.RetryAfterSeconds = -1
	}
	if v.Fallback != backend.FallbackError {
		out.Fallback = v.Fallback.String()
	}
	return out
}

// changePattern reports or resets all counters that begin with a descriptor.
func (e counterEditor) changePattern(ctx context.Context, report *admin.CounterReport, progress func(int)) error {
	c := &report.CounterChange
	entries := counterEntries(c)
	prefixes, err := e.service.limiter.CounterPrefixes([]byte(c.Domain), entries)
	if err != nil {
		return err
	}
	if len(prefixes) == 0 {
		return errNoLimit(c)
	}
	report.Names = []string{}
	err = backend.EditorOf(e.service.store.Backend).ResetPrefixes(ctx, prefixes, !c.Changes(), func(names [][]byte) {
		report.Matching += len(names)
		for _, name := range names[:min(len(names), admin.MaxNames-len(report.Names))] {
			report.Names = append(report.Names, string(bytes.Clone(name)))
		}
		progress(report.Matching)
	})
	if err == nil && c.Changes() {
		report.Warning = e.publish(ctx, c)
	}
	return err
}

// logChange writes the audit line of a change.
func (e counterEditor) logChange(report *admin.CounterReport, client admin.Client, err error) {
	c := &report.CounterChange
	fields := logrus.Fields{"by": client.Addr, "action": c.Action, "domain": c.Domain, "descriptor": descriptorText(c)}
	if client.User != "" {
		fields["user"] = client.User
	}
	if c.Used != nil {
		fields["used"] = *c.Used
	}
	if c.IsPattern() {
		fields["counters"] = report.Matching
	} else if report.Before != nil {
		fields["before"], fields["after"] = countsText(report.Before), countsText(report.Counters)
	}
	if report.Warning != "" {
		fields["warning"] = report.Warning
	}
	line := e.service.log.alwaysShown.WithFields(fields).WithTime(time.Now())
	if err != nil {
		delete(fields, "after")
		line.WithError(err).Warn("counters not changed, or only some")
		return
	}
	line.Info("counters changed")
}

// countsText returns counts as "rule 3 of 5, rule 7 of 100".
func countsText(counters []admin.Counter) string {
	var parts []string
	for _, c := range counters {
		parts = append(parts, fmt.Sprintf("%s %d of %d", c.Rule, c.Used, c.Limit))
	}
	return strings.Join(parts, ", ")
}

// descriptorText returns the descriptor of c as people write it.
func descriptorText(c *admin.CounterChange) string {
	var parts []string
	for _, e := range c.Descriptor {
		value := e.Value
		if e.Prefix != nil {
			value = *e.Prefix + "*"
		}
		parts = append(parts, e.Key+"="+value)
	}
	return strings.Join(parts, " ")
}
