package candidate_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/candidate"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
)

// judgedCount is a candidate.Recorder that only counts.
type judgedCount struct{ atomic.Uint64 }

func (c *judgedCount) RecordCandidate(_ *limiter.Request, _, _ *limiter.Answer, _ candidate.Judgement) {
	c.Add(1)
}

// otherNumbers and otherWindows change all rules, so that none is the same.
var (
	otherNumbers = strings.NewReplacer("requests_per_unit: 1", "requests_per_unit: 3", "requests_per_unit: 2",
		"requests_per_unit: 4")
	otherWindows = strings.NewReplacer("unit: minute", "unit: hour", "unit: hour", "unit: minute")
)

// candidateOf returns rules with other numbers.
func candidateOf(tb testing.TB, text string) *rules.Set {
	tb.Helper()
	return load(tb, otherNumbers.Replace(text))
}

// BenchmarkCandidate compares a decision without a candidate, with one whose rules are the same, with one whose rules
// all have other numbers, and with one whose rules all have other windows. They take turns, so that other work on the
// machine slows all of them alike. It reports the medians.
func BenchmarkCandidate(b *testing.B) {
	for _, ask := range []string{"gold=x", "gold=x silver=x trial=x path=/pay,user=x"} {
		b.Run(fmt.Sprintf("descriptors=%d", len(strings.Fields(ask))), func(b *testing.B) {
			variants := []func(l *candidate.Judge){
				func(*candidate.Judge) {},
				func(l *candidate.Judge) { l.UseCandidate(candidate.Rules{Set: load(b, testRules)}) },
				func(l *candidate.Judge) { l.UseCandidate(candidate.Rules{Set: candidateOf(b, testRules)}) },
				func(l *candidate.Judge) {
					l.UseCandidate(candidate.Rules{Set: load(b, otherWindows.Replace(testRules))})
				},
			}
			var limiters []*candidate.Judge
			for _, use := range variants {
				counters := metrics.New(metrics.Config{})
				l := start(b, candidate.Config{
					Limiter:  limiter.Config{Recorders: []limiter.Recorder{counters}},
					Recorder: new(judgedCount),
				})
				set := load(b, testRules)
				counters.UseRules(set)
				l.UseRules(set)
				use(l)
				limiters = append(limiters, l)
			}
			req := parse(ask)
			req.Now = time.Time{}
			answers, times := make([]limiter.Answer, len(limiters)), make([][]float64, len(limiters))
			b.ReportAllocs()
			for b.Loop() {
				for i, l := range limiters {
					const requests = 200
					begun := time.Now()
					for range requests {
						if err := l.Check(b.Context(), req, &answers[i]); err != nil {
							b.Fatal(err)
						}
					}
					times[i] = append(times[i], float64(time.Since(begun).Nanoseconds())/requests)
				}
			}
			median := func(i int) float64 {
				slices.Sort(times[i])
				return times[i][len(times[i])/2]
			}
			b.ReportMetric(median(0), "without-ns")
			b.ReportMetric(median(1)/median(0), "same-ratio")
			b.ReportMetric(median(2)/median(0), "numbers-ratio")
			b.ReportMetric(median(3)/median(0), "windows-ratio")
		})
	}
}
