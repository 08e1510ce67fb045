package propose

import (
	"cmp"
	"maps"
	"math"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/siphash"
)

// usage is what the subjects of one rule used, in bounded memory.
//
// All subjects are followed until a sampler needs room. Then a subject stays if a hash of its counter's name ends with
// one more zero bit, so that half of them stay. A window counts 1<<halvings times, as much as the sample is smaller.
type usage struct {
	subjects map[uint64]subject // by the hash of the counter's name
	halvings int
	hits     uint64 // of all subjects
	finished histogram
	busiest  string // the subject with the largest peak
	peak     uint64 // that of busiest
}

// subject is what one counter was charged.
type subject struct {
	end  int64  // that of the current window, in nanoseconds since the Unix epoch
	used uint64 // in the current window
	peak uint64 // in any window
}

// sampler bounds the subjects of all rules together.
type sampler struct {
	max   int // the most subjects
	count int
	rules []*usage // those with hits
}

// maxSubjects is the most subjects that are followed, with 350 MB of memory in a run with that many of one rule.
const maxSubjects = 1_000_000

// hashKey is constant, so that each run has the same sample.
var hashKey = siphash.Key{0x70726f706f736520, 0x6c696d6974732e2e}

type hit struct {
	counter []byte
	limit   *algorithm.Limit
	at      int64 // in nanoseconds since the Unix epoch
	amount  uint64
}

// add counts a hit on a rule. name returns the subject for people.
func (s *sampler) add(u *usage, h hit, name func() string) {
	u.hits += h.amount
	hash, _ := hashKey.Sum128(0, h.counter)
	if !u.chooses(hash) {
		return
	}
	now, known := u.subjects[hash]
	if !known {
		if s.makeRoom(); !u.chooses(hash) {
			return
		}
		if u.subjects == nil {
			u.subjects, u.finished = make(map[uint64]subject), make(histogram)
			s.rules = append(s.rules, u)
		}
		s.count++
	}
	end, isCurrent := window(h.limit, now.end, h.at)
	if !isCurrent {
		u.finished.add(now.used, 1<<u.halvings)
		now.end, now.used = end, 0
	}
	now.used += h.amount
	if now.used > now.peak {
		if now.peak = now.used; now.peak > u.peak {
			u.peak, u.busiest = now.peak, name()
		}
	}
	u.subjects[hash] = now
}

// window returns the end of the window for a hit, and whether the window that ends at current is that one.
func window(limit *algorithm.Limit, current, at int64) (end int64, isCurrent bool) {
	if limit.Kind == algorithm.FirstHitWindow {
		period := int64(limit.Period)
		if current > at && current-period <= at {
			return current, true
		}
		return at + period, false
	}
	_, end = limit.WindowBounds(at)
	return end, end == current
}

// chooses reports whether the subject with this hash is in the sample.
func (u *usage) chooses(hash uint64) bool { return hash&(1<<u.halvings-1) == 0 }

// makeRoom halves the largest samples until there is room for one more subject.
func (s *sampler) makeRoom() {
	for s.count >= s.max {
		largest := slices.MaxFunc(s.rules, func(a, b *usage) int { return cmp.Compare(len(a.subjects), len(b.subjects)) })
		before := len(largest.subjects)
		largest.halvings++
		maps.DeleteFunc(largest.subjects, func(hash uint64, _ subject) bool { return !largest.chooses(hash) })
		s.count -= before - len(largest.subjects)
	}
}

// finish ends all windows, and returns the peak of each subject of the sample, the smallest first.
func (u *usage) finish() (peaks []uint64) {
	for _, s := range u.subjects {
		u.finished.add(s.used, 1<<u.halvings)
		peaks = append(peaks, s.peak)
	}
	slices.Sort(peaks)
	return peaks
}

// histogram counts windows by what was used in them. Its keys are the upper edges of ranges: up to 1,000 each number
// has a range, and above, all numbers with the same first three digits share one.
type histogram map[uint64]bin

type bin struct{ windows, used uint64 }

// add counts windows in each of which so many units were used. It ignores windows without any.
func (h histogram) add(used, windows uint64) {
	if used > 0 {
		edge := roundUp(used, 1000)
		b := h[edge]
		h[edge] = bin{b.windows + windows, b.used + used*windows}
	}
}

// roundUp returns the smallest number from n up that is at most most times a power of ten.
func roundUp(n, most uint64) uint64 {
	for power := uint64(1); ; power *= 10 {
		if up := (n + power - 1) / power; up <= most {
			return up * power
		}
	}
}

func (h histogram) edges() []uint64 { return slices.Sorted(maps.Keys(h)) }

// windows returns how many windows there are.
func (h histogram) windows() (n uint64) {
	for _, b := range h {
		n += b.windows
	}
	return n
}

// percentile returns what is used in percent of the windows at most; at most 1 % too high.
func (h histogram) percentile(percent float64) uint64 {
	left := uint64(math.Ceil(float64(h.windows()) * percent / 100))
	for _, edge := range h.edges() {
		n := h[edge].windows
		if n >= left {
			return edge
		}
		left -= n
	}
	return 0
}

// refusedPercent returns how much of the use a limit per window would have refused. It is exact if limit is an edge.
func (h histogram) refusedPercent(limit uint64) float64 {
	var refused, all float64
	for edge, b := range h {
		all += float64(b.used)
		if edge > limit {
			refused += max(0, float64(b.used)-float64(b.windows)*float64(limit))
		}
	}
	return percentOf(refused, all)
}

func percentOf(part, all float64) float64 {
	if all == 0 {
		return 0
	}
	return 100 * part / all
}
