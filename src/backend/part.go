package backend

import "context"

// Part is some hits of a batch, as a batch of their own. Stores that stand in front of
// other stores send parts to them. The zero value is empty.
type Part struct {
	Batch
	// From[k] is the index in the whole batch of hit k.
	From []int
}

// Add appends hit i of b. Hits must be added in their order. Groups get new numbers, so
// that two groups of one number stay apart if the groups between them are not added.
func (p *Part) Add(b *Batch, i int) {
	h := b.Hits[i]
	h.Group = 0
	if n := len(p.From); n > 0 {
		h.Group = p.Hits[n-1].Group
		for j := p.From[n-1]; j < i; j++ {
			if b.Hits[j].Group != b.Hits[j+1].Group {
				h.Group++ // may wrap around; neighbours still differ
				break
			}
		}
	}
	p.Hits = append(p.Hits, h)
	p.Verdicts = append(p.Verdicts, Verdict{})
	p.From = append(p.From, i)
	p.Now = b.Now
}

// AddLook appends hit i of b as a look, which charges nothing.
func (p *Part) AddLook(b *Batch, i int) {
	p.Add(b, i)
	h := &p.Hits[len(p.Hits)-1]
	*h = h.AsLook()
}

// Send takes the part from next, returns the verdicts to b and empties the part. An empty
// part is not sent.
func (p *Part) Send(ctx context.Context, next Backend, b *Batch) error {
	if len(p.Hits) == 0 {
		return nil
	}
	if err := next.Take(ctx, &p.Batch); err != nil {
		return err
	}
	p.Return(b)
	p.Empty()
	return nil
}

// Return copies the verdicts to their places in b.
func (p *Part) Return(b *Batch) {
	for k, i := range p.From {
		b.Verdicts[i] = b.Hits[i].Looked(p.Verdicts[k])
	}
}

// Empty removes all hits and keeps the memory.
func (p *Part) Empty() {
	clear(p.Hits) // they point to keys and limits of the caller
	clear(p.Verdicts)
	p.Batch = Batch{Hits: p.Hits[:0], Verdicts: p.Verdicts[:0]}
	p.From = p.From[:0]
}

// maxKept is the largest part whose memory is kept for the next batch.
const maxKept = 1024

// Reset empties the part, and reports whether it is small enough to be kept.
func (p *Part) Reset() bool {
	p.Empty()
	return cap(p.From) <= maxKept
}
