package overrides

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"ratelimit/testbed/redistest"
)

// BenchmarkChanges makes 10,000 changes at 1,000 a second at one of three replicas, which share a Redis and have 90,000
// others, and reports how long they take to arrive at the others.
func BenchmarkChanges(b *testing.B) {
	const others, changed, perSecond = 90_000, 10_000, 1000
	s := redistest.Start(b, redistest.Options{})
	list := make([]*Registry, 3)
	ctx, stop := context.WithCancel(b.Context())
	var running sync.WaitGroup
	for i := range list {
		list[i] = New(Config{Store: NewSharedStore(commander(s), ""), MaxOverrides: others + changed})
		running.Go(func() { _ = list[i].Run(ctx) })
	}
	defer running.Wait()
	defer stop()
	var edits []Edit
	for i := range others {
		edits = append(edits, set(override(b, fmt.Sprintf("user=other-%d", i), "x10")))
	}
	for part := range slices.Chunk(edits, 500) {
		commit(b, list[0], part...)
	}
	for _, g := range list {
		for g.State().Count < others {
			time.Sleep(10 * time.Millisecond)
		}
	}
	b.ResetTimer()
	for range b.N {
		var made [changed]time.Time
		var mu sync.Mutex // guards made and late
		var late []time.Duration
		var watching sync.WaitGroup
		for _, g := range list[1:] {
			watching.Go(func() {
				for i := 0; i < changed; {
					o := override(b, fmt.Sprintf("user=changed-%d", i), "ban")
					if _, has := g.Get(o.ID()); !has {
						time.Sleep(time.Millisecond)
						continue
					}
					mu.Lock()
					late = append(late, time.Since(made[i]))
					mu.Unlock()
					i++
				}
			})
		}
		start := time.Now()
		for i := range changed {
			time.Sleep(time.Until(start.Add(time.Duration(i) * time.Second / perSecond)))
			o := override(b, fmt.Sprintf("user=changed-%d", i), "ban")
			mu.Lock()
			made[i] = time.Now()
			mu.Unlock()
			commit(b, list[0], set(o))
		}
		took := time.Since(start)
		watching.Wait()
		slices.Sort(late)
		b.ReportMetric(changed/took.Seconds(), "changes/s")
		b.ReportMetric(float64(late[len(late)/2].Milliseconds()), "ms-median")
		b.ReportMetric(float64(late[len(late)-1].Milliseconds()), "ms-longest")
		for i := range changed {
			commit(b, list[0], unset(override(b, fmt.Sprintf("user=changed-%d", i), "ban")))
		}
	}
}
