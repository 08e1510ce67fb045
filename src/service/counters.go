package service

import (
	"context"

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
