package backend

import "context"

// SubBatch is some hits of a batch, as a batch of their own. Stores in front of other stores send
// parts to them. The zero value is empty.
type SubBatch struct {
	Batch
	// BatchIndexes[k] is the index in the whole batch of hit k.
	BatchIndexes []int
}

// Add appends hit i of b; as a look, which charges nothing, if asLook is set. Hits must be added in the order of b.
// Groups get new numbers, so that two groups of one number stay apart if the groups between them are not added.
func (p *SubBatch) Add(b *Batch, i int, asLook bool) {
	h := b.Hits[i]
	if asLook {
		h = h.AsLook()
	}
	h.GroupID = 0
	if n := len(p.BatchIndexes); n > 0 {
		h.GroupID = p.Hits[n-1].GroupID
		for j := p.BatchIndexes[n-1]; j < i; j++ {
			if b.Hits[j].GroupID != b.Hits[j+1].GroupID {
				h.GroupID++ // the number may wrap around, but neighbouring groups still differ
				break
			}
		}
	}
	p.Hits = append(p.Hits, h)
	p.Verdicts = append(p.Verdicts, Verdict{})
	p.BatchIndexes = append(p.BatchIndexes, i)
	p.Now, p.Ahead = b.Now, b.Ahead
}

// Send sends the part to next, copies the verdicts to b and removes all hits. It does not send an empty part.
func (p *SubBatch) Send(ctx context.Context, next Backend, b *Batch) error {
	if len(p.Hits) == 0 {
		return nil
	}
	if err := next.Take(ctx, &p.Batch); err != nil {
		return err
	}
	p.CopyVerdicts(b)
	p.removeHits()
	return nil
}

// CopyVerdicts copies the verdicts to their places in b.
func (p *SubBatch) CopyVerdicts(b *Batch) {
	for k, i := range p.BatchIndexes {
		v := &b.Verdicts[i]
		*v = p.Verdicts[k]
		if !b.Hits[i].Op.CanBeRefused() { // a refund or a forced hit is never over, but a look in its place may be
			v.Over, v.WithinMinInterval, v.RetryAfter = false, false, 0
		}
	}
}

// removeHits removes all hits and keeps the memory.
func (p *SubBatch) removeHits() {
	clear(p.Hits) // hits point to keys and limits of the caller
	clear(p.Verdicts)
	p.Batch = Batch{Hits: p.Hits[:0], Verdicts: p.Verdicts[:0]}
	p.BatchIndexes = p.BatchIndexes[:0]
}

// MaxPooledHits is the most hits for which stores keep the memory of a part: 1,024, and what append adds.
const MaxPooledHits = 2048

// Reset removes all hits, and reports whether the part has memory for at most that many, so
// that it may be kept for the next batch.
func (p *SubBatch) Reset(most int) bool {
	p.removeHits()
	return cap(p.BatchIndexes) <= most
}
