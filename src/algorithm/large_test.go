package algorithm

import (
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

// Limits above 2^32 are counted as the simulators do, whose numbers are as large as they need.
func TestLargeAgainstSimulators(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(2, 2))
	for range 500 {
		script := random(rnd)
		script[3] = byte(firstLarge + rnd.IntN(len(largeLimits)))
		playFirstHit(t, script)
		playSlidingCounter(t, script)
		playGCRA(t, script)
	}
}

// A fixed window is compared with a sum of any size.
func TestLargeFixedWindow(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(3, 3))
	for range 2000 {
		l := Limit{Max: largeLimits[rnd.IntN(len(largeLimits))], Period: 30 * 24 * time.Hour, CountBlocked: rnd.IntN(2) == 0}
		limit, sum, state := new(big.Int).SetUint64(l.Max), new(big.Int), FixedState{}
		for range 40 {
			op, amount := Op(rnd.IntN(int(numOps))), rnd.Uint64N(1<<rnd.IntN(49)+1)
			if rnd.IntN(4) == 0 {
				amount = min(l.Max, MaxAmount)
			}
			hit := new(big.Int).SetUint64(amount)
			with := new(big.Int).Add(sum, hit)
			over := op.CanBeRefused() && with.Cmp(limit) > 0
			v := state.Take(&l, thursday.UnixNano(), op, amount)
			switch before := new(big.Int).SetUint64(v.Before); {
			case before.Cmp(sum) != 0 || v.Over != over:
				t.Fatalf("%v of %d on %v of %v: %+v", op, amount, sum, limit, v)
			case op == Force, op == Charge && (!over || l.CountBlocked):
				sum = with
			case op == Refund:
				if sum.Sub(sum, hit); sum.Sign() < 0 {
					sum.SetInt64(0)
				}
			}
			left := new(big.Int).Sub(limit, sum)
			if left.Sign() < 0 || over {
				left.SetInt64(0)
			}
			if new(big.Int).SetUint64(v.After).Cmp(sum) != 0 || new(big.Int).SetUint64(v.Remaining).Cmp(left) != 0 {
				t.Fatalf("%v of %d leaves %v of %v: %+v", op, amount, left, limit, v)
			}
		}
	}
}

// A month's budget of 100,000 dollars in micro-dollars is spent to the last one, with charges of 1 to 10^9.
func TestBudgetInMicroDollars(t *testing.T) {
	t.Parallel()
	const budget = 100_000 * 1_000_000
	for _, kind := range []Kind{FixedWindow, FirstHitWindow, SlidingWindowCounter, GCRA} {
		l := Limit{Kind: kind, Max: budget, Period: 30 * 24 * time.Hour}
		if kind == GCRA {
			l.Burst = budget - 1
		}
		if err := l.Validate(); err != nil {
			t.Fatal(err)
		}
		rnd, at, left := rand.New(rand.NewPCG(4, 4)), thursday.UnixNano(), uint64(budget)
		var st State
		for left > 0 {
			amount := 1 + rnd.Uint64N(1<<rnd.IntN(30))
			v := st.Take(&l, at, Charge, amount)
			if v.Over != (amount > left) {
				t.Fatalf("%v: %d of %d left: %+v", kind, amount, left, v)
			}
			if !v.Over {
				left -= amount
			}
			if look := st.Take(&l, at, Look, 0); look.Remaining != left || look.Before != budget-left {
				t.Fatalf("%v: %d left: %+v", kind, left, look)
			}
		}
		if v := st.Take(&l, at, Charge, 1); !v.Over {
			t.Errorf("%v: %+v", kind, v)
		}
	}
}
