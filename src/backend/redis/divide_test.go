package redis

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/mediocregopher/radix/v4"

	"ratelimit/src/algorithm"
)

// clusterOf is a store that believes in a cluster of so many nodes, without any
// connection.
func clusterOf(tb testing.TB, nodes int) *Store {
	tb.Helper()
	s, err := New(Config{Cluster: []string{"127.0.0.1:1"}})
	if err != nil {
		tb.Fatal(err)
	}
	list := make([]*node, nodes)
	for i := range list {
		list[i] = &node{seed: s.seed}
	}
	t := &table{slots: new([numSlots]*node), replaced: make(chan struct{})}
	for slot := range t.slots {
		t.slots[slot] = list[slot%nodes]
	}
	s.table.Store(t)
	return s
}

// The cost of dividing a call is linear in its charges: each row costs about twice as
// much as the one above.
func BenchmarkDivide(b *testing.B) {
	for _, bb := range []struct {
		name     string
		nodes    int
		together bool
	}{
		{"alone", 3, false}, {"group", 3, true}, {"alone", 1000, false}, {"group", 1000, true},
	} {
		for _, charges := range []int{250, 500, 1000, 2000, 4000} {
			b.Run(fmt.Sprintf("%s/nodes=%d/charges=%d", bb.name, bb.nodes, charges), func(b *testing.B) {
				s := clusterOf(b, bb.nodes)
				batch := many(charges, algorithm.GCRA, "k", bb.together)
				c := s.stats.call()
				c.fill(batch, epoch.UnixNano(), 0, false)
				b.ReportAllocs()
				for b.Loop() {
					c.fail(errUnsent)
					for _, p := range s.divide(b.Context(), c) {
						s.stats.release(p.call)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(charges), "ns/charge")
			})
		}
	}
}

// Charges on one key, alternately added up and looked at, cost the same however many
// there are.
func BenchmarkPipelineOfOneKey(b *testing.B) {
	for _, hits := range []int{1000, 2000, 4000, 8000} {
		b.Run(fmt.Sprint(hits), func(b *testing.B) {
			s := clusterOf(b, 1)
			batch := many(hits, algorithm.FixedWindow, "k", false)
			for i := range batch.Hits {
				batch.Hits[i].Key = []byte("k_")
				if i%2 > 0 {
					batch.Hits[i].Op = algorithm.Look
				}
			}
			c := s.stats.call()
			c.fill(batch, epoch.UnixNano(), 0, false)
			p := pipeline{seed: s.seed}
			b.ReportAllocs()
			for b.Loop() {
				p.reset(hits)
				c.next = 0
				p.add(c, time.Hour, 0)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(hits), "ns/hit")
		})
	}
}

// Every charge goes to the node that has its key, in order, and the charges of a
// group that share a slot stay together.
func TestDivide(t *testing.T) {
	for _, together := range []bool{false, true} {
		t.Run(fmt.Sprint("together ", together), func(t *testing.T) {
			s := clusterOf(t, 3)
			b := many(200, algorithm.GCRA, "k", together)
			for i := range b.Hits {
				b.Hits[i].Key = fmt.Appendf(nil, "{%d}%d_", i%20, i)
			}
			c := s.stats.call()
			c.fill(b, epoch.UnixNano(), 0, false)
			c.fail(errUnsent)
			for i := range 20 { // these have an answer
				c.results[i*7] = result{before: 1}
			}
			seen := make([]bool, len(b.Hits))
			for _, p := range s.divide(t.Context(), c) {
				for i, of := range p.of {
					slot := radix.ClusterSlot(p.key(i))
					if string(p.key(i)) != string(c.key(int(of))) || s.table.Load().slots[slot] != p.node {
						t.Fatalf("hit %d is with the wrong node", of)
					}
					seen[of] = true
				}
				for i := 0; i < len(p.hits); {
					end := p.hits[i].last
					group := p.of[i:end]
					if together && len(group) < 8 || !together && len(group) != 1 || !slices.IsSorted(group) {
						t.Errorf("a group of hits %v", group)
					}
					for j := i; j < end; j++ {
						if radix.ClusterSlot(p.key(j)) != radix.ClusterSlot(p.key(i)) || p.hits[j].last != end {
							t.Errorf("a group has two slots")
						}
					}
					i = end
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
