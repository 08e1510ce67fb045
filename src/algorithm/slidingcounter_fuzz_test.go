package algorithm

import (
	"maps"
	"math/big"
	"testing"
)

// estimated is the world of a sliding window counter: it has what was counted in
// each window, and estimates in exact fractions.
type estimated struct {
	limit *Limit
	// stored is what was counted by the number of the window, of which storedWindow is the last.
	stored       map[int64]uint64
	storedWindow int64
	// counts is the same as the clock sees it: what a later window counts is of the current one.
	counts map[int64]uint64
	window int64
	// elapsed is how much of the window has gone by.
	elapsed int64
}

func (w *estimated) see(at int64) int64 {
	period := int64(w.limit.Period)
	w.window, w.elapsed, w.counts = at/period, at%period, maps.Clone(w.stored)
	if w.counts == nil {
		w.counts = make(map[int64]uint64)
	}
	if w.storedWindow > w.window {
		w.counts = map[int64]uint64{w.window: w.stored[w.storedWindow] + w.stored[w.storedWindow-1]}
	}
	return at
}

// store keeps the counts of the last two windows.
func (w *estimated) store() {
	w.storedWindow = w.window
	w.stored = map[int64]uint64{w.window: w.counts[w.window], w.window - 1: w.counts[w.window-1]}
}

func (w *estimated) setBack() {
	if w.storedWindow > w.window {
		w.store()
	}
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
	w.counts[w.window] += amount
	w.store()
}

// give takes from the current window only.
func (w *estimated) give(amount uint64) uint64 {
	given := min(amount, w.counts[w.window])
	if given > 0 {
		w.counts[w.window] -= given
		w.store()
	}
	return given
}

func (w *estimated) windowEnd() int64 { return (w.window + 1) * int64(w.limit.Period) }

func (w *estimated) horizon() int64 { return 2*int64(w.limit.Period) - w.elapsed }

func playSlidingCounter(t *testing.T, script []byte) {
	against(t, SlidingWindowCounter, script, func(tl *timeline) []world { return []world{&estimated{limit: &tl.limit}} })
}

func TestSlidingCounterAgainstSimulator(t *testing.T) { randomly(t, 300, playSlidingCounter) }

func FuzzTakeSlidingCounter(f *testing.F) {
	seedCorpus(f)
	f.Fuzz(playSlidingCounter)
}
