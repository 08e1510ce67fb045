package memcached

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"time"
	"unicode/utf8"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/remote"
)

// maxKey is how many bytes Memcached takes for a key.
const maxKey = 250

// appendKey appends what h is kept under at the instant now: the name that
// package remote gives it, of a sliding window counter with the start of its
// window behind it, in seconds. Ago is 1 for the window before.
//
//	domain_key_value_1767225600
//	{domain_key_value_}|fw:300:1767225600
//	{domain_key_value_}|sc:1.5:1767225600
//
// What Memcached does not take for a key becomes its hash.
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

// legal reports whether Memcached, and its tools, can take key as it
// is.
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
