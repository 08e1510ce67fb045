package algorithm

import (
	"slices"
	"testing"
)

// logged is the world of a sliding window: all that was recorded, one entry for
// each instant, oldest first.
type logged struct {
	limit *Limit
	// stored are the events, and events the same as the clock sees them: those of the future are of now.
	stored, events []event
	now            int64
	// forgets is what the arithmetic does after each hit it records: an entry goes
	// when those after it are more than the limit, or when no hit can meet it any
	// more. The next count shows the former, and so does what can be given back;
	// a clock that stepped back may show the latter.
	forgets, added bool
}

func (w *logged) see(at int64) int64 {
	if w.added && w.forgets {
		w.forget()
		w.setBack()
	}
	w.added = false
	w.now, w.events = at, nil
	for _, e := range w.stored {
		w.append(min(e.at, at), e.amount)
	}
	return w.now
}

// setBack keeps the events as the clock sees them.
func (w *logged) setBack() { w.stored = slices.Clone(w.events) }

// append adds to the newest event, or makes a new one.
func (w *logged) append(at int64, amount uint64) {
	if n := len(w.events); n > 0 && w.events[n-1].at == at {
		w.events[n-1].amount += amount
	} else {
		w.events = append(w.events, event{at: at, amount: amount})
	}
}

func (w *logged) live(e event, d int64) bool { return e.at > w.now+d-int64(w.limit.Period) }

func (w *logged) count(d int64) uint64 {
	var count uint64
	for _, e := range w.events {
		if w.live(e, d) {
			count += e.amount
		}
	}
	return count
}

func (w *logged) refused(d int64, amount uint64) (count, interval bool) {
	for _, e := range w.events {
		interval = interval || w.now+d-e.at < int64(w.limit.MinInterval)
	}
	return w.count(d)+amount > w.limit.Max, interval
}

func (w *logged) fresh(d int64) bool {
	_, interval := w.refused(d, 0)
	return w.count(d) == 0 && !interval
}

func (w *logged) add(amount uint64) {
	w.added = true
	w.append(w.now, amount)
	w.setBack()
}

func (w *logged) forget() {
	old := func(e event) bool { return w.now-e.at >= int64(max(w.limit.Period, w.limit.MinInterval)) }
	for ; ; w.events = w.events[1:] {
		var after uint64
		for _, e := range w.events[1:] {
			after += e.amount
		}
		if after <= w.limit.Max && !old(w.events[0]) {
			return
		}
	}
}

// give takes the newest.
func (w *logged) give(amount uint64) uint64 {
	given := min(amount, w.count(0))
	for left := given; left > 0; {
		last := &w.events[len(w.events)-1]
		taken := min(last.amount, left)
		left -= taken
		if last.amount -= taken; last.amount == 0 {
			w.events = w.events[:len(w.events)-1]
		}
	}
	if given > 0 {
		w.setBack()
	}
	return given
}

func (w *logged) horizon() int64 { return int64(max(w.limit.Period, w.limit.MinInterval)) }

func playSliding(t *testing.T, script []byte) {
	against(t, SlidingWindow, script, func(tl *timeline) []world {
		return []world{&logged{limit: &tl.limit, forgets: true}}
	})
}

func TestSlidingAgainstSimulator(t *testing.T) { randomly(t, 1000, playSliding) }

func FuzzTakeSliding(f *testing.F) {
	seedCorpus(f)
	f.Fuzz(playSliding)
}

// What is forgotten is not missed: a world that forgets nothing decides the same
// as long as nothing is given back. Only the counts are higher, where both are
// above the limit.
func TestSlidingForgetsOnlyWhatDoesNotMatter(t *testing.T) {
	randomly(t, 700, func(t *testing.T, script []byte) {
		tl, ok := decode(SlidingWindow, script)
		if !ok {
			t.Fatal("a bad script")
		}
		tl.back, tl.give, tl.force = false, false, true
		c := &counter{limit: &tl.limit}
		w := &logged{limit: &tl.limit}
		tl.play(func(m moment) Outcome {
			v := c.apply(m.at, m.op, m.amount)
			want := ask(w, &tl.limit, m.at, m.op, m.amount)
			for _, counts := range [][2]uint64{{v.Before, want.Before}, {v.After, want.After}} {
				if counts[0] > counts[1] || min(counts[0], tl.limit.Max+1) != min(counts[1], tl.limit.Max+1) {
					t.Fatalf("%v of %d at %d, limit %+v:\n got %+v\nwant %+v", m.op, m.amount, m.at, tl.limit, v, want)
				}
			}
			want.Before, want.After = v.Before, v.After
			if v != want {
				t.Fatalf("%v of %d at %d, limit %+v:\n got %+v\nwant %+v", m.op, m.amount, m.at, tl.limit, v, want)
			}
			return v
		})
	})
}
