package backend

// Part is some hits of a batch, as a batch of their own: for what stands in front
// of stores, and sends a hit here and another there. Its zero value is empty.
type Part struct {
	Batch
	// From is the place in the whole batch of each hit.
	From []int
}

// Add puts hit i of b at the end; hits are added in their order. Groups get new
// numbers, so that two of the same number stay apart when those between them are
// not in the part.
func (p *Part) Add(b *Batch, i int) {
	h := b.Hits[i]
	h.Group = 0
	if n := len(p.From); n > 0 {
		h.Group = p.Hits[n-1].Group
		for j := p.From[n-1]; j < i; j++ {
			if b.Hits[j].Group != b.Hits[j+1].Group {
				h.Group++ // wraps; neighbours still differ
				break
			}
		}
	}
	p.Hits = append(p.Hits, h)
	p.Verdicts = append(p.Verdicts, Verdict{})
	p.From = append(p.From, i)
	p.Now = b.Now
}

// AddLook puts a look at hit i of b at the end: what would become of the hit,
// without charging it.
func (p *Part) AddLook(b *Batch, i int) {
	p.Add(b, i)
	h := &p.Hits[len(p.Hits)-1]
	*h = h.AsLook()
}

// Return hands the verdicts to where they belong in b.
func (p *Part) Return(b *Batch) {
	for k, i := range p.From {
		b.Verdicts[i] = b.Hits[i].Looked(p.Verdicts[k])
	}
}

// Empty takes all hits out, and keeps the memory.
func (p *Part) Empty() {
	clear(p.Hits) // they point to the caller's keys and to rules
	clear(p.Verdicts)
	p.Batch = Batch{Hits: p.Hits[:0], Verdicts: p.Verdicts[:0]}
	p.From = p.From[:0]
}

// maxKept bounds what a part is kept for the next batch with.
const maxKept = 1024

// Reset empties the part, and says whether it is small enough to be kept.
func (p *Part) Reset() bool {
	p.Empty()
	return cap(p.From) <= maxKept
}
