package rules

import (
	"iter"
	"maps"
)

// table finds values by name. It is compact where there are few: a Go map of one entry takes some 250 bytes. Its zero value
// is empty.
type table[V any] struct {
	few  []named[V] // in the order of add
	many map[string]V
}

type named[V any] struct {
	name  string
	value V
}

// mostFew is how many entries are searched one by one, which takes no longer than a map does.
const mostFew = 8

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

// add adds a name that is not there yet.
func (t *table[V]) add(name string, v V) {
	switch {
	case t.many != nil:
		t.many[name] = v
	case len(t.few) < mostFew:
		t.few = append(t.few, named[V]{name, v})
	default:
		t.many = make(map[string]V, 2*mostFew)
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
