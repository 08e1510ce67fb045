package fallback

import (
	"context"
	"math/rand/v2"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// heartbeat is the limit of the counter with which replicas count themselves. In each
// window of 10 s each replica adds 1 within the first 3 s, and reads the count after 8 s.
// The gap allows for clocks that differ. A replica that stops is missing from the next
// window on. A replica that restarts counts twice in a window, which makes shares smaller,
// not larger. During an outage the last count stays.
//
// A store that lost the counter shows too few replicas, and may soon fail again. So a
// smaller count is used only when two windows in a row show it in which this replica saw
// no loss.
var heartbeat = algorithm.Limit{Max: 1 << 32, Period: 10 * time.Second, CountBlocked: true}

const (
	addWithin = 3 * time.Second
	readAfter = 8 * time.Second
	// heartbeatKey is the counter's key, behind Config.KeyPrefix.
	heartbeatKey = "ratelimit_replicas_"
	// reportAfter is after how many windows without a heartbeat OnUncounted is called.
	reportAfter = 3
)

// Run counts the replicas until ctx ends, unless Config.Replicas is set.
func (s *Store) Run(ctx context.Context) error {
	if s.cfg.Replicas > 0 {
		return nil
	}
	previous := int64(0) // replicas in the previous window, as far as this one saw
	failed := 0          // windows in a row
	for ctx.Err() == nil {
		if !s.useLocal.Load() {
			select {
			case <-s.start:
			case <-ctx.Done():
			}
			continue
		}
		added, err := s.ask(ctx, algorithm.Force, 1)
		counted := err == nil
		failed++
		if counted {
			failed = 0
			s.setReplicas(max(added, s.replicas.Load())) // other replicas may not have added themselves yet
		} else if failed == reportAfter && s.cfg.OnUncounted != nil {
			s.cfg.OnUncounted(err)
		}
		if !sleep(ctx, readAfter-intoWindow()) {
			break
		}
		n, err := s.ask(ctx, algorithm.Look, 0)
		if err == nil && counted && n >= added {
			s.setReplicas(max(n, previous))
			previous = n
		} else { // the count lacks this replica
			previous = max(n, s.replicas.Load())
			s.setReplicas(previous)
		}
		sleep(ctx, heartbeat.Period-intoWindow()+rand.N(addWithin))
	}
	return nil
}

// intoWindow returns the age of the current window.
func intoWindow() time.Duration {
	now := time.Now().UnixNano()
	start, _ := algorithm.Window(now, heartbeat.Period)
	return time.Duration(now - start)
}

// ask applies op to the heartbeat counter of this window, and returns its count.
func (s *Store) ask(ctx context.Context, op algorithm.Op, amount uint64) (n int64, err error) {
	b := backend.Batch{
		Hits:     []backend.Hit{{Key: []byte(s.cfg.KeyPrefix + heartbeatKey), Limit: &heartbeat, Op: op, Amount: amount}},
		Verdicts: make([]backend.Verdict, 1),
	}
	if err := s.next.Take(ctx, &b); err != nil {
		return 0, err
	}
	return int64(min(b.Verdicts[0].After, heartbeat.Max)), b.Verdicts[0].Err
}

// setReplicas sets the number of replicas, which is at least this one.
func (s *Store) setReplicas(n int64) {
	n = max(n, 1)
	if before := s.replicas.Swap(n); before != n && s.cfg.OnReplicas != nil {
		s.cfg.OnReplicas(int(before), int(n))
	}
}

// sleep returns false if ctx ends before d is over.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
