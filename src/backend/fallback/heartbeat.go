package fallback

import (
	"context"
	"math/rand/v2"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// heartbeatLimit is the limit of the counter with which replicas count themselves. In each window of 10 s each replica
// adds 1 within the first 3 s, and reads the count after 8 s. The gap allows for clocks that differ. A replica that
// stops is missing from the next window on. A replica that restarts counts twice in a window, which makes shares
// smaller, not larger. During an outage the last count stays.
//
// A store that lost the counter shows too few replicas, and may soon fail again. So a smaller
// count is used only if two windows in a row show it in which this replica saw no loss.
var heartbeatLimit = algorithm.Limit{Max: 1 << 32, Period: 10 * time.Second, CountBlocked: true}

const (
	maxHeartbeatDelay  = 3 * time.Second // the longest time from the start of a window to a replica's heartbeat
	heartbeatReadDelay = 8 * time.Second // the time from the start of a window to the reading of the count
	// heartbeatKey is the key of the counter of heartbeats, behind Config.KeyPrefix.
	heartbeatKey = "ratelimit_replicas_"
	// failuresBeforeReport is the number of heartbeats that must fail in a row before Config.OnHeartbeatsFail is
	// called.
	failuresBeforeReport = 3
)

// Run counts the replicas until ctx ends, unless Config.Replicas is set.
func (s *Store) Run(ctx context.Context) error {
	if s.cfg.Replicas > 0 {
		return nil
	}
	previous := int64(0) // the number of replicas that the previous window showed
	failed := 0          // the number of heartbeats that failed in a row
	for ctx.Err() == nil {
		if !s.localEnabled.Load() {
			select {
			case <-s.localEnabledSignal:
			case <-ctx.Done():
			}
			continue
		}
		added, err := s.heartbeatCount(ctx, algorithm.Force, 1)
		counted := err == nil
		failed++
		if counted {
			failed = 0
			s.setReplicaCount(max(added, s.replicaCount.Load())) // other replicas may not have added themselves yet
		} else if failed == failuresBeforeReport && s.cfg.OnHeartbeatsFail != nil {
			s.cfg.OnHeartbeatsFail(err)
		}
		if !sleep(ctx, heartbeatReadDelay-heartbeatWindowAge()) {
			break
		}
		n, err := s.heartbeatCount(ctx, algorithm.Look, 0)
		if err == nil && counted && n >= added {
			s.setReplicaCount(max(n, previous))
			previous = n
		} else { // the store lost the counter, or it lacks this replica
			previous = max(n, s.replicaCount.Load())
			s.setReplicaCount(previous)
		}
		sleep(ctx, heartbeatLimit.Period-heartbeatWindowAge()+rand.N(maxHeartbeatDelay))
	}
	return nil
}

// heartbeatWindowAge returns the age of the current window.
func heartbeatWindowAge() time.Duration {
	now := time.Now().UnixNano()
	start, _ := algorithm.WindowBounds(now, heartbeatLimit.Period)
	return time.Duration(now - start)
}

// heartbeatCount applies op to the counter of heartbeats, and returns the count of this window.
func (s *Store) heartbeatCount(ctx context.Context, op algorithm.Op, amount uint64) (n int64, err error) {
	v, err := backend.TakeHit(ctx, s.nextStore, backend.Hit{
		Key: []byte(s.cfg.KeyPrefix + heartbeatKey), Limit: &heartbeatLimit, Op: op, Amount: amount,
	})
	return int64(min(v.After, heartbeatLimit.Max)), err
}

// setReplicaCount sets the number of replicas to n, or to 1 if n is smaller.
func (s *Store) setReplicaCount(n int64) {
	n = max(n, 1)
	s.replicasCounted.Store(true)
	if before := s.replicaCount.Swap(n); before != n && s.cfg.OnReplicas != nil {
		s.cfg.OnReplicas(int(before), int(n))
	}
}

// sleep waits for d. It returns false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
