package metrics

import (
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// The counters that each name has.
const (
	totalHits = iota
	withinLimit
	nearLimit
	overLimit
	overCached
	shadowMode
	hitCounters
)

var hitNames = [hitCounters]string{
	totalHits:   "total_hits",
	withinLimit: "within_limit",
	nearLimit:   "near_limit",
	overLimit:   "over_limit",
	overCached:  "over_limit_with_local_cache",
	shadowMode:  "shadow_mode",
}

// hits are the counters of one name.
type hits [hitCounters]Counter

// names holds the hits of all names: those of rules, and those that clients chose. A
// name without users was counted in before: its rule was removed, or it made room for
// another name. What it counted must reach each sink, so it is shown for keepUnused
// after a reading first found it, and until a flush had it. A name that is opened again
// meanwhile goes on where it was.
type names struct {
	maxUnused int

	mu       sync.Mutex // guards what follows
	byPrefix map[string]*name
	unused   map[*name]bool // without users; true: a flush had it
	flushed  int            // how many of unused a flush had
	lost     Counter        // hits that no flush had, for want of room
}

// name is one name with what was counted under it.
type name struct {
	hits
	prefix string    // of its counters: ratelimit.service.rate_limit.d.ip.
	users  int       // rules and cached series that count here
	found  time.Time // when a reading found it without users; zero: not yet
}

// minUnused is how many unused names are kept at least.
const minUnused = 10_000

// keepUnused is how long unused names are shown, because several sinks may read.
const keepUnused = 10 * time.Second

func newNames(maxSeries int) *names {
	return &names{maxUnused: max(maxSeries, minUnused), byPrefix: make(map[string]*name), unused: make(map[*name]bool)}
}

// open returns the name with that prefix, for one more user.
func (n *names) open(prefix string) *name {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.byPrefix[prefix]
	if x == nil {
		x = &name{prefix: prefix}
		n.byPrefix[prefix] = x
	}
	if x.users == 0 {
		n.use(x)
	}
	x.users++
	return x
}

// close says that one user counts under x no more.
func (n *names) close(x *name) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if x.users--; x.users > 0 {
		return
	}
	if len(n.unused) >= n.maxUnused && n.flushed > 0 {
		// Forgets all at once, so that this costs little for each name.
		for old, flushed := range n.unused {
			if flushed {
				n.forget(old)
			}
		}
	}
	if len(n.unused) >= n.maxUnused {
		n.lost.Add(x.hits[totalHits].Value())
		delete(n.byPrefix, x.prefix)
		return
	}
	x.found = time.Time{}
	n.unused[x] = false
}

// use takes x off the unused names.
func (n *names) use(x *name) {
	if n.unused[x] {
		n.flushed--
	}
	delete(n.unused, x)
}

func (n *names) forget(x *name) {
	n.use(x)
	delete(n.byPrefix, x.prefix)
}

// read appends the counters of all names to stats; for a flush only those that are not
// zero.
func (n *names) read(stats []Stat, now time.Time, flush bool) []Stat {
	n.mu.Lock()
	defer n.mu.Unlock()
	for x, flushed := range n.unused {
		if x.found.IsZero() {
			x.found = now
		}
		if flushed && now.Sub(x.found) >= keepUnused {
			n.forget(x)
		} else if flush && !flushed {
			n.unused[x] = true
			n.flushed++
		}
	}
	for _, x := range n.byPrefix {
		for i := range x.hits {
			if value := x.hits[i].Value(); value > 0 || !flush {
				stats = append(stats, Stat{x.prefix + hitNames[i], KindCounter, int64(value)})
			}
		}
	}
	return stats
}

const rulePrefix = "ratelimit.service.rate_limit."

// prefixOf returns the prefix of the counters of a rule.
func prefixOf(key string) string { return rulePrefix + sanitize(key) + "." }

// chosenPrefix is prefixOf for a key with parts that a client chose.
func chosenPrefix(key string) string { return rulePrefix + escapeTags(sanitize(key)) + "." }

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// sanitize makes a rule's key fit for statsd. It replaces `:` and `|`, which end a name,
// control characters, which could start another line, and the dots of addresses, which
// look like levels.
func sanitize(key string) string {
	key = strings.Map(func(c rune) rune {
		if c == ':' || c == '|' || c < ' ' || c == 0x7F || c == utf8.RuneError {
			return '_'
		}
		return c
	}, key)
	if strings.Count(key, ".") < 3 {
		return key
	}
	return ipv4.ReplaceAllStringFunc(key, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}

var tag = regexp.MustCompile(`(^|\.)__+([^.]*=)`)

// escapeTags keeps a client from adding tags to a name: statsd servers read
// `.__key=value` as a tag, wherever it stands. `a.__key=value` becomes `a._key=value`.
func escapeTags(key string) string { return tag.ReplaceAllString(key, "${1}_$2") }
