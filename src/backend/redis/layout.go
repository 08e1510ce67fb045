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
		started := time.Now()
		found, err := s.findMeanwhile(ctx, f, trouble)
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
		var ok bool
		if trouble, ok = s.pause(ctx, started); !ok {
			return
		}
	}
}

// findMeanwhile has f find the servers. Meanwhile it adds those that others name: a
// call that waits for one has less time than it may take to find a node that answers.
func (s *Store) findMeanwhile(ctx context.Context, f finder, another bool) (found remote.Layout, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		found, err = f.find(ctx, another)
	}()
	for {
		select {
		case addr := <-s.Discovered:
			s.AddNode(ctx, addr)
		case <-done:
			return found, err
		}
	}
}

// pause waits until it is time to ask again. It reports whether there was trouble, and
// false when ctx has ended.
func (s *Store) pause(ctx context.Context, started time.Time) (trouble, ok bool) {
	least, most := time.After(time.Until(started.Add(askLeast))), time.After(askEvery)
	kicks := (<-chan struct{})(nil) // not heard before least
	for {
		select {
		case <-least:
			kicks = s.Kicks
		case <-kicks:
			return true, true
		case addr := <-s.Discovered:
			s.AddNode(ctx, addr)
		case <-most:
			return false, true
		case <-ctx.Done():
			return false, false
		}
	}
}
