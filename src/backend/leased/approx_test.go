package leased

import (
	"math/rand/v2"
	"testing"
)

// An approx is never on the wrong side of the number, and off by less than an eighth of it.
func TestApprox(t *testing.T) {
	check := func(n uint32) {
		below, above := approxBelow(n).units(), approxAbove(n).units()
		if below > n || uint64(n-below)*8 > uint64(n) || n < 16 && below != n {
			t.Errorf("%d is said to be at least %d", n, below)
		}
		if top := approxBelow(1<<32 - 1).units(); above < min(n, top) || uint64(max(above, n)-n)*8 > uint64(n) {
			t.Errorf("%d is said to be at most %d", n, above)
		}
	}
	for n := range uint32(5000) {
		check(n)
		check(1<<32 - 1 - n)
	}
	for range 10_000 {
		check(rand.Uint32() >> rand.IntN(32))
	}
	for a := approx(1); a < approxBelow(1<<32-1); a++ {
		if a.units() <= (a-1).units() || approxBelow(a.units()) != a || approxAbove(a.units()) != a {
			t.Errorf("%d stands for %d", a, a.units())
		}
	}
}
