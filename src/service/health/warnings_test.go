package health

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/service/logging"
)

// A spell ends after ten minutes without an event; the next one counts from the start.
func TestSpells(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 29, 2, 0, 0, 0, time.UTC)
	var s spell
	for _, step := range []struct {
		after  time.Duration
		total  uint64
		growth uint64
		shown  bool
		count  uint64
		times  string
	}{
		{0, 0, 0, false, 0, ""},
		{time.Second, 5, 5, true, 5, "at 2026-11-29T02:00:01Z"},
		{9 * time.Minute, 6, 1, true, 6, "from 2026-11-29T02:00:01Z to 2026-11-29T02:09:01Z"},
		{9 * time.Minute, 6, 0, true, 6, "from 2026-11-29T02:00:01Z to 2026-11-29T02:09:01Z"},
		{time.Minute, 6, 0, false, 6, ""},
		{time.Hour, 8, 2, true, 2, "at 2026-11-29T03:19:01Z"},
	} {
		now = now.Add(step.after)
		growth := s.add(step.total, now)
		if growth != step.growth || s.isShown(now) != step.shown || s.count != step.count {
			t.Errorf("%+v: grew by %d, shown %t, %+v", step, growth, s.isShown(now), s)
		}
		if step.shown && s.times() != step.times {
			t.Errorf("%+v: %s", step, s.times())
		}
	}
}

// Lost lines of the log are a note, since a full disk has no room for a line about them.
func TestLostLogLinesAreTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stats atomic.Pointer[logging.Stats]
		stats.Store(new(logging.Stats))
		w := NewWarnings(nil, func() logging.Stats { return *stats.Load() })
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = w.Run(ctx) }() // It returns nil.
		time.Sleep(2 * warningInterval)
		if list := w.Components(time.Now()); list != nil {
			t.Errorf("got %+v without a loss", list)
		}
		stats.Store(&logging.Stats{Dropped: 2590, Failed: 6})
		time.Sleep(2 * warningInterval)
		list := w.Components(time.Now())
		if len(list) != 1 || list[0].Name != "log" || list[0].NotReadyReason != "" || !list[0].IsWarning ||
			!strings.Contains(list[0].Note, "2596 times at ") {
			t.Errorf("got %+v", list)
		}
		cancel()
		synctest.Wait()
	})
}
