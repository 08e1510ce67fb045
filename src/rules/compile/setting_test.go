package compile

import (
	"maps"
	"slices"
	"testing"

	"ratelimit/src/rules"
)

// Each setting has a field that holds it, and each field is a setting.
func TestEverySettingHasAField(t *testing.T) {
	t.Parallel()
	var names []string
	for _, s := range rules.Settings {
		names = append(names, s.Name)
	}
	slices.Sort(names)
	if fields := slices.Sorted(maps.Keys(limitFields)); !slices.Equal(fields, names) {
		t.Errorf("RateLimitConfig has fields for %v, want those of rules.Settings: %v", fields, names)
	}
}
