package service

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/backend/changes"
	"ratelimit/src/backend/fallback"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
	"ratelimit/src/service/store"
)

// newEditor makes what changes counters for operators, and tells all replicas that share the store.
func newEditor(f *foundation, s *store.Store, l *limiter.Limiter) *operator.Editor {
	editor := &operator.Editor{
		Limiter: l, Backend: s.Backend, OnChange: f.logCounterChange,
		Publish: func(context.Context, []byte) error { return nil }, // Counters in memory have one replica.
	}
	if !s.IsShared() {
		return editor
	}
	main := s.Pools[0] // The second pool, if there is one, has limits per second.
	feed := &changes.Feed{
		Store: main, KeyPrefix: f.Settings.CacheKeyPrefix,
		Needed: func() bool { return s.HasCache || s.HasLocalCounters() },
		OnChange: func(texts [][]byte, all bool) {
			s.ClearCache()
			f.changeLocalCounters(s.Fallback, editor, texts, all)
			if len(texts) > 0 || !all {
				f.log.Debug("a change of counters is known here")
			}
		},
	}
	editor.Publish = feed.Publish
	f.run(feed.Run)
	return editor
}

// changeLocalCounters makes changes of other replicas to the counters of this process. If it does not know what was
// changed, it forgets all of them.
func (f *foundation) changeLocalCounters(local *fallback.Store, editor *operator.Editor, texts [][]byte, all bool) {
	var known []operator.CounterChange
	for _, text := range texts {
		c, ok := operator.ParsePublished(text)
		known, all = append(known, c), all && ok
	}
	if !all {
		if err := local.ForgetLocalCounts(); err != nil {
			f.log.Warnf("the counters of on_store_failure: local keep their old counts: %v", err)
		}
		return
	}
	for i := range known {
		batch, err := editor.Hits(&known[i])
		if err == nil {
			err = local.SetLocalCounts(context.Background(), batch)
		}
		if err != nil {
			f.log.Debugf("a change of counters does not apply to this replica: %v", err)
		}
	}
}

// logCounterChange writes the audit line of a change.
func (f *foundation) logCounterChange(report *operator.CounterReport, client operator.Client, err error) {
	c := &report.CounterChange
	fields := logrus.Fields{"by": client.Addr, "action": c.Action, "domain": c.Domain, "descriptor": c.DescriptorText()}
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
	line := f.log.AlwaysShown.WithFields(fields).WithTime(time.Now())
	if err != nil {
		delete(fields, "after")
		line.WithError(err).Warn("counters not changed, or only some")
		return
	}
	line.Info("counters changed")
}

// countsText returns counts as "rule 3 of 5, rule 7 of 100".
func countsText(counters []operator.Counter) string {
	var parts []string
	for _, c := range counters {
		parts = append(parts, fmt.Sprintf("%s %d of %d", c.Rule, c.Used, c.Limit))
	}
	return strings.Join(parts, ", ")
}
