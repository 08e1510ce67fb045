package settings

import (
	"math"
	"testing"
)

func TestMemoryMaxBytesFollowsMemoryLimit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit, set string
		want       int64
	}{
		{"", "", 256 << 20},
		{"off", "", 256 << 20},
		{"224MiB", "", 112 << 20},
		{"67108864", "", 32 << 20},
		{"67108864B", "", 32 << 20},
		{"1024KiB", "", 512 << 10},
		{"8GiB", "", 256 << 20},                // no more than without
		{"9223372036854775807", "", 256 << 20}, // as "off"
		{"9000000TiB", "", 256 << 20},
		{"-1", "", 256 << 20},
		{"5MB", "", 256 << 20},
		{"1", "", minMemoryBytes},
		{"224MiB", "268435456", 256 << 20},
	} {
		s, _, err := Read(Environment{"GOMEMLIMIT": tt.limit, "MEMORY_MAX_BYTES": tt.set})
		if err != nil || s.MemoryMaxBytes != tt.want {
			t.Errorf("GOMEMLIMIT=%s MEMORY_MAX_BYTES=%s: %d, %v, want %d", tt.limit, tt.set, s.MemoryMaxBytes, err, tt.want)
		}
	}
}

func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": math.MaxInt64, "off": math.MaxInt64, "224MiB": 224 << 20} {
		s, _, err := Read(Environment{"GOMEMLIMIT": text})
		if err != nil || s.MemoryLimit != want {
			t.Errorf("GOMEMLIMIT=%s: %d, %v, want %d", text, s.MemoryLimit, err, want)
		}
	}
}

func TestMaxBufferedFollowsMemoryLimit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		limit, set string
		want       int64 // 0: refused
	}{
		{"", "", 256 << 20},
		{"off", "", 256 << 20},
		{"9223372036854775807", "", 256 << 20}, // as "off"
		{"224MiB", "", 56 << 20},
		{"1GiB", "", 256 << 20},
		{"4TiB", "", 1 << 40},
		{"67108864", "", 16 << 20},
		{"67108864B", "", 16 << 20},
		{"1024KiB", "", 1 << 20}, // a quarter is less than the least
		{"9000000TiB", "", 256 << 20},
		{"-1", "", 256 << 20},
		{"5MB", "", 256 << 20},
		{"224MiB", "1048576", 1 << 20},
		{"", "1048575", 0},
		{"", "0", 0},
		{"", "-5", 0},
	} {
		s, _, err := Read(Environment{"GOMEMLIMIT": tt.limit, "MAX_BUFFERED_BYTES": tt.set})
		switch {
		case tt.want == 0 && err == nil:
			t.Errorf("GOMEMLIMIT=%s MAX_BUFFERED_BYTES=%s: accepted as %d", tt.limit, tt.set, s.MaxBuffered)
		case tt.want > 0 && (err != nil || s.MaxBuffered != tt.want):
			t.Errorf("GOMEMLIMIT=%s MAX_BUFFERED_BYTES=%s: %d, %v, want %d", tt.limit, tt.set, s.MaxBuffered, err, tt.want)
		}
	}
}
