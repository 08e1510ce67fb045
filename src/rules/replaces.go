package rules

// Replaced collects the names that the rules of one request replace. Its zero
// value is empty and may be used again after Reset.
type Replaced struct{ names []uint64 }

// Replacing reports whether any rule of the domain replaces another, so that
// a Replaced is needed at all.
func (d *Domain) Replacing() bool { return d.replaced > 0 }

// Reset empties p for a request to d.
func (p *Replaced) Reset(d *Domain) {
	size := (d.replaced + 63) / 64
	if cap(p.names) < size {
		p.names = make([]uint64, size)
	}
	p.names = p.names[:size]
	clear(p.names)
}

// Add notes the names that r replaces.
func (p *Replaced) Add(r *Rule) {
	if r.replaces == nil {
		return
	}
	for _, n := range r.replaces.numbers {
		p.names[n/64] |= 1 << (n % 64)
	}
}

// Has reports whether r is replaced and so does not apply. Unlimited rules
// cannot be.
func (p *Replaced) Has(r *Rule) bool {
	return r.name >= 0 && !r.Unlimited && p.names[r.name/64]&(1<<(r.name%64)) != 0
}
