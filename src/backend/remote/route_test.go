package remote

import (
	"fmt"
	"slices"
	"testing"
)

// tagged returns n keys in 20 slots.
func tagged(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprintf("{%d}%d_", i%20, i))
	}
	return keys
}

// The cost of dividing a call is linear in its charges: each row costs about twice as
// much as the one above.
func BenchmarkDivide(b *testing.B) {
	for _, together := range []bool{false, true} {
		for _, charges := range []int{250, 500, 1000, 2000, 4000} {
			b.Run(fmt.Sprintf("together=%t/charges=%d", together, charges), func(b *testing.B) {
				s := clusterOf(3)
				c := callOf(CommandCost, together, tagged(charges)...)
				b.ReportAllocs()
				for b.Loop() {
					c.failAllHits(errUnsent)
					for _, p := range s.divideByServer(c) {
						s.releaseCall(p)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(charges), "ns/charge")
			})
		}
	}
}

// Every charge goes to the server that has its key, in order, and the charges of a
// group that share a slot stay together.
func TestDivide(t *testing.T) {
	t.Parallel()
	for _, together := range []bool{false, true} {
		t.Run(fmt.Sprint("together ", together), func(t *testing.T) {
			t.Parallel()
			s := clusterOf(3)
			c := callOf(CommandCost, together, tagged(200)...)
			c.failAllHits(errUnsent)
			for i := range 20 { // these have an answer
				c.Hits[i*7].Result = Result{CountBefore: 1}
			}
			seen := make([]bool, len(c.Hits))
			for to, p := range s.divideByServer(c) {
				for i, of := range p.wholeCallIndexes {
					if string(p.Key(i)) != string(c.Key(int(of))) || s.Table().nodeOfSlot[slotOf(p.Key(i))] != to.node {
						t.Fatalf("hit %d is with the wrong node", of)
					}
					seen[of] = true
				}
				if together {
					checkGroups(t, p)
				} else if !slices.IsSorted(p.wholeCallIndexes) {
					t.Errorf("hits %v are not in order", p.wholeCallIndexes)
				}
			}
			for i, ok := range seen {
				if answered := i%7 == 0 && i < 140; ok == answered {
					t.Errorf("hit %d is sent: %v", i, ok)
				}
			}
		})
	}
}

// checkGroups checks that p consists of groups of one slot, each whole and in order.
func checkGroups(t *testing.T, p *Call) {
	t.Helper()
	for i := 0; i < len(p.Hits); {
		end := p.Hits[i].GroupEnd
		if group := p.wholeCallIndexes[i:end]; len(group) < 8 || !slices.IsSorted(group) {
			t.Errorf("a group of hits %v", group)
		}
		for j := i; j < end; j++ {
			if slotOf(p.Key(j)) != slotOf(p.Key(i)) || p.Hits[j].GroupEnd != end {
				t.Errorf("a group has two slots")
			}
		}
		i = end
	}
}

// A group that was not sent goes to the next primary whole, whatever slots its keys
// would be in.
func TestGroupsStayWhole(t *testing.T) {
	t.Parallel()
	s := fakeStore(10)
	only := &Node{store: s}
	s.table.Store(&Table{
		Layout: Layout{SlotOfKey: func([]byte) int { return 0 }}, nodeOfSlot: []*Node{only},
		replacedSignal: make(chan struct{}),
	})
	c := callOf(CommandCost, true, "{1}a", "{2}b")
	c.failAllHits(errUnsent)
	parts := s.divideByServer(c)
	if p := parts[partDestination{node: only}]; len(parts) != 1 || p == nil || len(p.Hits) != 2 ||
		p.Hits[0].GroupEnd != 2 {
		t.Errorf("got %d parts: %+v", len(parts), parts)
	}
}
