package remote

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/testbed/harness"
)

var errGone = errors.New("gone")

const breakerTimeout = 60 * time.Millisecond

// plain is a breaker whose pauses have no jitter, and what it told.
func plain(failures int) (*Breaker, *[]string) {
	told := new([]string)
	b := NewBreaker("redis: a:1", failures, breakerTimeout,
		func(open bool, why error) { *told = append(*told, fmt.Sprint(open, " ", why)) })
	b.jitter = func(time.Duration) time.Duration { return 0 }
	return b, told
}

// ignore is the tell of a breaker without a listener.
func ignore(bool, error) {}

// breakerStep is one thing that happens.
type breakerStep struct {
	at    time.Duration
	do    string // fail, late (a failure of what began at the start), succeed, allow, probe, retire
	want  string // of allow: yes or no; of probe: due, or the wait
	state breakerState
}

// afterOpening returns the three failures that open a breaker, and then steps.
func afterOpening(steps []breakerStep) []breakerStep {
	return append([]breakerStep{
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerOpen},
	}, steps...)
}

var breakerCases = []struct {
	name  string
	steps []breakerStep
	told  []string
}{
	{"a success between failures begins anew", []breakerStep{
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerClosed},
		{0, "succeed", "", breakerClosed},
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerClosed},
		{0, "allow", "yes", breakerClosed},
		{0, "probe", "0s", breakerClosed},
		{0, "fail", "", breakerOpen},
		{0, "allow", "no", breakerOpen},
	}, []string{"true gone"}},
	{"a server that answers one attempt in three", []breakerStep{
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerClosed},
		{0, "succeed", "", breakerClosed}, // 1 more failure than answers
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerClosed},
		{0, "succeed", "", breakerClosed}, // 2
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerClosed},
		{0, "succeed", "", breakerClosed}, // 3
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerClosed},
		{0, "succeed", "", breakerClosed}, // 4
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerOpen}, // 6, twice the failures in a row
	}, []string{"true gone"}},
	{"answers before the failures are no credit", []breakerStep{
		{0, "succeed", "", breakerClosed},
		{0, "succeed", "", breakerClosed},
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerOpen},
		{0, "succeed", "", breakerHalfOpen},
		{0, "succeed", "", breakerClosed}, // nothing is left of the failures
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerClosed},
		{0, "succeed", "", breakerClosed},
		{0, "fail", "", breakerClosed},
		{0, "fail", "", breakerClosed},
	}, []string{"true gone", "false <nil>"}},
	{"pauses grow to half a second", afterOpening([]breakerStep{
		{0, "probe", "50ms", breakerOpen},
		{49 * ms, "probe", "1ms", breakerOpen},
		{50 * ms, "probe", "due", breakerOpen}, // the next comes 100 ms after the start of this one
		{50 * ms, "probe", "100ms", breakerOpen},
		{60 * ms, "fail", "", breakerOpen},
		{60 * ms, "probe", "90ms", breakerOpen},
		{150 * ms, "probe", "due", breakerOpen},
		{350 * ms, "probe", "due", breakerOpen},
		{750 * ms, "probe", "due", breakerOpen},
		{750 * ms, "probe", "500ms", breakerOpen},
		{3000 * ms, "probe", "due", breakerOpen}, // a probe that took long
		{3000 * ms, "probe", "500ms", breakerOpen},
	}), []string{"true gone"}},
	{"a probe and a call that are answered close it", afterOpening([]breakerStep{
		{50 * ms, "probe", "due", breakerOpen},
		{51 * ms, "succeed", "", breakerHalfOpen},
		{51 * ms, "allow", "yes", breakerHalfOpen},
		{52 * ms, "succeed", "", breakerClosed},
		{52 * ms, "allow", "yes", breakerClosed},
		{52 * ms, "fail", "", breakerClosed},
	}), []string{"true gone", "false <nil>"}},
	{"no more than five calls try", afterOpening([]breakerStep{
		{50 * ms, "succeed", "", breakerHalfOpen},
		{50 * ms, "allow", "yes", breakerHalfOpen},
		{50 * ms, "allow", "yes", breakerHalfOpen},
		{50 * ms, "allow", "yes", breakerHalfOpen},
		{50 * ms, "allow", "yes", breakerHalfOpen},
		{50 * ms, "allow", "yes", breakerHalfOpen},
		{50 * ms, "allow", "no", breakerHalfOpen},
		{60 * ms, "probe", "50ms", breakerHalfOpen},
		{110 * ms, "probe", "120ms", breakerHalfOpen}, // twice the timeout: they have failed by then
		{229 * ms, "allow", "no", breakerHalfOpen},
		{230 * ms, "probe", "due", breakerHalfOpen}, // or were never sent
		{230 * ms, "allow", "yes", breakerHalfOpen},
		{280 * ms, "probe", "120ms", breakerHalfOpen},
	}), []string{"true gone"}},
	{"an answered probe does not close it before a call that tries has failed", afterOpening([]breakerStep{
		{50 * ms, "probe", "due", breakerOpen},
		{51 * ms, "succeed", "", breakerHalfOpen},
		{51 * ms, "probe", "50ms", breakerHalfOpen},
		{52 * ms, "allow", "yes", breakerHalfOpen},
		{101 * ms, "probe", "120ms", breakerHalfOpen},
		{112 * ms, "fail", "", breakerOpen},
		{112 * ms, "probe", "200ms", breakerOpen},
	}), []string{"true gone"}},
	{"without calls, two probes that are answered close it", afterOpening([]breakerStep{
		{50 * ms, "probe", "due", breakerOpen},
		{51 * ms, "succeed", "", breakerHalfOpen},
		{51 * ms, "probe", "50ms", breakerHalfOpen},
		{101 * ms, "probe", "due", breakerHalfOpen},
		{102 * ms, "succeed", "", breakerClosed},
		{102 * ms, "probe", "0s", breakerClosed},
	}), []string{"true gone", "false <nil>"}},
	{"one failure opens it again, and nobody is told twice", afterOpening([]breakerStep{
		{50 * ms, "probe", "due", breakerOpen},
		{50 * ms, "succeed", "", breakerHalfOpen},
		{60 * ms, "fail", "", breakerOpen},
		{60 * ms, "probe", "200ms", breakerOpen}, // pauses go on to grow
		{60 * ms, "allow", "no", breakerOpen},
	}), []string{"true gone"}},
	{"old news", afterOpening([]breakerStep{
		{50 * ms, "succeed", "", breakerHalfOpen},
		{50 * ms, "late", "", breakerHalfOpen},
		{50 * ms, "succeed", "", breakerClosed},
		{60 * ms, "late", "", breakerClosed},
		{60 * ms, "late", "", breakerClosed},
		{60 * ms, "late", "", breakerClosed},
	}), []string{"true gone", "false <nil>"}},
	{"a server that is taken away", afterOpening([]breakerStep{
		{1 * ms, "retire", "", breakerClosed},
		{1 * ms, "retire", "", breakerClosed},
		{1 * ms, "probe", "0s", breakerClosed},
		{2 * ms, "fail", "", breakerClosed}, // of what was on its way
		{2 * ms, "fail", "", breakerClosed},
		{2 * ms, "fail", "", breakerClosed},
	}), []string{"true gone", "false " + ErrServerRetired.Error()}},
}

// Each step is one thing that happens so long after the start.
func TestBreaker(t *testing.T) {
	for _, tt := range breakerCases {
		t.Run(tt.name, func(t *testing.T) {
			b, told := plain(3)
			start := b.BeginAttempt()
			for i, s := range tt.steps {
				now, got := time.Unix(0, 0).Add(s.at), ""
				switch s.do {
				case "fail":
					b.Fail(b.BeginAttempt(), now, errGone)
				case "late":
					b.Fail(start, now, errGone)
				case "succeed":
					b.Succeed()
				case "allow":
					if got = "yes"; b.Allow() != nil {
						got = "no"
					}
				case "probe":
					due, wait := b.ProbeDue(now)
					if got = wait.String(); due {
						got = "due"
					}
				case "retire":
					b.Retire(ErrServerRetired)
				}
				if state := b.state; got != s.want || state != s.state {
					t.Fatalf("step %d, %s: %q in state %d, want %q in %d", i, s.do, got, state, s.want, s.state)
				}
				if open := s.state == breakerOpen; (b.Refusal() != nil) != open {
					t.Fatalf("step %d, %s: what is sent is refused with %v", i, s.do, b.Refusal())
				}
			}
			if !slices.Equal(*told, tt.told) {
				t.Errorf("told %q, want %q", *told, tt.told)
			}
		})
	}
}

func TestBreakerSaysWhy(t *testing.T) {
	b, _ := plain(1)
	b.Fail(b.BeginAttempt(), time.Unix(0, 0), errGone)
	err := b.Allow()
	if CauseOf(err) != CauseBreakerOpen || !strings.Contains(err.Error(), "redis: a:1 ") ||
		!strings.Contains(err.Error(), "gone") || errors.Is(err, errGone) {
		t.Errorf("got %v, counted as %s", err, CauseOf(err))
	}
}

// With 0 failures it never opens.
func TestNoBreaker(t *testing.T) {
	b := NewBreaker("a", 0, 0, ignore)
	b.Fail(b.BeginAttempt(), time.Now(), errGone)
	b.Succeed()
	b.Retire(errGone)
	b.FailEvery(b.BeginAttempt(), time.Nanosecond, errGone)()
	due, wait := b.ProbeDue(time.Now())
	if b.Allow() != nil || b.Refusal() != nil || b.IsOpen() || b.TimesOpened() != 0 || due || wait != 0 {
		t.Errorf("got %+v", b)
	}
}

// The pauses differ, by up to a half.
func TestJitter(t *testing.T) {
	seen := make(map[time.Duration]bool)
	for range 20 {
		b := NewBreaker("a", 1, 0, ignore)
		b.Fail(0, time.Unix(0, 0), errGone)
		_, wait := b.ProbeDue(time.Unix(0, 0))
		if wait <= minProbePause/2 || wait > minProbePause {
			t.Errorf("a pause of %v", wait)
		}
		seen[wait] = true
	}
	if len(seen) < 2 {
		t.Error("all pauses are the same")
	}
}

// An attempt that takes long counts once for each time of a call.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, told := plain(3)
		stop := b.FailEvery(b.BeginAttempt(), 50*time.Millisecond, errGone)
		time.Sleep(120 * time.Millisecond)
		b.Succeed() // of another: they are not in a row
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if b.IsOpen() {
			t.Error("open after two")
		}
		time.Sleep(50 * time.Millisecond)
		synctest.Wait()
		if !b.IsOpen() {
			t.Error("not open after three")
		}
		b.Succeed()
		b.Succeed()
		time.Sleep(time.Second)
		synctest.Wait()
		if b.IsOpen() {
			t.Error("old news opened it again")
		}
		stop()
		stop = b.FailEvery(b.BeginAttempt(), 50*time.Millisecond, errGone)
		stop()
		time.Sleep(time.Second)
		synctest.Wait()
		if b.IsOpen() || len(*told) != 2 {
			t.Errorf("after the end of it: open %t, told %q", b.IsOpen(), *told)
		}
	})
}

// reference is a breaker in plain words: a list of what happened since the last
// change.
type reference struct {
	state    breakerState
	limit    int
	outcomes []bool // of attempts since the last change, in order; true: answered
	tries    int
	waited   bool
	probeAt  time.Duration // -1: not known
	pause    time.Duration
	newsFrom int // attempts that began before this change do not count
}

func (r *reference) to(s breakerState) { r.state, r.outcomes, r.newsFrom = s, nil, r.newsFrom+1 }

// full reports whether the outcomes open it: as many failures in a row as the limit, or
// twice as many more failures than answers, counted from where they were fewest.
func (r *reference) full() bool {
	row, balance, least := 0, 0, 0
	for _, answered := range r.outcomes {
		if answered {
			row, balance = 0, balance-1
			least = min(least, balance)
		} else {
			row, balance = row+1, balance+1
		}
	}
	return row >= r.limit || balance-least >= 2*r.limit
}

func (r *reference) open(now time.Duration) {
	r.to(breakerOpen)
	r.probeAt = now + r.pause
	r.pause = min(r.pause*2, 500*time.Millisecond)
}

func (r *reference) fail(began int, now time.Duration) {
	switch {
	case began != r.newsFrom:
	case r.state == breakerClosed:
		if r.outcomes = append(r.outcomes, false); r.full() {
			r.pause = 50 * time.Millisecond
			r.open(now)
		}
	case r.state == breakerHalfOpen:
		r.open(now)
	}
}

func (r *reference) succeed() {
	switch r.state {
	case breakerClosed:
		r.outcomes = append(r.outcomes, true)
	case breakerOpen:
		r.to(breakerHalfOpen)
		r.tries, r.waited, r.probeAt = 5, false, -1
	case breakerHalfOpen:
		r.to(breakerClosed)
	}
}

func (r *reference) allow() bool {
	if r.state == breakerHalfOpen && r.tries > 0 {
		r.tries--
		return true
	}
	return r.state == breakerClosed
}

func (r *reference) probe(now time.Duration) (due bool, wait time.Duration) {
	if r.state == breakerClosed {
		return false, 0
	}
	if r.state == breakerHalfOpen && r.probeAt < 0 {
		r.probeAt = now + 50*time.Millisecond
	}
	due = now >= r.probeAt
	switch {
	case due && r.state == breakerHalfOpen && r.tries < 5 && !r.waited:
		due, r.waited, r.probeAt = false, true, now+2*breakerTimeout
	case due && r.state == breakerOpen:
		r.probeAt = now + r.pause
		r.pause = min(r.pause*2, 500*time.Millisecond)
	case due:
		r.probeAt, r.tries, r.waited = now+50*time.Millisecond, 5, false
	}
	return due, r.probeAt - now
}

// FuzzBreaker compares the breaker with the reference, event by event.
func FuzzBreaker(f *testing.F) {
	f.Add(uint8(3), []byte("\x00\x00\x00\x03\x43\x01\x02\x01"))
	f.Add(uint8(1), []byte("\x00\xf3\x01\x02\x02\x02\x02\x02\x02\x73\x00\x04\x05"))
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		events := make([]byte, 200)
		for i := range events {
			events[i] = byte(random.Uint32())
		}
		f.Add(uint8(random.IntN(5)), events)
	}
	f.Add(uint8(4), []byte(strings.Repeat("\x00\x00\x01", 30)))
	f.Add(uint8(4), []byte(strings.Repeat("\x00\x01\x01", 30)))
	f.Fuzz(func(t *testing.T, limit uint8, events []byte) {
		b, told := plain(int(limit%5) + 1)
		r := reference{limit: int(limit%5) + 1}
		type mark struct {
			b AttemptID
			r int
		}
		marks := []mark{{b.BeginAttempt(), 0}}
		var now time.Duration
		for i, e := range events {
			now += time.Duration(e>>3) * 7 * time.Millisecond
			at := time.Unix(0, 0).Add(now)
			switch e % 6 {
			case 0, 4: // a failure, of an attempt that began now or long ago
				m := mark{b.BeginAttempt(), r.newsFrom}
				if e%6 == 4 {
					m = marks[int(e>>3)%len(marks)]
				}
				b.Fail(m.b, at, errGone)
				r.fail(m.r, now)
			case 1:
				b.Succeed()
				r.succeed()
			case 2:
				if got, want := b.Allow() == nil, r.allow(); got != want {
					t.Fatalf("event %d: allowed %t, want %t", i, got, want)
				}
			case 3:
				due, wait := b.ProbeDue(at)
				if wantDue, wantWait := r.probe(now); due != wantDue || wait != wantWait {
					t.Fatalf("event %d: due %t in %v, want %t in %v", i, due, wait, wantDue, wantWait)
				}
			case 5:
				marks = append(marks, mark{b.BeginAttempt(), r.newsFrom})
			}
			if got := b.state; got != r.state || b.IsOpen() != (r.state != breakerClosed) {
				t.Fatalf("event %d: state %d, want %d", i, got, r.state)
			}
			if open := len(*told)%2 == 1; open != b.IsOpen() {
				t.Fatalf("event %d: told %q", i, *told)
			}
		}
	})
}

// Many use one breaker at once: it is told that it opens and closes in turns, and
// in the end an answer or two close it.
func TestBreakerAtOnce(t *testing.T) {
	var open atomic.Bool
	b := NewBreaker("a", 2, 0, func(now bool, _ error) {
		if open.Swap(now) == now {
			t.Error("told twice")
		}
	})
	var all sync.WaitGroup
	for n := range 8 {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(n)))
			for i := range 5000 {
				began, now := b.BeginAttempt(), time.Unix(0, int64(i)*1e6)
				if due, _ := b.ProbeDue(now); !due && b.Allow() != nil {
					continue
				}
				if random.IntN(3) > 0 {
					b.Fail(began, now, errGone)
				} else {
					b.Succeed()
				}
			}
		})
	}
	all.Wait()
	b.Succeed()
	b.Succeed()
	if b.IsOpen() || open.Load() || b.TimesOpened() == 0 {
		t.Errorf("open %t, told %t, opened %d times", b.IsOpen(), open.Load(), b.TimesOpened())
	}
}

// On the way of every call there is no lock and no memory to get.
func BenchmarkBreaker(bench *testing.B) {
	b := NewBreaker("a", 5, 0, ignore)
	bench.ReportAllocs()
	bench.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if b.Allow() == nil {
				b.Succeed()
			}
		}
	})
}

// While a server fails now and then, answers are counted.
func BenchmarkBreakerFlaky(bench *testing.B) {
	b := NewBreaker("a", 1000, 0, ignore)
	bench.ReportAllocs()
	now := time.Now()
	for bench.Loop() {
		b.Fail(b.BeginAttempt(), now, errGone)
		b.Succeed()
	}
}

// A listener is called without locks held: it may ask the Breaker, and while it is slow
// calls go on. One call comes after the other, so what it was told last is true.
func TestBreakerTellsWithoutLock(t *testing.T) {
	t.Parallel()
	slow, done := make(chan struct{}), make(chan struct{})
	var b *Breaker
	var told []bool // without a lock: the calls are in turn
	b = NewBreaker("a", 1, 0, func(open bool, _ error) {
		if told = append(told, open); len(told) == 1 {
			_ = b.Allow() // whatever it says, it returns
			b.ProbeDue(time.Now())
			<-slow
		}
	})
	go b.Fail(b.BeginAttempt(), time.Now(), errGone)
	go func() {
		defer close(done)
		for !b.IsOpen() {
			runtime.Gosched()
		}
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 1000 {
					b.Succeed() // half open
					b.Succeed() // closed
					b.Fail(b.BeginAttempt(), time.Now(), errGone)
				}
			})
		}
		all.Wait()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("calls wait for a listener")
	}
	close(slow)
	b.Retire(ErrServerRetired)
	harness.Until(t, "all changes have been told", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		return !b.notifying
	})
	for i, open := range told {
		if open != (i%2 == 0) {
			t.Fatalf("told %t as number %d of %d", open, i, len(told))
		}
	}
	if n := len(told); n < 4 || n%2 != 0 {
		t.Errorf("told %d times, the last time that it is open", n)
	}
}

// A server is silent since the first of its last failures in a row, also before the breaker opens, until it answers.
func TestSilentSince(t *testing.T) {
	t.Parallel()
	b, _ := plain(3)
	start := time.Unix(1000, 0)
	for i, step := range []struct {
		do   string
		want time.Duration // from the start; -1: it answers
	}{
		{"fail", -1},
		{"fail", 0},
		{"succeed", -1},
		{"fail", -1},
		{"fail", 3},
		{"fail", 3},
		{"succeed", 3},
		{"fail", 3},
		{"succeed", 3},
		{"succeed", -1},
		{"fail", -1},
	} {
		if step.do == "fail" {
			b.Fail(b.BeginAttempt(), start.Add(time.Duration(i)), errGone)
		} else {
			b.Succeed()
		}
		want := time.Time{}
		if step.want >= 0 {
			want = start.Add(step.want)
		}
		if got := b.SilentSince(); !got.Equal(want) {
			t.Errorf("after step %d, %s: silent since %v, want %v", i, step.do, got, want)
		}
	}
}
