package metrics

import (
	"regexp"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// Each name has these counters.
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

// names holds the counters of all names. A name is in use while a rule or a cached series
// counts under it.
//
// A name that is no longer in use is kept until keepUnused after the first flush that
// contained it, so that its last hits reach the sinks. If it is opened again before that,
// its counters continue.
type names struct {
	maxUnused int // bounds unsent and sent together

	mu       sync.Mutex // guards the fields below
	byPrefix map[string]*name
	unsent   map[*name]bool      // not in use; no flush contained them since
	sent     map[*name]time.Time // not in use; when the first flush contained them
	lost     Counter             // hits that were dropped because unsent was full
}

// name has the counters of one name.
type name struct {
	hits
	prefix string // of its counters, such as ratelimit.service.rate_limit.d.ip.
	users  int    // rules and cached series that count under it
}

// minUnused is the smallest value of names.maxUnused.
const minUnused = 10_000

// keepUnused leaves time for a second sink to read the last hits of a name.
const keepUnused = 10 * time.Second

func newNames(maxSeries int) *names {
	return &names{
		maxUnused: max(maxSeries, minUnused),
		byPrefix:  make(map[string]*name),
		unsent:    make(map[*name]bool),
		sent:      make(map[*name]time.Time),
	}
}

// open returns the name with that prefix and adds one user to it.
func (n *names) open(prefix string) *name {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.byPrefix[prefix]
	if x == nil {
		x = &name{prefix: prefix}
		n.byPrefix[prefix] = x
	}
	delete(n.unsent, x)
	delete(n.sent, x)
	x.users++
	return x
}

// close removes one user of x. If x then has no users, close keeps it until a flush
// contains it, or drops it if there is no room.
func (n *names) close(x *name) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if x.users--; x.users > 0 {
		return
	}
	if len(n.unsent)+len(n.sent) >= n.maxUnused {
		for old := range n.sent {
			n.forget(old)
		}
	}
	if len(n.unsent) >= n.maxUnused {
		n.lost.Add(x.hits[totalHits].Value())
		n.forget(x)
		return
	}
	n.unsent[x] = true
}

// forget removes a name that has no users and is not in unsent.
func (n *names) forget(x *name) {
	delete(n.sent, x)
	delete(n.byPrefix, x.prefix)
}

// read appends the counters of all names to stats. A flush leaves out counters that are 0.
func (n *names) read(stats []Stat, now time.Time, flush bool) []Stat {
	n.mu.Lock()
	defer n.mu.Unlock()
	for x, first := range n.sent {
		if now.Sub(first) >= keepUnused {
			n.forget(x)
		}
	}
	if flush {
		for x := range n.unsent {
			n.sent[x] = now
		}
		clear(n.unsent)
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

// prefixOf returns the start of the names of a rule's counters. The rule with the key d.ip
// has the prefix "ratelimit.service.rate_limit.d.ip.".
func prefixOf(key string) string { return rulePrefix + cleanKey(key) + "." }

// clientPrefix is prefixOf for a key that contains text from a client.
func clientPrefix(key string) string { return rulePrefix + escapeTags(cleanKey(key)) + "." }

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// cleanKey replaces characters of a rule's key that statsd would misread by `_`: `:` and
// `|` end a name, a control character may start a line, and a dot starts a new level. It
// replaces only the dots of IPv4 addresses: d.ip_10.0.0.7 becomes d.ip_10_0_0_7.
func cleanKey(key string) string {
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

// escapeTags prevents a client from adding tags to a name. A statsd server reads
// `.__key=value` as a tag; escapeTags turns `a.__key=value` into `a._key=value`.
func escapeTags(key string) string { return tag.ReplaceAllString(key, "${1}_$2") }
