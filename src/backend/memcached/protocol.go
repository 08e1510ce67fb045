package memcached

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

// protocol is remote.Protocol of Memcached.
type protocol struct {
	cfg    *Config
	counts *Counts
}

// NewExchange returns the exchange of one connection.
func (p *protocol) NewExchange() remote.Exchange {
	return newExchange(max(p.cfg.InFlight/p.cfg.Connections, 1), p.counts, p.cfg.OnBatch)
}

func (*protocol) CauseOf(err error) string { return causeOf(err) }
func (*protocol) IsAnswer(err error) bool  { return isAnswer(err) }

// slack is added to the lifetime of each counter. Memcached's clock ticks once a second, so a
// counter may expire up to a second too early.
const slack = 2 * time.Second

// virtualLife is the shortest lifetime of a counter in virtual time, which may pass more
// slowly than Memcached's clock.
const virtualLife = time.Hour

// Fill adds the hits of b to c. A hit on a sliding window is followed by a lookup of
// the window before.
func (p *protocol) Fill(c *remote.Call, b *backend.Batch, now int64) error {
	for i := range b.Hits {
		h := &b.Hits[i]
		if !canCount(h) {
			return ErrUnsupported
		}
		hit := remote.NewHit(h)
		hit.Cost = remote.CommandCost
		life := h.Limit.Period + slack
		sliding := h.Limit.Kind == algorithm.SlidingWindowCounter
		if sliding {
			life += h.Limit.Period
		}
		if !b.Now.IsZero() {
			life = max(life, virtualLife)
		}
		hit.TTL = seconds(life) + remote.JitterSeconds(p.cfg.ExpirationJitter)
		if sliding && h.Amount == 0 {
			hit.Op = algorithm.Look
		}
		c.Keys = appendKey(c.Keys, h, now, p.cfg.TagKeys, 0)
		c.AddHit(hit)
		if sliding {
			hit.Op = algorithm.Look
			c.Keys = appendKey(c.Keys, h, now, p.cfg.TagKeys, 1)
			c.AddHit(hit)
		}
	}
	return nil
}

// Kinds are the algorithms that Memcached can count, if refused hits count as well.
func Kinds() []algorithm.Kind {
	return []algorithm.Kind{algorithm.FixedWindow, algorithm.SlidingWindowCounter}
}

// canCount reports whether Memcached can do what h asks for.
func canCount(h *backend.Hit) bool {
	known := h.Limit.Kind == algorithm.FixedWindow || h.Limit.Kind == algorithm.SlidingWindowCounter
	return known && !h.Atomic && (h.Limit.CountBlocked || h.Op != algorithm.Charge)
}

// Verdicts turns the counts of c into the verdicts of b.
func (*protocol) Verdicts(c *remote.Call, b *backend.Batch, now int64) {
	counts := c.Hits
	for i := range b.Hits {
		h, v := &b.Hits[i], &b.Verdicts[i]
		count := &counts[0]
		counts = counts[1:]
		*v = backend.Verdict{Err: count.Err}
		if h.Limit.Kind != algorithm.SlidingWindowCounter {
			if v.Err == nil {
				_, v.Outcome = algorithm.TakeFixed(h.Limit, uint64(count.Before), now, h.Op, h.Amount)
			}
			continue
		}
		previous := &counts[0]
		counts = counts[1:]
		if v.Err == nil {
			v.Err = previous.Err
		}
		if v.Err == nil {
			start, _ := algorithm.Window(now, h.Limit.Period)
			buckets := algorithm.Buckets{Start: start, Previous: uint64(previous.Before), Current: uint64(count.Before)}
			_, v.Outcome = algorithm.TakeSlidingCounter(h.Limit, buckets, now, h.Op, h.Amount)
		}
	}
}

// maxRelative is the longest relative lifetime in seconds. Memcached reads larger numbers as
// dates.
const maxRelative = 30 * 24 * 60 * 60

// dateSlack is added to dates of expiry, in seconds: the clock of the server may be ahead of
// ours.
const dateSlack = 60 * 60

// expiry returns how Memcached is told that a counter lives for so many seconds. Its
// dates end in 2038; what would live longer has none and stays until it is evicted.
func expiry(now time.Time, seconds int64) int32 {
	if seconds <= maxRelative {
		return int32(seconds)
	}
	if date := now.Unix() + seconds + dateSlack; date <= math.MaxInt32 {
		return int32(date)
	}
	return 0
}

// seconds returns d in seconds, rounded up.
func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

func decimal(n uint64) []byte { return strconv.AppendUint(nil, n, 10) }

// maxKey is the longest key that Memcached accepts, in bytes.
const maxKey = 250

// appendKey appends the key of h's counter at the instant now. A sliding window counter has a
// key for each window, which ends with the start of the window in seconds; ago is 1 for the
// window before the current one.
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
		start, _ := algorithm.Window(now, h.Limit.Period)
		start -= ago * int64(h.Limit.Period)
		dst = append(dst, ':')
		dst = strconv.AppendFloat(dst, time.Duration(start).Seconds(), 'f', -1, 64)
	}
	if !legal(dst[from:]) {
		sum := sha256.Sum256(dst[from:])
		dst = append(dst[:from], "sha256:"...)
		dst = hex.AppendEncode(dst, sum[:])
		dst = append(dst, '#') // all others end with a digit
	}
	return dst
}

// legal reports whether Memcached and its tools accept key.
func legal(key []byte) bool {
	if len(key) > maxKey || !utf8.Valid(key) {
		return false
	}
	for _, c := range key {
		if c <= ' ' || c == 0x7f {
			return false
		}
	}
	return true
}
