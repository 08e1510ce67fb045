//go:build !race

package subjects

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"
)

// zipf draws ranks from 0 up, with probabilities proportional to 1/(rank+1)^exponent.
type zipf struct {
	cumulative []float64
	random     *rand.Rand
}

func newZipf(n int, exponent float64, random *rand.Rand) *zipf {
	z := &zipf{make([]float64, n), random}
	sum := 0.0
	for i := range z.cumulative {
		sum += math.Pow(float64(i+1), -exponent)
		z.cumulative[i] = sum
	}
	return z
}

func (z *zipf) draw() int {
	return sort.SearchFloat64s(z.cumulative, z.random.Float64()*z.cumulative[len(z.cumulative)-1])
}

// Of a Zipf load of a million subjects, at more than the rate of samples, at least 95 % of the true top 20 of each kind
// and window are found. Users are denied by another Zipf law, so that their order differs.
func TestRecall(t *testing.T) {
	t.Parallel()
	const subjects, perSecond, seconds, seed = 1_000_000, 20_000, 75, 1
	tracker, set := seededTracker(t, 4, seed, twoRules)
	random := rand.New(rand.NewPCG(seed, 2))
	passed, denied := newZipf(subjects, 1.1, random), newZipf(subjects, 1.1, random)
	values := make([][]byte, subjects)
	for i, n := range random.Perm(subjects) {
		values[i] = fmt.Appendf(nil, "user-%d", n)
	}
	q := newQuestion(set, 0)
	// These have the true numbers: of the whole hour, and of each second.
	var hour [kindCount]map[int]int
	minute := make([][kindCount]map[int]int, seconds)
	count := func(second int, kind Kind, subject int) {
		if minute[second][kind] == nil {
			minute[second][kind] = make(map[int]int)
		}
		minute[second][kind][subject]++
		if hour[kind] == nil {
			hour[kind] = make(map[int]int)
		}
		hour[kind][subject]++
	}
	start := time.Date(2026, 1, 1, 12, 0, 17, 0, time.UTC)
	now := start
	for second := range seconds {
		for range 4 {
			tracker.advance(now)
			now = now.Add(samplingInterval)
			for range perSecond / 4 {
				subject, isDenied := passed.draw(), random.IntN(4) == 0
				if isDenied {
					subject = subjects - 1 - denied.draw()
					count(second, DeniedHits, subject)
				}
				count(second, Hits, subject)
				q.set(values[subject], 1, isDenied)
				tracker.Record(&q.req, &q.a)
			}
		}
	}
	for _, kind := range []Kind{Hits, DeniedHits} {
		lastMinute := make(map[int]int)
		for _, s := range minute[seconds-60:] {
			for subject, n := range s[kind] {
				lastMinute[subject] += n
			}
		}
		for window, truth := range []map[int]int{lastMinute, hour[kind]} {
			top := tracker.Top(now, Query{Kind: kind, Window: Window(window), Limit: 20})
			found := 0
			for _, subject := range trueTop(truth, 20) {
				want := "user=" + string(values[subject])
				i := slices.IndexFunc(top, func(s Subject) bool { return s.Subject == want })
				if i < 0 {
					continue
				}
				found++
				if r := float64(top[i].Hits) / float64(truth[subject]); r < 0.8 || r > 1.25 {
					t.Errorf("kind %d, window %d: %s has %d hits, estimated as %d", kind, window, want,
						truth[subject], top[i].Hits)
				}
			}
			if found < 19 { // 95 %
				t.Errorf("kind %d, window %d: %d of the top 20 found", kind, window, found)
			}
		}
	}
}

// trueTop returns the n subjects with the most hits.
func trueTop(hits map[int]int, n int) []int {
	var list []int
	for subject := range hits {
		list = append(list, subject)
	}
	slices.SortFunc(list, func(a, b int) int { return hits[b] - hits[a] })
	return list[:n]
}
