//go:build !race

package fallback

import (
	"slices"
	"testing"

	"ratelimit/src/backend"
)

// What the store answers costs nothing on its way through. The race detector
// empties pools at random, so this runs without it.
func TestTakeDoesNotAllocate(t *testing.T) {
	next := inMemory(t)
	s := open(t, next, 3)
	limit := fixed(1<<40, 365*24*3600e9)
	for _, size := range []int{2, 1024} {
		b := backend.Batch{
			Hits:     slices.Repeat([]backend.Hit{local("a", limit, 1), local("b", limit, 1)}, size/2),
			Verdicts: make([]backend.Verdict, size),
		}
		for _, down := range []bool{false, true} {
			next.down.Store(down)
			if n := testing.AllocsPerRun(1000, func() {
				if err := s.Take(t.Context(), &b); err != nil {
					t.Fatal(err)
				}
			}); n > 0 {
				t.Errorf("%d hits, down %t: %v allocations", size, down, n)
			}
		}
	}
}

func BenchmarkTake(b *testing.B) {
	for _, bench := range []struct {
		name string
		down bool
	}{{"up", false}, {"local", true}} {
		b.Run(bench.name, func(b *testing.B) {
			next := inMemory(b)
			s := open(b, next, 3)
			next.down.Store(bench.down)
			limit := fixed(1<<40, 365*24*3600e9)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				batch := backend.Batch{Hits: []backend.Hit{local("a", limit, 1)}, Verdicts: make([]backend.Verdict, 1)}
				for pb.Next() {
					if err := s.Take(b.Context(), &batch); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}
