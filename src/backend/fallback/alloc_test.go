//go:build !race

package fallback

import (
	"testing"

	"ratelimit/src/backend"
)

// What the store answers costs nothing on its way through. The race detector
// empties pools at random, so this runs without it.
func TestTakeDoesNotAllocate(t *testing.T) {
	next := inMemory(t)
	s := open(t, next, 3)
	limit := fixed(1<<40, 365*24*3600e9)
	b := backend.Batch{Hits: []backend.Hit{local("a", limit, 1), local("b", limit, 1)}, Verdicts: make([]backend.Verdict, 2)}
	for _, down := range []bool{false, true} {
		next.down.Store(down)
		if n := testing.AllocsPerRun(1000, func() {
			if err := s.Take(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
		}); n > 0 {
			t.Errorf("down %t: %v allocations", down, n)
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
