package limiter_test

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
)

// judgedCount is a limiter.CandidateRecorder that only counts.
type judgedCount struct{ atomic.Uint64 }

func (c *judgedCount) RecordCandidate(_ *limiter.Request, _, _ *limiter.Answer, j limiter.Judgement) {
	c.Add(uint64(j.Count))
}

// candidateOf returns rules with other numbers, so that no rule is the same.
func candidateOf(tb testing.TB, text string) *rules.Set {
	tb.Helper()
	return load(tb, strings.NewReplacer("requests_per_unit: 1", "requests_per_unit: 3", "requests_per_unit: 2", "requests_per_unit: 4").Replace(text))
}

// BenchmarkCandidate compares a decision without a candidate, with one whose rules are the same, with one whose rules all have other numbers,
// and with one whose rules all have other windows. They take turns, so that other work on the machine slows all of them alike. It reports the medians.
func BenchmarkCandidate(b *testing.B) {
	for _, ask := range []string{"gold=x", "gold=x silver=x trial=x path=/pay,user=x"} {
		b.Run(fmt.Sprintf("descriptors=%d", len(strings.Fields(ask))), func(b *testing.B) {
			variants := []func(l *limiter.Limiter){
				func(*limiter.Limiter) {},
				func(l *limiter.Limiter) { l.UseCandidate(limiter.Candidate{Set: load(b, testRules)}) },
				func(l *limiter.Limiter) { l.UseCandidate(limiter.Candidate{Set: candidateOf(b, testRules)}) },
				func(l *limiter.Limiter) {
					l.UseCandidate(limiter.Candidate{Set: load(b, strings.NewReplacer("unit: minute", "unit: hour", "unit: hour", "unit: minute").Replace(testRules))})
				},
			}
			var limiters []*limiter.Limiter
			for _, use := range variants {
				counters := metrics.New(metrics.Config{})
				l := start(b, limiter.Config{Recorders: []limiter.Recorder{counters}, Candidates: new(judgedCount)})
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
