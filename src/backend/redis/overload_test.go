package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// many is a request of n hits, each with a limit and a counter of its own, or in one
// group that stands or falls together.
func many(n int, kind algorithm.Kind, prefix string, together bool) *backend.Batch {
	limit := &algorithm.Limit{Kind: kind, Max: 1 << 20, Period: time.Hour, CountBlocked: kind == algorithm.FixedWindow}
	b := &backend.Batch{Now: epoch, Hits: make([]backend.Hit, n), Verdicts: make([]backend.Verdict, n)}
	for i := range b.Hits {
		b.Hits[i] = backend.Hit{Key: fmt.Appendf(nil, "%s%d_", prefix, i), Limit: limit, Amount: 1, Atomic: together}
		if !together {
			b.Hits[i].GroupID = uint16(i)
		}
	}
	return b
}

// emptyState is takeScript's reply for so many counters that are not there.
func emptyState(counters string) string {
	n, _ := strconv.Atoi(counters)
	n = 2 + n*(1+replyNumbersPerState)
	return fmt.Sprintf("*%d\r\n%s", n, strings.Repeat(":0\r\n", n))
}

// slow is a server that answers at the pace of a test: it notes the first key of
// each command that it gets, and answers when it may.
type slow struct {
	addr string
	may  chan struct{} // one for each command, until it is closed

	mu   sync.Mutex
	keys []string
}

func startSlow(t *testing.T) *slow {
	t.Helper()
	s := &slow{may: make(chan struct{})}
	s.addr = parrot(t, func(words []string) string {
		if words[0] == "PING" {
			return "+PONG\r\n"
		}
		key := words[1]
		if strings.HasPrefix(words[0], "EVAL") {
			key = words[3]
		}
		s.mu.Lock()
		s.keys = append(s.keys, key)
		s.mu.Unlock()
		<-s.may
		if words[0] == "INCRBY" || words[0] == "EXPIRE" {
			return ":1\r\n"
		}
		return emptyState(words[2])
	})
	return s
}

func (s *slow) got() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.keys)
}

func (s *slow) await(t *testing.T, prefix string) {
	t.Helper()
	harness.Await(t, 20*time.Second, "a command for "+prefix, func() error {
		if !slices.ContainsFunc(s.got(), func(key string) bool { return strings.Contains(key, prefix) }) {
			return errors.New("none yet")
		}
		return nil
	})
}

// start makes a call in the background.
func start(t *testing.T, s *Store, b *backend.Batch) (done chan struct{}) {
	t.Helper()
	done = make(chan struct{})
	before := s.Figures.Admission.WaitingCalls()
	go func() {
		defer close(done)
		if err := s.Take(context.Background(), b); err != nil {
			t.Error(err)
		}
	}()
	harness.Await(t, 20*time.Second, "the call", func() error {
		if s.Figures.Admission.WaitingCalls() == before {
			return errors.New("it has not come")
		}
		return nil
	})
	return done
}

// queued waits until the only writer of s has got so many calls that it has not sent.
func queued(t *testing.T, s *Store, n int) {
	t.Helper()
	server, err := s.Table().NodeOfKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	harness.Await(t, 20*time.Second, "calls in the queue", func() error {
		if got := server.UnreceivedCalls(); got != n {
			return fmt.Errorf("%d have arrived", got)
		}
		return nil
	})
}

// A call of many scripts is sent in pieces, and a small one that comes later does not
// wait for more than the piece that is under way. A group that cannot be divided
// does not wait for ever either.
func TestSmallCallsOvertake(t *testing.T) {
	t.Parallel()
	server := startSlow(t)
	s := open(t, Config{Addr: server.addr, Config: remote.Config{Connections: 1, Timeout: time.Minute}})
	large := many(1000, algorithm.GCRA, "large", false)
	largeDone := start(t, s, large)
	server.await(t, "large")
	small := many(1, algorithm.FixedWindow, "small", false)
	group := many(300, algorithm.GCRA, "group", true)
	smallDone := start(t, s, small)
	groupDone := start(t, s, group)
	queued(t, s, 2)
	close(server.may)
	<-smallDone
	<-groupDone
	<-largeDone
	keys := server.got()
	at := func(prefix string) int {
		return slices.IndexFunc(keys, func(key string) bool { return strings.Contains(key, prefix) })
	}
	if n := at("small"); n < 20 || n > 300 {
		t.Errorf("the small call was sent after %d commands", n)
	}
	if n := at("group"); n < at("small") || n > 500 {
		t.Errorf("the group was sent after %d commands", n)
	}
	if want := 1000 + 1 + 1 + 1; len(keys) != want { // EXPIRE is one
		t.Errorf("%d commands, want %d", len(keys), want)
	}
	for _, b := range []*backend.Batch{large, small, group} {
		if err := b.FirstErr(); err != nil {
			t.Error(err)
		}
	}
}

// What is left of a call when its time has passed is not sent; that it was too much is no
// failure of the server.
func TestTooLargeForItsTime(t *testing.T) {
	t.Parallel()
	var got atomic.Int64
	pace := time.Tick(time.Millisecond)
	addr := parrot(t, func(words []string) string {
		if words[0] == "PING" {
			return ""
		}
		got.Add(1)
		<-pace
		return emptyState("1")
	})
	s := open(t, Config{Addr: addr, Config: remote.Config{
		Connections: 1, Timeout: 2 * time.Second,
		BreakerFailures: 1,
	}})
	b := many(20_000, algorithm.GCRA, "k", false)
	if err := s.Take(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	for i := range b.Verdicts {
		if err := b.Verdicts[i].Err; !errors.Is(err, backend.ErrOverload) || causeOf(err) != remote.CauseOverload {
			t.Fatalf("hit %d: %v", i, err)
		}
	}
	harness.AwaitQuiet(t, 300*time.Millisecond, "all commands that were sent have arrived", got.Load)
	if n := got.Load(); n > 10_000 {
		t.Errorf("%d of 20,000 were sent", n)
	}
	st := s.Stats()
	if st.BreakerOpenings != 0 || st.FailedBatches != 0 || st.ErrorsByCause[remote.CauseOverload] != 20_000 {
		t.Errorf("%+v", st)
	}
	if v := send(t, s, backend.Hit{Key: []byte("next_"), Limit: b.Hits[0].Limit, Amount: 1}); v.Err != nil {
		t.Error(v.Err)
	}
}

// A group that would stop Redis for longer than a call may take is not sent.
func TestGroupIsTooLarge(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: 500 * time.Millisecond, BreakerFailures: 1}})
	harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })
	b := many(60_000, algorithm.GCRA, "k", true)
	if err := s.Take(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if err := b.FirstErr(); !errors.Is(err, backend.ErrOverload) {
		t.Errorf("got %v", err)
	}
	if n := fmt.Sprint(server.Do(t, "DBSIZE")); n != "1" {
		t.Errorf("%s keys are there, want 1", n)
	}
	if st := s.Stats(); st.BreakerOpenings != 0 || st.FailedBatches != 0 {
		t.Errorf("%+v", st)
	}
}

// When a piece has no answer the rest of the call is not sent.
func TestRestOfABrokenCall(t *testing.T) {
	t.Parallel()
	var got atomic.Int64
	s := open(t, Config{Addr: parrot(t, func(words []string) string {
		if words[0] == "PING" {
			return ""
		}
		if got.Add(1) == 150 {
			return "?\r\n"
		}
		return emptyState("1")
	}), Config: remote.Config{Connections: 1, BreakerFailures: -1}})
	b := many(2000, algorithm.GCRA, "k", false)
	if err := s.Take(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	failed := 0
	for i := range b.Verdicts {
		switch err := b.Verdicts[i].Err; {
		case err == nil && failed > 0:
			t.Fatalf("hit %d has an answer, and one before it has none", i)
		case err == nil:
		case causeOf(err) == remote.CauseConnectionBroke:
			failed++
		default:
			t.Fatal(err)
		}
	}
	if failed < 1850 || failed == 2000 || got.Load() > 500 {
		t.Errorf("%d hits failed, %d commands were sent", failed, got.Load())
	}
}

// Calls in pieces count each hit once, in order, and the calls of others meanwhile.
func TestPiecesCountOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: time.Minute}})
	const callers, hits, keys, rounds = 6, 2000, 7, 2
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for range rounds {
				b := many(hits, algorithm.FixedWindow, "", false)
				script := &algorithm.Limit{Kind: algorithm.FixedWindow, Max: 1 << 40, Period: time.Hour}
				for i := range b.Hits {
					b.Hits[i].Key = fmt.Appendf(nil, "k%d_", i%keys)
					b.Hits[i].Limit = window(1<<40, time.Hour)
					if i%3 == 0 {
						b.Hits[i].Limit = script
					}
				}
				if err := errors.Join(s.Take(context.Background(), b), b.FirstErr()); err != nil {
					t.Error(err)
					return
				}
				var last [keys]uint64
				for i, v := range b.Verdicts {
					if v.After != v.Before+1 || v.After <= last[i%keys] {
						t.Errorf("hit %d of one key: %d to %d after %d", i, v.Before, v.After, last[i%keys])
						return
					}
					last[i%keys] = v.After
				}
			}
		})
	}
	all.Wait()
	sum := 0
	for i := range keys {
		var n int
		if _, err := fmt.Sscan(fmt.Sprint(server.Do(t, "GET", fmt.Sprintf("k%d_1767225600", i))), &n); err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	if want := callers * hits * rounds; sum != want {
		t.Errorf("%d hits are counted, want %d", sum, want)
	}
}

// A server that stands still is found out where all calls are groups that cannot be
// divided, too.
func TestStandingStillUnderGroups(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := open(t, Config{Addr: server.Addr, Config: remote.Config{Timeout: faultTimeout, BreakerFailures: 3}})
	harness.Await(t, 20*time.Second, "answers", func() error { return send(t, s, hot(0)).Err })
	server.Pause()
	defer server.Resume()
	harness.Await(t, 20*time.Second, "an open breaker", func() error {
		b := many(300, algorithm.GCRA, "k", true)
		if err := errors.Join(s.Take(t.Context(), b), b.FirstErr()); err == nil || errors.Is(err, backend.ErrOverload) {
			t.Fatalf("got %v", err)
		}
		if s.Stats().OpenBreakers == 0 {
			return errors.New("it is closed")
		}
		return nil
	})
}
