package remote

import (
	"slices"
	"strconv"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

const day = 24 * time.Hour

// upstreamPeriods are the lengths of a window that envoyproxy/ratelimit has.
var upstreamPeriods = []time.Duration{time.Second, time.Minute, time.Hour, day, 7 * day, 30 * day, 365 * day}

// keyMarkers are the names of the algorithms in keys.
var keyMarkers = [...]string{
	algorithm.FixedWindow: "|fw:", algorithm.FirstHitWindow: "|fh:", algorithm.SlidingWindow: "|sl:",
	algorithm.SlidingWindowCounter: "|sc:", algorithm.GCRA: "|gc:", algorithm.Concurrency: "|co",
}

// AppendKey appends the key of h's counter at the instant now: the key of the hit and, for a fixed window, its start in
// seconds. Keys of counters that envoyproxy/ratelimit does not have, or all keys if tagged is set, also have the
// algorithm, the period in seconds, or the name of the calendar, and a hash tag in braces. Redis Cluster keeps keys
// with the same hash tag on one server.
//
//	domain_key_value_key_value_1767225600
//	{domain_key_value_}key_value_|fw:300:1767225600
//	{domain_key_value_}key_value_|fw:1month/15/Europe/Berlin:1768431600
//	{domain_key_value_}key_value_|gc:1.5
//	{domain_key_value_}key_value_|gc:1.5|held
//	{domain_key_value_}key_value_|fw:300|held:1767225600
//	{domain_key_value_}key_value_|co
//
// The last three are those of limits with holds, whose holds have the key of AppendHoldsKey.
//
// The key of a CountDown hit is not changed.
//
// A `}` in the hash tag ends it early, at the same place in all keys with this tag. An empty hash tag is none, so a `}`
// in front is written as %7D. Escaped keys have no `}`.
func AppendKey(dst []byte, h *backend.Hit, now int64, tagged bool) []byte {
	l := h.Limit
	if h.StoresRemaining {
		return append(dst, h.Key...)
	}
	if l.Kind == algorithm.FixedWindow && l.Calendar == nil && l.Hold == 0 && !tagged && !h.SharesKey &&
		slices.Contains(upstreamPeriods, l.Period) {
		dst = append(dst, h.Key...)
		return appendStart(dst, l, now)
	}
	dst = appendWindowKey(dst, h)
	switch {
	case l.Kind == algorithm.Concurrency:
		return dst
	case l.Hold > 0:
		dst = append(dst, heldSuffix...)
	}
	if l.Kind == algorithm.FixedWindow {
		dst = appendStart(append(dst, ':'), l, now)
	}
	return dst
}

// The ends of the keys of a limit with holds that is no concurrency: of the counter without its holds, but for the
// start of a fixed window, and of the holds.
const (
	heldSuffix  = "|held"
	holdsSuffix = "|holds"
)

// AppendHoldsKey appends the key of the holds of h's counter, if they do not have the key of AppendKey. It has no start
// of a window, because a hold may be open in several.
func AppendHoldsKey(dst []byte, h *backend.Hit) []byte {
	if h.Limit.Hold == 0 || h.Limit.Kind == algorithm.Concurrency {
		return dst
	}
	return append(appendWindowKey(dst, h), holdsSuffix...)
}

// appendWindowKey appends the key of h with its hash tag, and what identifies the windows of its limit.
func appendWindowKey(dst []byte, h *backend.Hit) []byte {
	l, tag := h.Limit, h.TagLength
	if tag == 0 {
		tag = len(h.Key)
	}
	dst = append(appendTagStart(dst, h.Key[:tag]), '}')
	dst = append(dst, h.Key[tag:]...)
	dst = append(dst, keyMarkers[l.Kind]...)
	switch {
	case l.Kind == algorithm.Concurrency:
		return dst
	case l.Calendar != nil:
		return append(dst, l.Calendar.String()...)
	}
	return strconv.AppendFloat(dst, l.Period.Seconds(), 'f', -1, 64)
}

// appendTagStart appends the start of a hash tag, with its brace.
func appendTagStart(dst, tag []byte) []byte {
	dst = append(dst, '{')
	if len(tag) > 0 && tag[0] == '}' {
		dst, tag = append(dst, "%7D"...), tag[1:]
	}
	return append(dst, tag...)
}

func appendStart(dst []byte, l *algorithm.Limit, now int64) []byte {
	start, _ := l.WindowBounds(now)
	return strconv.AppendInt(dst, start/int64(time.Second), 10)
}
