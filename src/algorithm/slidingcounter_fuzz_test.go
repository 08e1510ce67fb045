package algorithm

import (
	"math/big"
	"testing"
)

// estimated is the world of a sliding window counter: it adds up all that was
// counted window by window, and estimates in exact fractions.
type estimated struct {
	limit  *Limit
	events []event
	counts map[int64]uint64 // by the window's number
	window int64
	// elapsed is how much of the window has gone by.
	elapsed int64
}

func (w *estimated) see(at int64) int64 {
	period := int64(w.limit.Period)
	w.counts = make(map[int64]uint64)
	move := func(at int64) {
		w.window, w.elapsed = w.place(at), at%period
		if w.window > at/period { // the clock stepped back
			w.elapsed = 0
		}
	}
	for _, e := range w.events {
		move(e.at)
		if e.give {
			w.counts[w.window] -= e.amount
		} else {
			w.counts[w.window] += e.amount
		}
	}
	move(at)
	return w.window*period + w.elapsed
}

// place is the window that at is counted in: its own, or the last one if that
// is later and anything still counts. What has stopped counting never does again.
func (w *estimated) place(at int64) int64 {
	own := at / int64(w.limit.Period)
	if w.counts[w.window] == 0 && w.counts[w.window-1] == 0 {
		clear(w.counts)
		return own
	}
	return max(own, w.window)
}

// estimate is the numerator of the count; the denominator is the period.
func (w *estimated) estimate(d int64) *big.Int {
	period := int64(w.limit.Period)
	window, elapsed := w.window+(w.elapsed+d)/period, (w.elapsed+d)%period
	sum := times(w.counts[window-1], period-elapsed)
	return sum.Add(sum, times(w.counts[window], period))
}

func times(n uint64, m int64) *big.Int {
	product := new(big.Int).SetUint64(n)
	return product.Mul(product, big.NewInt(m))
}

func (w *estimated) count(d int64) uint64 { return ceil(w.estimate(d), int64(w.limit.Period)) }

// refused is exact: it rounds nothing.
func (w *estimated) refused(d int64, amount uint64) (count, interval bool) {
	period := int64(w.limit.Period)
	with := times(amount, period)
	return with.Add(with, w.estimate(d)).Cmp(times(w.limit.Max, period)) > 0, false
}

func (w *estimated) fresh(d int64) bool { return w.estimate(d).Sign() == 0 }

func (w *estimated) add(amount uint64) {
	w.events = append(w.events, event{at: w.window*int64(w.limit.Period) + w.elapsed, amount: amount})
	w.counts[w.window] += amount
}

// give takes from the current window only.
func (w *estimated) give(amount uint64) uint64 {
	given := min(amount, w.counts[w.window])
	if given > 0 {
		w.events = append(w.events, event{at: w.window*int64(w.limit.Period) + w.elapsed, amount: given, give: true})
		w.counts[w.window] -= given
	}
	return given
}

func (w *estimated) horizon() int64 { return 2*int64(w.limit.Period) - w.elapsed }

func playSlidingCounter(t *testing.T, script []byte) {
	against(t, SlidingWindowCounter, script, func(tl *timeline) []world { return []world{&estimated{limit: &tl.limit}} })
}

func TestSlidingCounterAgainstSimulator(t *testing.T) { randomly(t, 300, playSlidingCounter) }

func FuzzTakeSlidingCounter(f *testing.F) {
	seedCorpus(f)
	f.Fuzz(playSlidingCounter)
}
