package limiter

import (
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

// scratch is the memory of one decision, used again for the next.
type scratch struct {
	batch  backend.Batch
	owner  []int  // the status that each hit belongs to
	keys   []byte // all keys of the batch, one after the other
	meet   rules.Scratch
	limits []algorithm.Limit // those that came with the request

	canaries    []*rules.Rule // of all descriptors
	canariesEnd []int         // of each descriptor, the end of its canaries
	replaced    rules.Replaced
	large       bool // of Limiter.largePool
}

// maxKept and maxKeptHits bound what a scratch of many descriptors keeps for the next
// request, so that one request of 4 MiB does not leave its size behind in the pool for
// ever. What MaxDescriptors need with a few limits each is kept. Others keep a quarter
// of that: small requests may wait for the store in thousands.
const (
	maxKept     = 256 << 10 // bytes
	maxKeptHits = 4 * MaxDescriptors
	smallShare  = 4
	// fewDescriptors is up to how many a scratch is not large.
	fewDescriptors = 64
)

// scratchFor returns the memory for a decision on that many descriptors.
func (l *Limiter) scratchFor(descriptors int) *scratch {
	if descriptors > fewDescriptors {
		return l.largePool.Get().(*scratch)
	}
	return l.pool.Get().(*scratch)
}

func (l *Limiter) release(s *scratch) {
	pool, share := &l.pool, smallShare
	if s.large {
		pool, share = &l.largePool, 1
	}
	if cap(s.keys) > maxKept/share || cap(s.batch.Hits) > maxKeptHits/share {
		return
	}
	s.meet.Reset(maxKept)
	clear(s.canaries)
	s.canaries, s.canariesEnd = s.canaries[:0], s.canariesEnd[:0]
	clear(s.batch.Hits) // they point into rules that may be replaced
	clear(s.batch.Verdicts)
	s.batch = backend.Batch{Hits: s.batch.Hits[:0], Verdicts: s.batch.Verdicts[:0]}
	s.owner, s.keys, s.limits = s.owner[:0], s.keys[:0], s.limits[:0]
	pool.Put(s)
}

// grow makes room for one more hit. A batch that has to grow doubles: append would
// add a quarter, and so copy a large one many times.
func (s *scratch) grow() {
	if n := len(s.batch.Hits); n == cap(s.batch.Hits) {
		more := max(n, 8)
		s.batch.Hits = slices.Grow(s.batch.Hits, more)
		s.batch.Verdicts = slices.Grow(s.batch.Verdicts, more)
		s.owner = slices.Grow(s.owner, more)
	}
}

// find sets the rules of the statuses from begin to end, those that others of
// these replace taken out again.
func (s *scratch) find(a *Answer, descriptors []Descriptor, begin, end int) {
	for i := begin; i < end; i++ {
		if d := &descriptors[i]; !d.HasLimit {
			a.Statuses[i].Rule, s.canaries = a.Domain.Meet(d.Entries, &s.meet, s.canaries)
		}
		s.canariesEnd = append(s.canariesEnd, len(s.canaries))
	}
	if !a.Domain.Replacing() {
		return
	}
	s.replaced.Reset(a.Domain)
	for i := begin; i < end; i++ {
		s.replace(a.Statuses[i].Rule)
		for _, canary := range s.canariesOf(i) {
			s.replace(canary)
		}
	}
	for i := begin; i < end; i++ {
		if rule := a.Statuses[i].Rule; rule != nil && s.allReplaced(rule) {
			a.Statuses[i].Rule = nil
		}
	}
}

// replace notes what rule, or nil, replaces.
func (s *scratch) replace(rule *rules.Rule) {
	switch {
	case rule == nil:
	case rule.Charges == nil:
		s.replaced.Add(rule)
	default:
		for _, r := range rule.Charges {
			s.replaced.Add(r)
		}
	}
}

// canariesOf are those rules in shadow mode that descriptor i is charged to
// besides.
func (s *scratch) canariesOf(i int) []*rules.Rule {
	from := 0
	if i > 0 {
		from = s.canariesEnd[i-1]
	}
	return s.canaries[from:s.canariesEnd[i]]
}

// allReplaced reports whether nothing is left of rule.
func (s *scratch) allReplaced(rule *rules.Rule) bool {
	if rule.Charges == nil {
		return s.replaced.Has(rule)
	}
	for _, r := range rule.Charges {
		if !s.replaced.Has(r) {
			return false
		}
	}
	return true
}

// requestLimit is the limit that came with d. left is how many descriptors, d
// included, may still bring one.
func (s *scratch) requestLimit(d *Descriptor, left int) (*algorithm.Limit, error) {
	limit, err := d.Limit.Window()
	if err != nil {
		return nil, err
	}
	if cap(s.limits) == len(s.limits) { // pointers into it must stay good
		s.limits = slices.Grow([]algorithm.Limit(nil), left)
	}
	s.limits = append(s.limits, limit)
	return &s.limits[len(s.limits)-1], nil
}

// key appends the key of a descriptor to s.keys and returns it, and its tag.
// A store adds the start of the window, which makes it the key that
// envoyproxy/ratelimit uses, byte for byte, unless keys are escaped. rule is
// nil for a limit that came with the request.
func (s *scratch) key(keys *rules.Keys, d *rules.Domain, rule *rules.Rule, entries []rules.Entry) (key []byte, tag int) {
	start := len(s.keys)
	s.keys, tag = keys.Append(s.keys, d, rule, entries)
	return s.keys[start:len(s.keys):len(s.keys)], tag
}
