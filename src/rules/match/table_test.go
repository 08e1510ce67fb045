package match

import (
	"maps"
	"slices"
	"strconv"
	"testing"
)

func TestTable(t *testing.T) {
	t.Parallel()
	var list nameTable[int]
	for n := range 3 * maxSmallTable {
		if list.len() != n || list.Find([]byte(strconv.Itoa(n))) != 0 {
			t.Fatalf("with %d entries: %d, and %d for one that is not there", n, list.len(), list.Find([]byte(strconv.Itoa(n))))
		}
		list.Add(strconv.Itoa(n), n+1)
		for i := range n + 1 {
			if got := list.Find([]byte(strconv.Itoa(i))); got != i+1 {
				t.Fatalf("of %d entries, %d has %d", n+1, i, got)
			}
		}
		values := slices.Sorted(maps.Values(maps.Collect(list.All())))
		if len(values) != n+1 || values[0] != 1 || values[n] != n+1 || list.len() != n+1 {
			t.Fatalf("of %d entries: %v", n+1, values)
		}
		for range list.All() {
			break // stops at once, whatever the form
		}
	}
}
