package split

import (
	"context"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

// part is what one store gets of a batch.
type part struct {
	batch algorithm.Batch
	from  []int // the place in the whole batch of each hit
}

// add puts hit i of b at the end. Groups get new numbers, so that two of the
// same number stay apart when those between them are the other store's.
func (p *part) add(b *algorithm.Batch, i int) {
	h := b.Hits[i]
	h.Group = 0
	if n := len(p.from); n > 0 {
		h.Group = p.batch.Hits[n-1].Group
		for j := p.from[n-1]; j < i; j++ {
			if b.Hits[j].Group != b.Hits[j+1].Group {
				h.Group++ // wraps; neighbours still differ
				break
			}
		}
	}
	p.batch.Hits = append(p.batch.Hits, h)
	p.batch.Verdicts = append(p.batch.Verdicts, algorithm.Verdict{})
	p.from = append(p.from, i)
}

// addLook puts a look at hit i of b at the end: what would become of the hit,
// without charging it.
func (p *part) addLook(b *algorithm.Batch, i int) {
	p.add(b, i)
	h := &p.batch.Hits[len(p.batch.Hits)-1]
	*h = h.AsLook()
}

// take sends the part to next, hands the verdicts to where they belong in b,
// and empties the part. An empty part is not sent.
func (p *part) take(ctx context.Context, next limiter.Backend, b *algorithm.Batch) error {
	if len(p.from) == 0 {
		return nil
	}
	p.batch.Now = b.Now
	if err := next.Take(ctx, &p.batch); err != nil {
		return err
	}
	for k, i := range p.from {
		b.Verdicts[i] = b.Hits[i].Looked(p.batch.Verdicts[k])
	}
	p.empty()
	return nil
}

func (p *part) empty() {
	clear(p.batch.Hits) // they point to the caller's keys and to rules
	clear(p.batch.Verdicts)
	p.batch = algorithm.Batch{Hits: p.batch.Hits[:0], Verdicts: p.batch.Verdicts[:0]}
	p.from = p.from[:0]
}

// maxKept bounds what a part keeps for the next batch.
const maxKept = 1024

// reset empties the part, and says whether it is small enough to be kept.
func (p *part) reset() bool {
	p.empty()
	return cap(p.from) <= maxKept
}
