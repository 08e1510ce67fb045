package metrics

import "sync"

// retired are counters that are gone: evicted, or of rules that are no more.
// What they counted since it was last sent must not be lost, and where another
// counter has the same name, their sum must not fall. So they are kept until
// one flush has shown them, and what they counted goes to the other counter.
type retired struct {
	most int

	mu      sync.Mutex
	gone    map[string]*goneHits // by prefix
	evicted Counter              // names that had to make room
	lost    Counter              // hits that were never sent, for want of room here
}

type goneHits struct {
	namedHits
	shown bool // in a flush
}

// minRetired is how many are kept at least between two flushes.
const minRetired = 10_000

func newRetired(most int) *retired {
	return &retired{most: max(most, minRetired), gone: make(map[string]*goneHits)}
}

// add keeps h, which nobody finds any more, until the next flush.
func (r *retired) add(h namedHits, evicted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if evicted {
		r.evicted.Add(1)
	}
	switch same := r.gone[h.prefix]; {
	case same != nil:
		same.take(h.hits)
		same.shown = false
	case len(r.gone) >= r.most:
		r.lost.Add(h.hits[totalHits].Value())
	default:
		r.gone[h.prefix] = &goneHits{namedHits: h}
	}
}

// names returns the names of what is retired, without anything.
func (r *retired) names() map[string]*hits {
	r.mu.Lock()
	defer r.mu.Unlock()
	names := make(map[string]*hits, len(r.gone))
	for prefix := range r.gone {
		names[prefix] = nil
	}
	return names
}

// settle gives what is retired to the live counters of the same name. A flush
// shows the others with add, once.
func (r *retired) settle(live map[string]*hits, add func(Stat), flush bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for prefix, g := range r.gone {
		heir := live[prefix]
		if heir == g.hits {
			continue // went after it was read as live: next time
		}
		if heir != nil {
			g.stats(add) // the heir was read before it inherits
			heir.take(g.hits)
			delete(r.gone, prefix)
			continue
		}
		switch {
		case !flush:
		case g.shown:
			delete(r.gone, prefix)
		default:
			g.stats(add)
			g.shown = true
		}
	}
}
