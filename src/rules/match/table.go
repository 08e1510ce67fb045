package match

import (
	"iter"
	"maps"
)

// nameTable is a map from names to values that takes little memory for few entries: a Go map with one entry takes some
// 250 bytes. Its zero value is empty.
type nameTable[V any] struct {
	smallEntries []tableEntry[V] // the entries of a table of at most maxSmallTable entries, in the order of add
	largeMap     map[string]V    // the entries of a larger table, whose smallEntries is nil
}

type tableEntry[V any] struct {
	name  string
	value V
}

// maxSmallTable is the number of entries up to which a search one by one is as fast as a map.
const maxSmallTable = 8

// Find returns the value with the name, or the zero value.
func (t *nameTable[V]) Find(name []byte) (v V) {
	if t.largeMap != nil {
		return t.largeMap[string(name)]
	}
	for i := range t.smallEntries {
		if e := &t.smallEntries[i]; e.name == string(name) {
			return e.value
		}
	}
	return v
}

// Add adds an entry. The table must not have an entry with the name.
func (t *nameTable[V]) Add(name string, v V) {
	switch {
	case t.largeMap != nil:
		t.largeMap[name] = v
	case len(t.smallEntries) < maxSmallTable:
		t.smallEntries = append(t.smallEntries, tableEntry[V]{name, v})
	default:
		t.largeMap = make(map[string]V, 2*maxSmallTable)
		for _, e := range t.smallEntries {
			t.largeMap[e.name] = e.value
		}
		t.largeMap[name], t.smallEntries = v, nil
	}
}

func (t *nameTable[V]) len() int { return len(t.smallEntries) + len(t.largeMap) }

// All yields all entries in any order.
func (t *nameTable[V]) All() iter.Seq2[string, V] {
	if t.largeMap != nil {
		return maps.All(t.largeMap)
	}
	return func(yield func(string, V) bool) {
		for i := range t.smallEntries {
			if !yield(t.smallEntries[i].name, t.smallEntries[i].value) {
				return
			}
		}
	}
}
