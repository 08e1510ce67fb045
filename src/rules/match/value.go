package match

import (
	"ratelimit/src/rules"
)

// valueMatchers has the descriptors of a KeyGroup that match more than one value of the key. A search tries its fields
// in their order, after the exact values and before wildcards. The zero value has no descriptors.
type valueMatchers struct {
	Data     dataList
	Networks NetworkTable
	Regexes  regexList
}

// find returns the first descriptor that matches a value, or nil.
func (m *valueMatchers) find(value []byte, b *rules.SearchBounds) *Node {
	if n := m.Data.find(value); n != nil {
		return n
	}
	if n := m.Networks.find(value); n != nil {
		return n
	}
	return m.Regexes.find(value, b)
}

// explain adds the descriptors that find tries, and those that match but come later, to s.
func (m *valueMatchers) explain(value []byte, s *Step, b *rules.SearchBounds) {
	m.Data.explain(value, s)
	m.Networks.explain(value, s)
	m.Regexes.explain(value, s, b)
}

// nodes yields each descriptor once.
func (m *valueMatchers) nodes(yield func(*Node) bool) {
	for i := range m.Data {
		if !yield(m.Data[i].Node) {
			return
		}
	}
	for _, n := range m.Networks.nodes {
		if !yield(n) {
			return
		}
	}
	for i := range m.Regexes {
		if !yield(m.Regexes[i].Node) {
			return
		}
	}
}
