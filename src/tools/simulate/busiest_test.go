package simulate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestBusiestIsExactForFewKeys(t *testing.T) {
	var b keyCounts
	if key, hits, tooHigh := b.busiest(); key != "" || hits != 0 || tooHigh != 0 {
		t.Errorf("of nothing: %s %d %d", key, hits, tooHigh)
	}
	random := rand.New(rand.NewPCG(1, 2))
	want := make(map[string]uint64)
	for range 50_000 {
		key := fmt.Sprintf("key %d", int(maxCountedKeys*random.Float64()*random.Float64()))
		n := random.Uint64N(10)
		want[key] += n
		b.add([]byte(key), n)
	}
	for _, c := range b.fewestFirst {
		if c.hits != want[c.key] || c.tooHigh != 0 || b.indexByHash[c.hash] >= len(b.fewestFirst) ||
			b.fewestFirst[b.indexByHash[c.hash]].key != c.key {
			t.Fatalf("%+v, want %d", c, want[c.key])
		}
	}
	key, hits, tooHigh := b.busiest()
	for other, n := range want {
		if n > hits || tooHigh != 0 || want[key] != hits {
			t.Fatalf("%s %d %d, but %s %d", key, hits, tooHigh, other, n)
		}
	}
}

// With more keys than maxCountedKeys, each key with more than a maxCountedKeys-th of all hits is
// kept, and a count is too high by at most tooHigh.
func TestBusiestIsBounded(t *testing.T) {
	var b keyCounts
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
	if len(b.fewestFirst) != maxCountedKeys || len(b.indexByHash) != maxCountedKeys {
		t.Errorf("%d keys are kept", len(b.fewestFirst))
	}
	kept := make(map[string]bool)
	for _, c := range b.fewestFirst {
		kept[c.key] = true
		if n := want[c.key]; n > c.hits || n < c.hits-c.tooHigh {
			t.Errorf("%+v, but there were %d", c, n)
		}
	}
	for key, n := range want {
		if n > all/maxCountedKeys && !kept[key] {
			t.Errorf("%s with %d hits is not there", key, n)
		}
	}
	if key, hits, _ := b.busiest(); want[key] < all/20 || hits < want[key] {
		t.Errorf("%s with %d", key, hits)
	}
}

func TestBusiestKeepsLittleOfLongKeys(t *testing.T) {
	var b keyCounts
	long := strings.Repeat("x", 1<<20)
	b.add([]byte(long+"1"), 1)
	b.add([]byte(long+"2"), 2)
	if key, hits, _ := b.busiest(); len(key) != maxKeyBytes+3 || hits != 2 || len(b.fewestFirst) != 2 {
		t.Errorf("%d bytes, %d hits", len(key), hits)
	}
}
