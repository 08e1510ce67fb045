package simulate

import (
	"context"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
)

// tap stands in front of the store and notes what it is asked for: the hits of a
// batch are those of the answer's charges, in the same order.
type tap struct {
	backend.Backend
	prefix int // bytes of each key that are not shown
	keys   []byte
	asked  []asked
	err    error // of the store
}

// asked is one hit. Its key is good until the next request.
type asked struct {
	key      []byte
	kind     algorithm.Kind
	capacity uint64
}

func (t *tap) reset() { t.keys, t.asked, t.err = t.keys[:0], t.asked[:0], nil }

// Take notes the hits and hands them on.
func (t *tap) Take(ctx context.Context, b *backend.Batch) error {
	for i := range b.Hits {
		h := &b.Hits[i]
		from := len(t.keys)
		t.keys = append(t.keys, h.Key[t.prefix:]...) // growing leaves earlier keys where they are
		t.asked = append(t.asked, asked{t.keys[from:len(t.keys):len(t.keys)], h.Limit.Kind, h.Limit.Capacity()})
	}
	err := t.Backend.Take(ctx, b)
	for i := range b.Verdicts {
		if t.err == nil {
			t.err = b.Verdicts[i].Err
		}
	}
	return err
}
