package settings

import (
	"math"
	"strconv"
	"strings"
)

// usualMemory is the default of MEMORY_MAX_BYTES and MAX_BUFFERED_BYTES without a
// GOMEMLIMIT.
const usualMemory = 256 << 20

// defaultMemory returns the default of MEMORY_MAX_BYTES: usualMemory, but at most half of
// GOMEMLIMIT, because the rest of the process needs memory too.
func (r *reader) defaultMemory() int64 { return max(min(r.memoryLimit()/2, usualMemory), minMemory) }

// defaultBuffered returns the default of MAX_BUFFERED_BYTES: a quarter of GOMEMLIMIT, or
// usualMemory without one.
func (r *reader) defaultBuffered() int64 {
	if limit := r.memoryLimit(); limit < math.MaxInt64 {
		return max(limit/4, minBuffered)
	}
	return usualMemory
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
