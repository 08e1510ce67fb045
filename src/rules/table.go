package rules

import (
	"iter"
	"maps"
)

// table is a map from names to values that is small while it has few entries; a Go map with one entry takes some 250 bytes. Its
// zero value is empty.
type table[V any] struct {
	few  []named[V]   // up to maxFew entries, in the order of add
	many map[string]V // all entries once there are more; few is nil then
}

type named[V any] struct {
	name  string
	value V
}

// maxFew is the number of entries up to which a search one by one is as fast as a map.
const maxFew = 8

// find returns the value of that name, or the zero value.
func (t *table[V]) find(name []byte) (v V) {
	if t.many != nil {
		return t.many[string(name)]
	}
	for i := range t.few {
		if e := &t.few[i]; e.name == string(name) {
			return e.value
		}
	}
	return v
}

// add adds an entry. The table must not have the name yet.
func (t *table[V]) add(name string, v V) {
	switch {
	case t.many != nil:
		t.many[name] = v
	case len(t.few) < maxFew:
		t.few = append(t.few, named[V]{name, v})
	default:
		t.many = make(map[string]V, 2*maxFew)
		for _, e := range t.few {
			t.many[e.name] = e.value
		}
		t.many[name], t.few = v, nil
	}
}

func (t *table[V]) len() int { return len(t.few) + len(t.many) }

// all yields all entries, in no order.
func (t *table[V]) all() iter.Seq2[string, V] {
	if t.many != nil {
		return maps.All(t.many)
	}
	return func(yield func(string, V) bool) {
		for i := range t.few {
			if !yield(t.few[i].name, t.few[i].value) {
				return
			}
		}
	}
}
