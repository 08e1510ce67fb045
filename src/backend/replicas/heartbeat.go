package replicas

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
	// failuresBeforeReport is the number of heartbeats that must fail in a row before Config.OnFailure is called.
	failuresBeforeReport = 3
)

// heartbeats is what Run knows of the heartbeats before.
type heartbeats struct {
	previous int64 // the number of replicas that the previous window showed
	failed   int   // the number of heartbeats that failed in a row
}

// beat sends one heartbeat, reads the count, and waits for the next window.
func (c *Counter) beat(ctx context.Context, h *heartbeats) {
	added, err := c.heartbeatCount(ctx, algorithm.Force, 1)
	counted := err == nil
	h.failed++
	if counted {
		h.failed = 0
		c.setCount(max(added, c.count.Load())) // other replicas may not have added themselves yet
	} else if h.failed == failuresBeforeReport && c.cfg.OnFailure != nil {
		c.cfg.OnFailure(err)
	}
	if !sleep(ctx, heartbeatReadDelay-heartbeatWindowAge()) {
		return
	}
	n, err := c.heartbeatCount(ctx, algorithm.Look, 0)
	if err == nil && counted && n >= added {
		c.setCount(max(n, h.previous))
		h.previous = n
	} else if c.isCounted.Load() { // the store lost the counter, or it lacks this replica
		h.previous = max(n, c.count.Load())
		c.setCount(h.previous)
	}
	sleep(ctx, heartbeatLimit.Period-heartbeatWindowAge()+rand.N(maxHeartbeatDelay))
}

// heartbeatWindowAge returns the age of the current window.
func heartbeatWindowAge() time.Duration {
	now := time.Now().UnixNano()
	start, _ := algorithm.WindowBounds(now, heartbeatLimit.Period)
	return time.Duration(now - start)
}

// heartbeatCount applies op to the counter of heartbeats, and returns the count of this window.
func (c *Counter) heartbeatCount(ctx context.Context, op algorithm.Op, amount uint64) (n int64, err error) {
	v, err := backend.TakeHit(ctx, c.store, backend.Hit{
		Key: []byte(c.cfg.KeyPrefix + heartbeatKey), Limit: &heartbeatLimit, Op: op, Amount: amount,
	})
	return int64(min(v.After, heartbeatLimit.Max)), err
}

// setCount sets the number of replicas to n, or to 1 if n is smaller.
func (c *Counter) setCount(n int64) {
	n = max(n, 1)
	c.isCounted.Store(true)
	if before := c.count.Swap(n); before != n && c.cfg.OnChange != nil {
		c.cfg.OnChange(int(before), int(n))
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
