package simulate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestBusiestIsExactForFewKeys(t *testing.T) {
	var b busiest
	if key, hits, exact := b.most(); key != "" || hits != 0 || !exact {
		t.Errorf("of nothing: %s %d %t", key, hits, exact)
	}
	random := rand.New(rand.NewPCG(1, 2))
	want := make(map[string]uint64)
	for range 50_000 {
		key := fmt.Sprintf("key %d", int(maxCounted*random.Float64()*random.Float64()))
		n := random.Uint64N(10)
		want[key] += n
		b.add([]byte(key), n)
	}
	for _, c := range b.heap {
		if c.hits != want[c.key] || c.above != 0 || b.places[c.hash] >= len(b.heap) || b.heap[b.places[c.hash]].key != c.key {
			t.Fatalf("%+v, want %d", c, want[c.key])
		}
	}
	key, hits, exact := b.most()
	for other, n := range want {
		if n > hits || !exact || want[key] != hits {
			t.Fatalf("%s %d %t, but %s %d", key, hits, exact, other, n)
		}
	}
}

// With more keys than maxCounted, each key with more than a maxCounted-th of all hits is
// kept, and a count is too high by at most above.
func TestBusiestIsBounded(t *testing.T) {
	var b busiest
	random := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(random, 1.1, 1, 1<<20)
	want := make(map[string]uint64)
	all := uint64(0)
	for i := range 200_000 {
		key := fmt.Sprint("key ", zipf.Uint64())
		if i%10 == 0 {
			key = fmt.Sprint("never again ", i)
		}
		want[key]++
		all++
		b.add([]byte(key), 1)
	}
	if len(b.heap) != maxCounted || len(b.places) != maxCounted {
		t.Errorf("%d keys are kept", len(b.heap))
	}
	kept := make(map[string]bool)
	for _, c := range b.heap {
		kept[c.key] = true
		if n := want[c.key]; n > c.hits || n < c.hits-c.above {
			t.Errorf("%+v, but there were %d", c, n)
		}
	}
	for key, n := range want {
		if n > all/maxCounted && !kept[key] {
			t.Errorf("%s with %d hits is not there", key, n)
		}
	}
	if key, hits, _ := b.most(); want[key] < all/20 || hits < want[key] {
		t.Errorf("%s with %d", key, hits)
	}
}

func TestBusiestKeepsLittleOfLongKeys(t *testing.T) {
	var b busiest
	long := strings.Repeat("x", 1<<20)
	b.add([]byte(long+"1"), 1)
	b.add([]byte(long+"2"), 2)
	if key, hits, _ := b.most(); len(key) != maxShown+3 || hits != 2 || len(b.heap) != 2 {
		t.Errorf("%d bytes, %d hits", len(key), hits)
	}
}
