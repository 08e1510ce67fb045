package remote

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

const day = 24 * time.Hour

// units are the window lengths that envoyproxy/ratelimit knows.
var units = []time.Duration{time.Second, time.Minute, time.Hour, day, 7 * day, 30 * day, 365 * day}

// keyKinds are the names of the algorithms in keys.
var keyKinds = [...]string{
	algorithm.FixedWindow: "|fw:", algorithm.FirstHitWindow: "|fh:", algorithm.SlidingWindow: "|sl:",
	algorithm.SlidingWindowCounter: "|sc:", algorithm.GCRA: "|gc:",
}

// AppendKey appends the key of a counter: that of the hit and, for a fixed window, its
// start in seconds. Counters that envoyproxy/ratelimit does not have also name their
// algorithm and period in seconds, and put the hit's tag in braces: a cluster of Redis
// keeps keys with one such hash tag on one server. With tagged all counters do.
//
//	domain_key_value_key_value_1767225600
//	{domain_key_value_}key_value_|fw:300:1767225600
//	{domain_key_value_}key_value_|gc:1.5
//
// Keys of CountDown hits stay as they are.
//
// A `}` in the tag ends it early, in all keys with that tag at the same place. If it is
// the first byte, Redis takes the whole key instead, and the levels of one descriptor
// may be on several servers. Escaped keys have none.
func AppendKey(dst []byte, h *backend.Hit, now int64, tagged bool) []byte {
	l := h.Limit
	if h.CountDown {
		return append(dst, h.Key...)
	}
	if l.Kind == algorithm.FixedWindow && !tagged && !h.Joint && slices.Contains(units, l.Period) {
		dst = append(dst, h.Key...)
		return appendStart(dst, l, now)
	}
	tag := h.Tag
	if tag == 0 {
		tag = len(h.Key)
	}
	dst = append(dst, '{')
	dst = append(dst, h.Key[:tag]...)
	dst = append(dst, '}')
	dst = append(dst, h.Key[tag:]...)
	dst = append(dst, keyKinds[l.Kind]...)
	dst = strconv.AppendFloat(dst, l.Period.Seconds(), 'f', -1, 64)
	if l.Kind == algorithm.FixedWindow {
		dst = appendStart(append(dst, ':'), l, now)
	}
	return dst
}

func appendStart(dst []byte, l *algorithm.Limit, now int64) []byte {
	start, _ := algorithm.Window(now, l.Period)
	return strconv.AppendInt(dst, start/int64(time.Second), 10)
}

// JitterSeconds returns a random number of seconds below jitter, so that keys of one
// window do not all expire at once.
func JitterSeconds(jitter time.Duration) int64 {
	if most := int64(jitter / time.Second); most > 0 {
		return rand.Int64N(most)
	}
	return 0
}
