package leased

import (
	"context"
	"slices"
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
	ends []int64       // of hits: until when the units could be used, by instant.forLimit; guarded by mu
	keys int           // the bytes of their keys; guarded by mu
	lost uint64        // the units for which there was no room; guarded by mu
}

// add adds h, a refund of units that could be used until end, unless its amount is 0. It copies what h refers to.
func (q *returnQueue) add(h backend.Hit, end int64) {
	if h.Amount == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.hits) == maxReturns || q.keys+len(h.Key) > maxReturnBytes {
		q.lost += h.Amount
		return
	}
	limit := *h.Limit
	h.Op, h.Key, h.Limit = algorithm.Refund, append([]byte(nil), h.Key...), &limit
	q.keys += len(h.Key)
	q.hits, q.ends = append(q.hits, h), append(q.ends, end)
}

// takeAll removes all. What a bucket got since its units could be used last is not given back: others had it.
func (q *returnQueue) takeAll(now instant) []backend.Hit {
	q.mu.Lock()
	defer q.mu.Unlock()
	hits := q.hits
	for i := range hits {
		h := &hits[i]
		h.Amount = h.Limit.CountAfter(h.Amount, time.Duration(now.forLimit(h.Limit)-q.ends[i]))
	}
	q.hits, q.ends, q.keys = nil, nil, 0
	return slices.DeleteFunc(hits, func(h backend.Hit) bool { return h.Amount == 0 })
}

// addOf adds units that the store counted for h in the window up to windowEnd, when it was asked at the instant asked.
func (q *returnQueue) addOf(h *backend.Hit, windowEnd int64, units uint64, asked instant) {
	q.add(refundOf(h, windowEnd, units), asked.forLimit(h.Limit)+int64(h.Limit.LeaseTerm(&algorithm.Outcome{})))
}

// refundOf returns a refund of units of the counter of h that was charged in the window up to windowEnd.
func refundOf(h *backend.Hit, windowEnd int64, units uint64) backend.Hit {
	return backend.Hit{
		Key: h.Key, TagLength: h.TagLength, SharesKey: h.SharesKey, Limit: h.Limit, Amount: units, Window: windowEnd,
	}
}

// returnUnits queues units of l to be given back. The caller holds mu of sh, and removes them from l.
func (s *Store) returnUnits(sh *shard, l lease, units uint64) {
	key := sh.key(l)
	s.returns.add(backend.Hit{
		Key: key.bytes, TagLength: key.tagLength, SharesKey: key.sharesKey, Limit: l.limit, Amount: units,
		Window: l.windowEnd,
	}, l.end)
}

// flushReturns gives back all units that are queued. Those of a call that the store does not answer are lost until
// their window ends: they may have been given back, and a second time would be too many.
func (s *Store) flushReturns(ctx context.Context) { s.giveBackHits(ctx, s.returns.takeAll(s.now()), 0) }

// giveBackHits sends refunds, so far ahead of the clock.
func (s *Store) giveBackHits(ctx context.Context, hits []backend.Hit, ahead time.Duration) {
	for len(hits) > 0 {
		n := min(len(hits), returnsPerBatch)
		b := backend.Batch{Hits: hits[:n], Verdicts: make([]backend.Verdict, n), Ahead: ahead}
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
