package memcached

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

type protocol struct{ store *Store }

func (p protocol) NewExchanges(n int) []remote.Exchange {
	exchanges := make([]remote.Exchange, n)
	for i := range exchanges {
		exchanges[i] = newExchange(max(p.store.cfg.MaxInFlight/n, 1), &p.store.Counts, p.store.cfg.OnBatch)
	}
	return exchanges
}

// ttlSlack is added to the time to live of each counter. Memcached's clock ticks once a
// second, so a counter may expire up to a second too early.
const ttlSlack = 2 * time.Second

var countableKinds = []algorithm.Kind{algorithm.FixedWindow, algorithm.SlidingWindowCounter}

// CountableKinds returns the algorithms that Memcached can count if refused hits count as well.
func CountableKinds() []algorithm.Kind { return countableKinds }

// FillCall adds the hits of b to c. A hit on a sliding window is followed by a lookup of the previous window.
func (p protocol) FillCall(c *remote.Call, b *backend.Batch, now int64) error {
	cfg := &p.store.cfg
	for i := range b.Hits {
		h := &b.Hits[i]
		if !slices.Contains(countableKinds, h.Limit.Kind) || h.Limit.Hold > 0 || h.Atomic ||
			h.Op == algorithm.Charge && !h.Limit.CountBlocked {
			return ErrUnsupported
		}
		hit := remote.NewHit(h)
		hit.ResolveWindow(h, now)
		hit.Cost = remote.CommandCost
		ttl := remote.WindowTTL(h.Limit, now) + b.Ahead + ttlSlack
		sliding := h.Limit.Kind == algorithm.SlidingWindowCounter
		if sliding {
			ttl += h.Limit.Period
		}
		hit.SetTTL(ttl, cfg.ExpirationJitter, !b.Now.IsZero())
		if sliding && hit.Amount == 0 {
			hit.Op = algorithm.Look
		}
		c.Keys = appendKey(c.Keys, h, now, cfg.TagKeys, 0)
		c.AddHit(hit)
		if sliding {
			hit.Op = algorithm.Look
			c.Keys = appendKey(c.Keys, h, now, cfg.TagKeys, 1)
			c.AddHit(hit)
		}
	}
	return nil
}

func (protocol) Verdicts(c *remote.Call, b *backend.Batch, now int64) {
	counts := c.Hits
	next := func() *remote.Hit {
		count := &counts[0]
		counts = counts[1:]
		return count
	}
	for i := range b.Hits {
		h, v, current := &b.Hits[i], &b.Verdicts[i], next()
		*v = backend.Verdict{Err: current.Err}
		if h.Limit.Kind != algorithm.SlidingWindowCounter {
			if v.Err == nil {
				_, v.Outcome = algorithm.TakeFixed(h.Limit, uint64(current.CountBefore), now, h.Op, current.Amount)
			}
			continue
		}
		previous := next()
		if v.Err = cmp.Or(v.Err, previous.Err); v.Err == nil {
			start, _ := algorithm.WindowBounds(now, h.Limit.Period)
			buckets := algorithm.SlidingCounterState{
				WindowStart: start, PreviousCount: uint64(previous.CountBefore),
				CurrentCount: uint64(current.CountBefore),
			}
			_, v.Outcome = algorithm.TakeSlidingCounter(h.Limit, buckets, now, h.Op, current.Amount)
		}
	}
}

// maxRelativeExpiration is the longest relative expiration in seconds. Memcached reads larger numbers
// as seconds since the Unix epoch.
const maxRelativeExpiration = 30 * 24 * 60 * 60

// serverClockSlack is added to absolute expirations, in seconds, because the clock of the server may be ahead of ours.
const serverClockSlack = 60 * 60

// expiration returns the expiration of a counter that must live for ttl seconds. Memcached's
// dates end in 2038. A counter that would live longer gets 0: it stays until it is evicted.
func expiration(now time.Time, ttl int64) int32 {
	if ttl <= maxRelativeExpiration {
		return int32(ttl)
	}
	if date := now.Unix() + ttl + serverClockSlack; date <= math.MaxInt32 {
		return int32(date)
	}
	return 0
}

// maxKeyBytes is the longest key that Memcached accepts, in bytes.
const maxKeyBytes = 250

// appendKey appends the key of h's counter at the instant now. A sliding window counter has a key for each window,
// which ends with the start of the window in seconds. ago is 0 for the current window and 1 for the previous one.
//
//	domain_key_value_1767225600
//	{domain_key_value_}|fw:300:1767225600
//	{domain_key_value_}|sc:1.5:1767225600
//
// A key that Memcached does not accept is replaced by its hash.
func appendKey(dst []byte, h *backend.Hit, now int64, tagged bool, ago int64) []byte {
	from := len(dst)
	dst = remote.AppendKey(dst, h, now, tagged)
	if h.Limit.Kind == algorithm.SlidingWindowCounter {
		start, _ := algorithm.WindowBounds(now, h.Limit.Period)
		start -= ago * int64(h.Limit.Period)
		dst = append(dst, ':')
		dst = strconv.AppendFloat(dst, time.Duration(start).Seconds(), 'f', -1, 64)
	}
	return legalizeKey(dst, from)
}

// legalizeKey replaces the key that starts at dst[from] by its hash if Memcached does not accept it.
func legalizeKey(dst []byte, from int) []byte {
	if isLegalKey(dst[from:]) {
		return dst
	}
	sum := sha256.Sum256(dst[from:])
	dst = append(dst[:from], "sha256:"...)
	dst = hex.AppendEncode(dst, sum[:])
	return append(dst, '#') // No key that is not a hash ends with #.
}

// isLegalKey reports whether Memcached and its tools accept key.
func isLegalKey(key []byte) bool {
	if len(key) > maxKeyBytes || !utf8.Valid(key) {
		return false
	}
	for _, c := range key {
		if c <= ' ' || c == 0x7f {
			return false
		}
	}
	return true
}
