package settings

import "testing"

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
		{"1", "", minMemory},
		{"224MiB", "268435456", 256 << 20},
	} {
		env := map[string]string{"GOMEMLIMIT": tt.limit, "MEMORY_MAX_BYTES": tt.set}
		s, _, err := Read(func(name string) (string, bool) { v, ok := env[name]; return v, ok && v != "" })
		if err != nil || s.MemoryMaxBytes != tt.want {
			t.Errorf("GOMEMLIMIT=%s MEMORY_MAX_BYTES=%s: %d, %v, want %d", tt.limit, tt.set, s.MemoryMaxBytes, err, tt.want)
		}
	}
}
