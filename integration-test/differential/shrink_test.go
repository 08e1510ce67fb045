package differential

import (
	"slices"
	"time"
)

// shrinkFor bounds the search for a smaller trial.
const shrinkFor = 10 * time.Second

// shrink returns the difference as the smallest trial shows it that still has one of its kind and no class.
func (p *pair) shrink(tr *trial, d difference) string {
	end := time.Now().Add(shrinkFor)
	kind := d.kind()
	fails := func(smaller *trial) bool {
		if time.Now().After(end) {
			return false
		}
		out := p.play(smaller)
		time.Sleep(50 * time.Millisecond) // the next trial must not see the counters of this one
		for _, found := range out.found {
			if found.class == nil && found.kind() == kind {
				d = found
				return true
			}
		}
		return false
	}
	if d.request != nil && tr.next == nil {
		tr = &trial{rules: tr.rules, requests: d.asked}
	}
	tr = shrinkRequests(tr, fails)
	shrinkRules(tr, fails)
	return d.String()
}

// shrinkRequests leaves requests out, from the first on, while the trial fails.
func shrinkRequests(tr *trial, fails func(*trial) bool) *trial {
	for i := 0; i < len(tr.requests); {
		smaller := &trial{rules: tr.rules, next: tr.next, requests: slices.Delete(slices.Clone(tr.requests), i, i+1)}
		if fails(smaller) {
			tr = smaller
		} else {
			i++
		}
	}
	return tr
}

// shrinkRules leaves descriptors out while the trial fails.
func shrinkRules(tr *trial, fails func(*trial) bool) {
	for i := 0; ; {
		smaller, ok := tr.rules.without(i)
		if !ok {
			return
		}
		if next := (&trial{rules: smaller, next: tr.next, requests: tr.requests}); fails(next) {
			tr = next
		} else {
			i++
		}
	}
}

// without returns the rules without the i-th descriptor, and false if there are not so many.
func (all *rules) without(i int) (*rules, bool) {
	found := false
	var cut func(list []*descriptor) []*descriptor
	cut = func(list []*descriptor) []*descriptor {
		var left []*descriptor
		for _, d := range list {
			if i--; i == -1 {
				found = true
				continue
			}
			next := *d
			next.children = cut(d.children)
			left = append(left, &next)
		}
		return left
	}
	smaller := &rules{mistake: all.mistake, descriptors: cut(all.descriptors)}
	return smaller, found
}
