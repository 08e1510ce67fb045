package settings

import (
	"math"
	"strconv"
	"strings"
)

// The least MEMORY_MAX_BYTES and MAX_BUFFERED_BYTES, and what both default to without a
// GOMEMLIMIT, as the table says.
const (
	minMemory   = 128 << 10 // the empty tables of the memory store
	minBuffered = 1 << 20   // room for the largest body of an HTTP request
	usualMemory = 256 << 20
)

// memoryDefaults returns the defaults that depend on GOMEMLIMIT, by name: MEMORY_MAX_BYTES is
// at most half of it, because the rest of the process needs memory too, and
// MAX_BUFFERED_BYTES is a quarter of it.
func (r *reader) memoryDefaults() map[string]string {
	limit := r.memoryLimit()
	if limit == math.MaxInt64 {
		return nil
	}
	return map[string]string{
		"MEMORY_MAX_BYTES":   strconv.FormatInt(max(min(limit/2, usualMemory), minMemory), 10),
		"MAX_BUFFERED_BYTES": strconv.FormatInt(max(limit/4, minBuffered), 10),
	}
}

// memoryLimit returns GOMEMLIMIT in bytes, or math.MaxInt64 if there is no limit.
func (r *reader) memoryLimit() int64 {
	text, _ := r.lookup("GOMEMLIMIT")
	if limit, ok := memoryLimit(text); ok {
		return limit
	}
	return math.MaxInt64
}

// memoryLimit reads the value of GOMEMLIMIT: a number of bytes, or one with the
// unit B, KiB, MiB, GiB or TiB. It reports false for "off" and without
// a limit, and for other texts, with which the Go runtime ends the process at the start.
func memoryLimit(text string) (bytes int64, ok bool) {
	number, shift := text, 0
	for i, unit := range []string{"B", "KiB", "MiB", "GiB", "TiB"} {
		if n, found := strings.CutSuffix(text, unit); found {
			number, shift = n, 10*i
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift || n<<shift == math.MaxInt64 {
		return 0, false
	}
	return n << shift, true
}
