package settings

import (
	"math"
	"strconv"
	"strings"
)

// Bounds on the defaults of MEMORY_MAX_BYTES and MAX_BUFFERED_BYTES, in bytes.
const (
	minMemory   = 128 << 10 // least MEMORY_MAX_BYTES: the empty tables of the memory store
	minBuffered = 1 << 20   // least MAX_BUFFERED_BYTES: the largest body of an HTTP request
	usualMemory = 256 << 20 // the default of both without GOMEMLIMIT, as in settings.txt
)

// memoryDefaults returns the defaults that depend on GOMEMLIMIT, by name of the variable. With
// 400 MiB, MEMORY_MAX_BYTES is half of it (at most 256 MiB), 200 MiB, and MAX_BUFFERED_BYTES
// is a quarter, 100 MiB. It returns nil without GOMEMLIMIT.
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

// memoryLimit reads the value of GOMEMLIMIT: a number of bytes, or a number with the unit B,
// KiB, MiB, GiB or TiB. It returns false for an empty text and "off". It also returns false
// for invalid texts, with which the Go runtime does not start the process.
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
