package algorithm

import "testing"

// firstHits is the world of a first-hit window: it goes through all that was
// counted to find which hit began the window.
type firstHits struct {
	limit  *Limit
	events []event
	now    int64
}

func (w *firstHits) see(at int64) int64 {
	w.now = at
	return at
}

// window is when the last window started, and its count. Each event that finds a
// window which started later than now, by a clock that stepped back, moves its start.
func (w *firstHits) window() (began int64, count uint64) {
	for i, e := range w.events {
		if i == 0 || e.at >= began+int64(w.limit.Period) {
			count, began = 0, e.at
		}
		began = min(began, e.at)
		if e.give {
			count -= e.amount
		} else {
			count += e.amount
		}
	}
	return min(began, w.now), count
}

// windowEnd is 0 unless a hit that was counted began a window that goes on, even if all was given back.
func (w *firstHits) windowEnd() int64 {
	began, _ := w.window()
	if end := began + int64(w.limit.Period); len(w.events) > 0 && w.now < end {
		return end
	}
	return 0
}

func (w *firstHits) count(d int64) uint64 {
	began, count := w.window()
	if w.now+d >= began+int64(w.limit.Period) {
		return 0
	}
	return count
}

// setBack is an event of no amount in a window that there is.
func (w *firstHits) setBack() {
	began, _ := w.window()
	if len(w.events) > 0 && w.now < began+int64(w.limit.Period) {
		w.events = append(w.events, event{at: w.now})
	}
}

func (w *firstHits) refused(d int64, amount uint64) (count, interval bool) {
	return w.count(d)+amount > w.limit.Max, false
}

func (w *firstHits) fresh(d int64) bool { return w.count(d) == 0 }

func (w *firstHits) add(amount uint64) {
	w.events = append(w.events, event{at: w.now, amount: amount})
}

func (w *firstHits) give(amount uint64) uint64 {
	given := min(amount, w.count(0))
	if given > 0 {
		w.events = append(w.events, event{at: w.now, amount: given, give: true})
	}
	return given
}

func (w *firstHits) horizon() int64 { return int64(w.limit.Period) }

func playFirstHit(t *testing.T, script []byte) {
	against(t, FirstHitWindow, script, func(tl *timeline) []world { return []world{&firstHits{limit: &tl.limit}} })
}

func TestFirstHitAgainstSimulator(t *testing.T) { randomly(t, 500, playFirstHit) }

func FuzzTakeFirstHit(f *testing.F) {
	seedCorpus(f)
	f.Fuzz(playFirstHit)
}
