package metrics

import (
	"sync"
	"time"
)

// retired are counters of names that are not counted in any more: those that callers
// chose and that made room for others, and those of rules that were removed long
// ago. What they counted must reach each sink, and where another counter has the
// same name, their sum must not fall. So they are shown for keepRetired and in one
// flush at least, and what they counted goes to the other counter.
type retired struct {
	most int

	mu      sync.Mutex
	gone    map[string]*goneHits // by prefix
	shown   int                  // how many of gone were in a flush
	evicted Counter              // names that had to make room
	lost    Counter              // hits that were never sent, for want of room here
}

type goneHits struct {
	namedHits
	since time.Time // zero: not read yet
	shown bool      // in a flush
}

// minRetired is how many are kept at least.
const minRetired = 10_000

// keepRetired is how long retired counters are shown after they were read first, as
// there may be several that scrape.
const keepRetired = 10 * time.Second

func newRetired(most int) *retired {
	return &retired{most: max(most, minRetired), gone: make(map[string]*goneHits)}
}

// add keeps h, which is not found any more.
func (r *retired) add(h namedHits, evicted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if evicted {
		r.evicted.Add(1)
	}
	if same := r.gone[h.prefix]; same != nil {
		r.forget(same)
		h.take(same.hits)
	}
	if len(r.gone) >= r.most {
		r.makeRoom()
	}
	if len(r.gone) >= r.most {
		r.lost.Add(h.hits[totalHits].Value())
		return
	}
	r.gone[h.prefix] = &goneHits{namedHits: h}
}

// makeRoom forgets all that a flush has shown. So it costs little for each add,
// however many come between two flushes.
func (r *retired) makeRoom() {
	if r.shown == 0 {
		return
	}
	for _, g := range r.gone {
		if g.shown {
			r.forget(g)
		}
	}
}

func (r *retired) forget(g *goneHits) {
	delete(r.gone, g.prefix)
	if g.shown {
		r.shown--
	}
}

// back returns the counters of that prefix, which are counted in again; nil if there
// are none.
func (r *retired) back(prefix string) *hits {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.gone[prefix]
	if g == nil {
		return nil
	}
	r.forget(g)
	return g.hits
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

// settle shows what is retired with add, and gives it to the live counters of the
// same name. What a flush has shown goes when its time is up.
func (r *retired) settle(live map[string]*hits, add func(Stat), now time.Time, flush bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for prefix, g := range r.gone {
		heir := live[prefix]
		if heir == g.hits {
			continue // went after it was read as live: next time
		}
		if g.since.IsZero() {
			g.since = now
		}
		switch {
		case heir != nil:
			g.stats(add) // the heir was read before it inherits
			heir.take(g.hits)
			r.forget(g)
		case g.shown && now.Sub(g.since) >= keepRetired:
			r.forget(g)
		default:
			g.stats(add)
			if flush && !g.shown {
				g.shown = true
				r.shown++
			}
		}
	}
}
