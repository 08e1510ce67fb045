package candidate_test

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/candidate"
	"ratelimit/src/limiter"
	"ratelimit/testbed/limitertest"
)

// A sample shrinks so that candidate rules take seven tenths of what is allowed. Eight steps halve it.
func TestSampleSteps(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, tt := range []struct {
		name                         string
		live, judging, hits, elapsed time.Duration
		want                         uint64
	}{
		{"a fiftieth of the time is free", 0, 0, 20 * ms, 1000 * ms, 0},
		// 96 µs for a hit on a sliding_window in Redis, 3 µs for a live call
		{"a hundred requests a second are judged", 300 * time.Microsecond, 0, 9600 * time.Microsecond, 1000 * ms, 0},
		{"it is free besides judging", 100 * ms, 100 * ms, 20 * ms, 1000 * ms, 0},
		{"as much as is allowed", 100 * ms, 10 * ms, 40 * ms, 1000 * ms, 0},
		{"twice as much: 100 to 35", 100 * ms, 0, 100 * ms, 1000 * ms, 13},             // 8 * log2(2.86) = 12.1
		{"judging counts, too: 100 to 24", 100 * ms, 11 * ms, 100 * ms, 1000 * ms, 17}, // 8 * log2(4.17) = 16.5
		{"a little more: 50.1 to 35", 100 * ms, 0, 50100 * time.Microsecond, 1000 * ms, 5},
		{"judging takes all: 100 to 14", 100 * ms, 60 * ms, 100 * ms, 1000 * ms, 23}, // 8 * log2(7.1) = 22.7
		{"no time has passed", 0, 0, 1, 0, 0},
	} {
		cfg := candidate.Config{MaxLoad: 0.5}
		if got := cfg.StepsFor(tt.live, tt.judging, tt.hits, tt.elapsed); got != tt.want {
			t.Errorf("%s: %d steps, want %d", tt.name, got, tt.want)
		}
	}
}

const (
	sampleLive = "domain: d\ndescriptors:\n" +
		"  - {key: user, rate_limit: {unit: hour, requests_per_unit: 1}}\n  - {key: all, value: x, rate_limit: {unit: " +
		"hour, requests_per_unit: 1000000}}\n"
	sampleNext = "domain: d\ndescriptors:\n" +
		"  - {key: user, rate_limit: {unit: day, requests_per_unit: 1}}\n  - {key: all, value: x, rate_limit: {unit: day, " +
		"requests_per_unit: 1000000}}\n"
)

// sampled returns for which of 1000 users a request is judged.
func sampled(t *testing.T, l *candidate.Judge, got *judgements) (list [1000]bool) {
	t.Helper()
	a := new(limiter.Answer)
	got.take()
	for i := range list {
		if err := l.Check(t.Context(), parse(fmt.Sprintf("user=%d", i)), a); err != nil {
			t.Fatal(err)
		}
		list[i] = got.list[i].Result != candidate.NotSampled
	}
	return list
}

// A smaller sample has a part of the counters of a larger one, the same on all replicas. A counter of all requests
// leaves it first.
func TestSampleIsStable(t *testing.T) {
	t.Parallel()
	var before [1000]bool
	for _, tt := range []struct {
		step        uint64
		least, most int
		judgesAll   string // the result of a request to the counter of all requests.
	}{
		{0, 1000, 1000, "same"},
		{1, 880, 950, "not_sampled"},
		{8, 450, 550, "not_sampled"},
		{24, 95, 155, "not_sampled"},
		{160, 0, 1, "not_sampled"},
	} {
		var lists [2][1000]bool
		for replica := range lists {
			got := new(judgements)
			l := start(t, candidate.Config{Recorder: got})
			l.UseRules(load(t, sampleLive))
			l.UseCandidate(candidate.Rules{Set: load(t, sampleNext)})
			l.SetSampleStep(tt.step)
			lists[replica] = sampled(t, l, got)
			got.take()
			if err := l.Check(t.Context(), parse("all=x"), new(limiter.Answer)); err != nil {
				t.Fatal(err)
			}
			if is := got.take(); is != tt.judgesAll {
				t.Errorf("step %d: a counter of all requests: %s, want %s", tt.step, is, tt.judgesAll)
			}
		}
		n := 0
		for i, is := range lists[0] {
			if is {
				n++
			}
			if step := tt.step; step > 0 && is && !before[i] {
				t.Errorf("step %d: user %d was in no larger sample", step, i)
			}
		}
		if n < tt.least || n > tt.most || lists[0] != lists[1] {
			t.Errorf("step %d: %d of 1000 users, want %d to %d; replicas agree: %t", tt.step, n, tt.least, tt.most,
				lists[0] == lists[1])
		}
		before = lists[0]
	}
}

// In a sample, each request is judged as without it, or not at all: if one of its counters is missing, or the live
// rules know of no hit.
func TestSampleOfRequests(t *testing.T) {
	t.Parallel()
	got := new(judgements)
	l, a := start(t, candidate.Config{Recorder: got}), new(limiter.Answer)
	l.UseRules(load(t, sampleLive+"  - {key: ip, rate_limit: {unit: hour, requests_per_unit: 1}}\n"))
	l.UseCandidate(candidate.Rules{Set: load(t,
		sampleNext+"  - {key: ip, rate_limit: {unit: hour, requests_per_unit: 2}}\n"+
			"  - {key: call, rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 10s, hold_id: id}}\n")})
	l.SetSampleStep(8)
	list := sampled(t, l, got)
	in, out := -1, -1
	for i, is := range list {
		if is {
			in = i
		} else {
			out = i
		}
	}
	steps := []string{
		fmt.Sprintf("user=%d", in), "same", // Both count the second request of an hour.
		fmt.Sprintf("user=%d", out), "not_sampled",
		fmt.Sprintf("user=%d user=%d", in, out), "not_sampled",
		fmt.Sprintf("user=%d ip=1", in), "same",
		"ip=1", "would_admit ip", // Only the number differs, so no counter is needed.
		"other=1", "same",
		"all=x", "not_sampled",
		"call=1", "would_be_error",
	}
	for i := 0; i < len(steps); i += 2 {
		got.take()
		if err := l.Check(t.Context(), parse(steps[i]), a); err != nil {
			t.Fatal(err)
		}
		if is := got.take(); is != steps[i+1] {
			t.Errorf("%s: %s, want %s", steps[i], is, steps[i+1])
		}
	}
}

// Replicas that share a store agree on a sample within a second after one of them has made it smaller. A burst makes
// none smaller. Other candidate rules start with all counters, and so do the same ones after a day.
func TestAdjustSample(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := limitertest.Store(t, memory.Config{})
		store := &failingStore{Backend: m}
		hitTime := func(*backend.Hit) time.Duration { return 10 * time.Microsecond }
		var replicas [2]*candidate.Judge
		var judged [2]judgedCount
		for i := range replicas {
			replicas[i] = start(t, candidate.Config{
				Limiter: limiter.Config{Backend: store}, Recorder: &judged[i], MaxLoad: 0.5, HitTime: hitTime,
			})
			replicas[i].UseRules(load(t, sampleLive))
			replicas[i].UseCandidate(candidate.Rules{Set: load(t, sampleNext), Hash: "a"})
		}
		step := func(text string, calls int, want float64) {
			t.Helper()
			a := new(limiter.Answer)
			for i := range calls {
				req := parse(fmt.Sprintf("user=%d", i))
				req.Now = time.Time{}
				if err := replicas[0].Check(t.Context(), req, a); err != nil {
					t.Fatal(err)
				}
			}
			for range 11 {
				time.Sleep(time.Second)
				for _, l := range replicas {
					l.AdjustSample(t.Context())
				}
			}
			for i, l := range replicas {
				if got := l.SampledShare(); got < want-0.001 || got > want+0.001 {
					t.Errorf("%s: replica %d has a share of %.3f, want %.3f", text, i, got, want)
				}
			}
		}
		step("no calls", 0, 1)
		step("few calls", 190, 1) // 1.9 ms of ten seconds
		step("a burst", 3000, 1)  // 30 ms of ten seconds, though more than is allowed in one
		// 13 steps: 10 µs of 10.55 are more than half; 3.24 µs and 0.2 for judging are seven tenths of half.
		step("all calls need a hit", 40_000, 0.324)
		step("a sample needs few", 40_000, 0.324)
		replicas[1].UseRules(load(t, sampleLive))
		step("a reload", 0, 0.324)
		store.failing = "|sample"
		replicas[0].SetSampleStep(8)
		replicas[1].SetSampleStep(8)
		step("the store does not answer", 0, 0.5)
		step("one replica has too many hits meanwhile", 0, 0.5)
		store.failing = ""
		step("the store answers", 0, 0.324)
		for _, l := range replicas {
			l.UseCandidate(candidate.Rules{Set: load(t, sampleNext), Hash: "b"})
		}
		step("another candidate", 0, 1)
		for _, l := range replicas {
			l.UseCandidate(candidate.Rules{Set: load(t, sampleNext), Hash: "a"})
		}
		step("the first one again", 0, 0.324)
		time.Sleep(24 * time.Hour)
		step("a day later", 0, 1)
		for _, l := range replicas {
			l.UseCandidate(candidate.Rules{})
			if l.AdjustSample(t.Context()) {
				t.Error("without a candidate the sample changes")
			}
		}
	})
}
