package service

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/operator"
	"ratelimit/src/overrides"
	"ratelimit/src/rules"
	"ratelimit/src/service/store"
)

// changedLimits are the limits that operators change at run time.
type changedLimits struct {
	*foundation
	registry *overrides.Registry
	note     string                 // why changes do not last; empty if they do
	isOff    bool                   // OVERRIDES_MAX is 0
	hits     metrics.Counter        // those that a changed limit decided
	denied   metrics.Counter        // those that a changed limit refused
	failing  atomic.Pointer[string] // why the store cannot be read; nil if it can
}

// newChangedLimits opens what keeps the limits that operators change.
func newChangedLimits(f *foundation, s *store.Store) (*changedLimits, error) {
	c := &changedLimits{foundation: f, isOff: f.Settings.OverridesMax == 0}
	kept, err := c.open(s)
	if err != nil {
		return nil, err
	}
	c.registry = overrides.New(overrides.Config{
		Store: kept, MaxOverrides: f.Settings.OverridesMax, OnState: c.logState,
		OnRestored: func(n int) {
			f.log.Warnf("the store had lost limits that were changed at run time; %d that this replica knew are stored again", n)
		},
	})
	if c.isOff {
		return c, nil
	}
	f.health.AddRemarks(c.components)
	f.run(c.registry.Run)
	f.counters.ShowFigures("overrides", "", c.figures)
	return c, nil
}

// open returns what keeps the changed limits.
func (c *changedLimits) open(s *store.Store) (overrides.Store, error) {
	switch {
	case c.isOff:
		return overrides.None(operator.Refuse(http.StatusNotImplemented,
			"limits cannot be changed at run time, because OVERRIDES_MAX is 0: set it to how many changes may be kept")), nil
	case s.TakesCommands():
		return overrides.NewSharedStore(s.Command, c.Settings.CacheKeyPrefix), nil
	case s.IsShared():
		return overrides.None(operator.Refuse(http.StatusNotImplemented, "limits cannot be changed at run time with Memcached, "+
			"which forgets keys when it is full and cannot list them: use Redis, or change the rules")), nil
	}
	file, cut, err := overrides.OpenFile(c.Settings.OverridesFile)
	if err != nil {
		return nil, fmt.Errorf("OVERRIDES_FILE: %w", err)
	}
	if cut {
		c.log.Warnf("OVERRIDES_FILE=%s: the last line was incomplete and is dropped, because the process was killed while it "+
			"wrote it", c.Settings.OverridesFile)
	}
	if c.Settings.OverridesFile == "" {
		c.note = "the change lasts as long as this process: set OVERRIDES_FILE to keep changes over a restart"
	}
	return file, nil
}

// logState logs that the store of the changed limits does not answer, or answers again.
func (c *changedLimits) logState(err error) {
	if err == nil {
		c.failing.Store(nil)
		c.log.Warn("limits changed at run time can be read again")
		return
	}
	text := err.Error()
	c.failing.Store(&text)
	c.log.Warnf("limits changed at run time cannot be read, and stay as they are known here: %v", err)
}

// components returns a note for /readyz while the changed limits cannot be read.
func (c *changedLimits) components(time.Time) []operator.Component {
	why := c.failing.Load()
	if why == nil {
		return nil
	}
	note := "cannot be read, so those known here stay: " + *why
	if c.registry.State().ReadAt.IsZero() {
		note = "not known, because they cannot be read: " + *why
	}
	return []operator.Component{{Name: "limits changed at run time", Note: note}}
}

// overrideFigures are the figures of the changed limits.
type overrideFigures struct {
	Count    int
	ReadAt   time.Time // 1970 if they were never read.
	Failures uint64
	Hits     uint64
	Denied   uint64
}

func (c *changedLimits) figures() overrideFigures {
	st := c.registry.State()
	if st.ReadAt.IsZero() {
		st.ReadAt = time.Unix(0, 0)
	}
	return overrideFigures{st.Count, st.ReadAt, st.Failures, c.hits.Load(), c.denied.Load()}
}

// Record implements limiter.Recorder: it counts hits that a changed limit decided.
func (c *changedLimits) Record(_ *limiter.Request, a *limiter.Answer) {
	for i := range a.Charges {
		charge := &a.Charges[i]
		if charge.Rule == nil || !charge.Rule.Overridden {
			continue
		}
		c.hits.Add(1)
		if charge.Over {
			c.denied.Add(1)
		}
	}
}

// over returns set with the changed limits, now and later.
func (c *changedLimits) over(set *rules.Set) *rules.Set {
	if c.isOff || set == nil {
		return set
	}
	return c.registry.Over(set)
}

// editor makes what changes limits for operators.
func (c *changedLimits) editor(counters *operator.Editor) *operator.LimitEditor {
	return &operator.LimitEditor{Counters: counters, Registry: c.registry, Note: c.note, OnChange: c.logLimitChange}
}
