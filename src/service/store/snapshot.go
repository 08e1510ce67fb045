package store

import (
	"context"
	"fmt"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/snapshot"
	"ratelimit/src/operator/output"
)

// openSnapshot reads the counters of MEMORY_SNAPSHOT into m, and writes them to it from then on.
func (s *Store) openSnapshot(m *memory.Store) error {
	path := s.cfg.MemorySnapshot
	if path == "" {
		return nil
	}
	f, start, err := snapshot.Open(snapshot.Config{
		Path: path, Interval: s.cfg.MemorySnapshotInterval, Store: m,
		OnFailure: func(err error) {
			s.cfg.Log.Warnf("MEMORY_SNAPSHOT=%s: the counters cannot be written: %v", path, err)
		},
	})
	if err != nil {
		return fmt.Errorf("MEMORY_SNAPSHOT=%s: %w", path, err)
	}
	s.Close = f.Close
	s.Finish = func(patient context.Context) { s.writeLastSnapshot(patient, f) }
	switch {
	case start.Refused != nil:
		s.cfg.Log.Warnf("MEMORY_SNAPSHOT=%s is not used, and all counters start at 0: %v. The file is now %s", path,
			start.Refused, start.RefusedPath)
	case !start.Found:
		s.cfg.Log.AlwaysShown.Infof("MEMORY_SNAPSHOT=%s does not exist yet, and all counters start at 0", path)
	default:
		s.cfg.Log.AlwaysShown.Infof("%s from %s, written %v ago; %d had expired, and %d did not fit in MEMORY_MAX_BYTES",
			output.Plural(start.Counters, "counter"), path, time.Since(start.SavedAt).Round(time.Millisecond), start.Expired,
			start.Evicted)
	}
	s.Runners = append(s.Runners, f.Run)
	s.cfg.Figures.ShowFigures("snapshot", "", f.Stats)
	return nil
}

// minLastSnapshotTimeout is for how long the last snapshot is written at least, if that is necessary.
const minLastSnapshotTimeout = 10 * time.Second

// writeLastSnapshot writes the counters after the last hit. It takes at most SHUTDOWN_TIMEOUT, or
// minLastSnapshotTimeout if that is longer, and ends when patient does. The file then stays as it was.
func (s *Store) writeLastSnapshot(patient context.Context, f *snapshot.File) {
	ctx, cancel := context.WithTimeout(patient, max(s.cfg.ShutdownTimeout, minLastSnapshotTimeout))
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f.Write(ctx) }() // A write to a network disk may never return.
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		s.cfg.Log.Important.Warnf("MEMORY_SNAPSHOT=%s: the last counters were not written: %v", s.cfg.MemorySnapshot, err)
		return
	}
	st := f.Stats()
	s.cfg.Log.AlwaysShown.Infof("%s written to %s in %v", output.Plural(st.Counters, "counter"), s.cfg.MemorySnapshot,
		st.Duration.Round(time.Millisecond))
}
