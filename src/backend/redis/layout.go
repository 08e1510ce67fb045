package redis

import (
	"context"
	"time"

	"ratelimit/src/backend/remote"
)

// finder finds out which servers there are. One goroutine at a time uses it.
type finder interface {
	// find asks a server; with another, preferably not the one that answered last.
	find(ctx context.Context, another bool) (remote.Layout, error)
	close()
}

// The layout is asked for every askEvery, and when something went wrong, but not more
// often than once in askLeast: that is how long a failover is not noticed at most,
// besides the time Redis takes for it.
const (
	askEvery = time.Second
	askLeast = 100 * time.Millisecond
)

// watch keeps the table in step with what f finds until ctx ends.
func (s *Store) watch(ctx context.Context, f finder) {
	defer f.close()
	var last remote.Layout
	trouble := false
	for {
		least := time.After(askLeast)
		found, err := f.find(ctx, trouble)
		t := s.Table()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && found.Equal(&last) && len(t.Nodes) == len(found.Addrs): // as it was
		case err == nil:
			s.Use(ctx, found)
			last = found
		case t.Nodes == nil:
			s.Fail(err)
		default: // what was known may still be right
		}
		most := time.After(askEvery)
		select {
		case <-least:
		case <-ctx.Done():
			return
		}
		select {
		case <-s.Kicks:
			trouble = true
		case <-most:
			trouble = false
		case <-ctx.Done():
			return
		}
	}
}
