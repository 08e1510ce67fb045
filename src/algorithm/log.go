package algorithm

// Clone is a log of its own with the same hits.
func (g *Log) Clone() Log {
	c := *g
	c.marks = append([]mark(nil), g.marks...)
	return c
}
