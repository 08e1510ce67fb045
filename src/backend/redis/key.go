package redis

import (
	"strconv"
	"time"

	"ratelimit/src/algorithm"
)

// isUnit tells the windows that envoyproxy/ratelimit has, whose keys are as
// there.
func isUnit(period time.Duration) bool {
	const day = 24 * time.Hour
	switch period {
	case time.Second, time.Minute, time.Hour, day, 7 * day, 30 * day, 365 * day:
		return true
	}
	return false
}

// appendKey appends what a hit is kept under in Redis: the key and the start of
// the window in seconds. Windows that envoyproxy/ratelimit does not have, and
// all with tagged, say how long they are, and put the hit's tag in braces: a
// cluster keeps keys with one such hash tag on one server.
//
//	domain_key_value_key_value_1767225600
//	{domain_key_value_}key_value_|fw:300:1767225600
//
// A `}` in the tag ends it early, in all keys with that tag at the same place.
// If it is the first byte, Redis takes the whole key instead, and the levels of
// one descriptor may be on several servers. Escaped keys have none.
func appendKey(dst []byte, h *algorithm.Hit, now int64, tagged bool) []byte {
	start, _ := algorithm.Window(now, h.Limit.Period)
	if !tagged && isUnit(h.Limit.Period) {
		dst = append(dst, h.Key...)
	} else {
		tag := h.Tag
		if tag == 0 {
			tag = len(h.Key)
		}
		dst = append(dst, '{')
		dst = append(dst, h.Key[:tag]...)
		dst = append(dst, '}')
		dst = append(dst, h.Key[tag:]...)
		dst = append(dst, "|fw:"...)
		dst = strconv.AppendInt(dst, int64(h.Limit.Period/time.Second), 10)
		dst = append(dst, ':')
	}
	return strconv.AppendInt(dst, start/int64(time.Second), 10)
}
