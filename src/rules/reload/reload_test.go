package reload

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestHeldBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ what, now, before, bad, want string }{
		{"nothing is bad", "a:web b:api", "a:web", "", ""},
		{"one of two", "a:web b:api", "a:web b:api", "b", "b"},
		{"a new one", "a:web b:api", "a:web", "b", "b"},
		{"a domain twice", "a:web b:web c:jobs", "a:web b:api c:jobs", "b", "a b"},
		{"a domain moved to a bad file", "b:web c:jobs", "a:web c:jobs", "b", "a b"},
		{"a domain moved away from a bad file", "a: b:web c:jobs", "a:web c:jobs", "a", "a b"},
		{"a chain of moves", "a:two b:three c:four d:five", "a:one b:two c:three d:five", "a", "a b c"},
		{"nothing is known of the bad one", "x: b:api", "a:web b:api", "x", "a x"},
		{"the bad one had a version", "a: b:api", "a:web b:api c:jobs", "a", "a"},
		{"a bad one that was not read", "b:api", "a:web b:api", "a", "a"},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			sources := func(text string) (list []Part) {
				for f := range strings.FieldsSeq(text) {
					name, domain, _ := strings.Cut(f, ":")
					list = append(list, Part{ID: name, domain: domain})
				}
				return list
			}
			bad := make(map[string]bool)
			for name := range strings.FieldsSeq(tt.bad) {
				bad[name] = true
			}
			got := strings.Join(slices.Sorted(maps.Keys(heldBackParts(sources(tt.now), sources(tt.before), bad))), " ")
			if got != tt.want {
				t.Errorf("held back %q, want %q", got, tt.want)
			}
		})
	}
}
