package notify

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// claimTimeout is how long the store has for a claim.
const claimTimeout = 2 * time.Second

// maxClaims is how many subjects are claimed in one call of the store.
const maxClaims = 32

// claim claims first and others that wait, and sends the messages of those that no replica had claimed.
func (n *Notifier) claim(first *reached) {
	list := []*reached{first}
	for len(list) < maxClaims && len(n.found) > 0 {
		list = append(list, <-n.found)
	}
	var b backend.Batch
	var highest []int // for each of list the index of the hit for its percentage
	for _, r := range list {
		limit := r.claimLimit()
		for i := range r.threshold + 1 {
			b.Hits = append(b.Hits, backend.Hit{
				Key: []byte(r.claimKey(n.cfg.KeyPrefix, i)), Limit: limit, Amount: 1, GroupID: uint16(len(b.Hits)),
			})
		}
		highest = append(highest, len(b.Hits)-1)
	}
	b.Verdicts = make([]backend.Verdict, len(b.Hits))
	ctx, cancel := context.WithTimeout(context.Background(), claimTimeout)
	defer cancel()
	if err := n.cfg.Backend.Take(ctx, &b); err != nil { // A backend reports only misuse so.
		for range list {
			n.sender.fail("", fmt.Errorf("the claim is refused: %w", err))
		}
		return
	}
	for i, r := range list {
		if v := &b.Verdicts[highest[i]]; v.Err == nil && v.Over {
			continue // Another replica tells it, or this one has told it.
		}
		n.send(r)
	}
}

// claimLimit returns the limit of the counter of a claim: one unit in the window. It is a fixed window if it can be,
// because that is what all stores can count.
func (r *reached) claimLimit() *algorithm.Limit {
	l := r.rule.Limit // with its calendar, if it has one
	if l.Kind != algorithm.FixedWindow {
		l = algorithm.Limit{Kind: algorithm.FixedWindow, Period: claimPeriod(&l)}
	}
	if r.rule.Limit.Kind == algorithm.FirstHitWindow { // The claim comes later than the first hit, and ends later.
		l.Kind = algorithm.FirstHitWindow
	}
	l.Max, l.Hold, l.ReleaseUnsettled, l.CountBlocked = 1, 0, false, true
	return &l
}

// claimPeriod returns the period of l in whole seconds, rounded up.
func claimPeriod(l *algorithm.Limit) time.Duration {
	return min((l.Period + time.Second - 1).Truncate(time.Second), algorithm.MaxPeriod)
}

// claimKey returns the key of the counter of a claim. threshold is an index in rule.Notify.At.
func (r *reached) claimKey(prefix string, threshold int) string {
	return fmt.Sprintf("%snotify_%d_%d_%s", prefix, r.rule.Notify.At[threshold], r.windowEnd, r.counterKey)
}

// id returns a text that is the same for the same subject, percentage and window in all replicas.
func (r *reached) id() string {
	sum := sha256.Sum256([]byte(r.claimKey("", r.threshold)))
	return "limit_" + hex.EncodeToString(sum[:12])
}
