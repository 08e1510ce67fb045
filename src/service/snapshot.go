package service

import (
	"context"
	"fmt"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/backend/snapshot"
)

// openSnapshot reads the counters of MEMORY_SNAPSHOT into m, and writes them to it from then on.
func (s *store) openSnapshot(m *memory.Store) error {
	path := s.Settings.MemorySnapshot
	if path == "" {
		return nil
	}
	s.Heap.Watch(m.Bytes, s.Settings.MemoryMaxBytes) // The collector must know of the counters before they are read.
	f, start, err := snapshot.Open(snapshot.Config{
		Path: path, Interval: s.Settings.MemorySnapshotInterval, Store: m,
		OnFailure: func(err error) {
			s.log.Warnf("MEMORY_SNAPSHOT=%s: the counters cannot be written: %v", path, err)
		},
	})
	if err != nil {
		return fmt.Errorf("MEMORY_SNAPSHOT=%s: %w", path, err)
	}
	s.onClose(f.Close)
	s.writeLast = func(patient context.Context) { s.writeLastSnapshot(patient, f) }
	switch {
	case start.Refused != nil:
		s.log.Warnf("MEMORY_SNAPSHOT=%s is not used, and all counters start at 0: %v. The file is now %s", path,
			start.Refused, start.RefusedPath)
	case !start.Found:
		s.log.alwaysShown.Infof("MEMORY_SNAPSHOT=%s does not exist yet, and all counters start at 0", path)
	default:
		s.log.alwaysShown.Infof("%s from %s, written %v ago; %d had expired, and %d did not fit in MEMORY_MAX_BYTES",
			plural(int(start.Counters), "counter"), path, time.Since(start.SavedAt).Round(time.Millisecond), start.Expired,
			start.Evicted)
	}
	s.run(f.Run)
	s.counters.ShowFigures("snapshot", "", f.Stats)
	return nil
}

// minLastSnapshotTimeout is for how long the last snapshot is written at least, if that is necessary.
const minLastSnapshotTimeout = 10 * time.Second

// writeLastSnapshot writes the counters after the last hit. It takes at most SHUTDOWN_TIMEOUT, or
// minLastSnapshotTimeout if that is longer, and ends when patient does. The file then stays as it was.
func (s *store) writeLastSnapshot(patient context.Context, f *snapshot.File) {
	ctx, cancel := context.WithTimeout(patient, max(s.Settings.ShutdownTimeout, minLastSnapshotTimeout))
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
		s.log.important.Warnf("MEMORY_SNAPSHOT=%s: the last counters were not written: %v", s.Settings.MemorySnapshot, err)
		return
	}
	st := f.Stats()
	s.log.alwaysShown.Infof("%s written to %s in %v", plural(int(st.Counters), "counter"), s.Settings.MemorySnapshot,
		st.Duration.Round(time.Millisecond))
}
