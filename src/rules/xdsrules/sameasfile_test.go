//go:build !race

package xdsrules

import (
	"math/rand/v2"
	"testing"
)

// TestSameAsFile builds resources at random, of parts that often fit together.
func TestSameAsFile(t *testing.T) {
	rounds, good := 3000, 0
	if testing.Short() {
		rounds = 1000
	}
	for i := range rounds {
		b := builder{rand.New(rand.NewPCG(1, uint64(i)))}
		if sameAsFile(t, b.anyOf()) {
			good++
		}
	}
	if good < rounds/20 || good > rounds*9/10 {
		t.Errorf("%d of %d were good: the test says little", good, rounds)
	}
}
