package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// In a group each hit sees those before it on its counter, whether the group is
// small or large, and a group with one hit too many charges nothing.
func TestGroupsOnFewCounters(t *testing.T) {
	t.Parallel()
	const counters, each = 3, 10
	for _, limit := range long(each) {
		if limit.MinInterval > 0 {
			continue // no two hits of one instant pass
		}
		for _, hits := range []int{1, counters, 2*counters + 1, counters * each, counters*each + 1} {
			t.Run(fmt.Sprintf("%v, %d hits", limit.Kind, hits), func(t *testing.T) {
				s := open(t, 0)
				b := backend.Batch{Now: epoch, Verdicts: make([]backend.Verdict, hits)}
				for i := range hits {
					b.Hits = append(b.Hits, backend.Hit{Key: fmt.Append(nil, i%counters), Limit: limit, Amount: 1, Atomic: true})
				}
				if err := s.Take(t.Context(), &b); err != nil {
					t.Fatal(err)
				}
				passes := hits <= counters*each
				for i, v := range b.Verdicts {
					before := uint64(i / counters)
					if !passes {
						before = 0
					}
					if v.Charged != passes || v.Before != before || v.Over != (i == counters*each) {
						t.Fatalf("hit %d: %+v, want %d before", i, v, before)
					}
				}
				for k := range counters {
					want := uint64(0)
					if passes {
						want = uint64((hits - k + counters - 1) / counters)
					}
					if v := send(t, s, epoch, backend.Hit{
						Key: fmt.Append(nil, k), Limit: limit,
						Op: algorithm.Look,
					}); v.Before != want {
						t.Errorf("counter %d has %d, want %d", k, v.Before, want)
					}
				}
			})
		}
	}
}

// TestSortHitPlaces compares short and long lists, of which many places share a hash, with the library's sort.
func TestSortHitPlaces(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, length := range []int{0, 1, 511, 512, 20_000} {
		for _, hashes := range []uint64{1, 300, 1 << 32} {
			var g groupScratch
			for i := range length {
				g.hitPlaces = append(g.hitPlaces, hitPlace(rnd.Uint64N(hashes)*(1<<32/hashes)<<32)|hitPlace(i))
			}
			want := slices.Sorted(slices.Values(g.hitPlaces))
			if g.sortHitPlaces(); !slices.Equal(g.hitPlaces, want) {
				t.Errorf("%d places with %d hashes are out of order", length, hashes)
			}
		}
	}
}
