package leased

import (
	"context"
	"sync"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

const (
	// maxReturns and maxReturnBytes bound the units that wait to be given back. Others are lost until their window ends.
	maxReturns     = 64 << 10
	maxReturnBytes = 8 << 20
	// returnsPerBatch is how many go to the store at a time.
	returnsPerBatch = 256
	// callTimeout bounds a call of the store that no caller waits for.
	callTimeout = time.Second
)

// returnQueue has units that this replica gives back. It is safe for concurrent use.
type returnQueue struct {
	mu   sync.Mutex
	hits []backend.Hit // refunds. Guarded by mu
	keys int           // the bytes of their keys; guarded by mu
	lost uint64        // the units for which there was no room; guarded by mu
}

// add adds units, if there are any, of a counter that the store counted in the window up to windowEnd. It copies key.
func (q *returnQueue) add(
	key []byte, tagLen int, sharesKey bool, l *algorithm.Limit, windowEnd int64, units uint64,
) {
	if units == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.hits) == maxReturns || q.keys+len(key) > maxReturnBytes {
		q.lost += units
		return
	}
	q.keys += len(key)
	limit := *l
	q.hits = append(q.hits, backend.Hit{
		Key: append([]byte(nil), key...), TagLength: tagLen, SharesKey: sharesKey, Limit: &limit, Amount: units,
		Op: algorithm.Refund, Window: windowEnd,
	})
}

// takeAll removes all.
func (q *returnQueue) takeAll() []backend.Hit {
	q.mu.Lock()
	defer q.mu.Unlock()
	hits := q.hits
	q.hits, q.keys = nil, 0
	return hits
}

// addOf adds units of the counter of h.
func (q *returnQueue) addOf(h *backend.Hit, windowEnd int64, units uint64) {
	q.add(h.Key, h.TagLength, h.SharesKey, h.Limit, windowEnd, units)
}

// returnUnits queues units of l to be given back. The caller holds mu of sh, and removes them from l.
func (s *Store) returnUnits(sh *shard, l lease, units uint64) {
	key := sh.key(l)
	s.returns.add(key.bytes, key.tagLength, key.sharesKey, l.limit, l.windowEnd, units)
}

// flushReturns gives back all units that are queued. Those of a call that the store does not answer are lost until
// their window ends: they may have been given back, and a second time would be too many.
func (s *Store) flushReturns(ctx context.Context) {
	hits := s.returns.takeAll()
	for len(hits) > 0 {
		n := min(len(hits), returnsPerBatch)
		b := backend.Batch{Hits: hits[:n], Verdicts: make([]backend.Verdict, n)}
		for i := range b.Hits {
			b.Hits[i].GroupID = uint16(i)
		}
		hits = hits[n:]
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		err := s.cfg.Next.Take(ctx, &b)
		cancel()
		for i := range b.Hits {
			if err == nil && b.Verdicts[i].Err == nil {
				s.figures.unitsReturned.Add(b.Hits[i].Amount)
			} else {
				s.figures.unitsLost.Add(b.Hits[i].Amount)
			}
		}
	}
}
