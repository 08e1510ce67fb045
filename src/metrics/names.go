package metrics

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// These are the hit counters of a name.
const (
	totalHits = iota
	withinLimit
	nearLimit
	overLimit
	overLimitCached
	shadowMode
	hitCounterCount
)

var hitCounterNames = [hitCounterCount]string{
	"total_hits", "within_limit", "near_limit", "over_limit", "over_limit_with_local_cache", "shadow_mode",
}

type hitCounts [hitCounterCount]Counter

// namedHitTable holds the counters of all names. A name is in use while a rule or a cached series counts under it.
//
// A name that is no longer in use is kept until keepUnusedFor after the first flush that contained it, so that its last
// hits reach the sinks. If it is opened again before that, its counters continue.
type namedHitTable struct {
	maxUnused int     // bounds unused.
	LostHits  Counter // counts hits that were dropped because unused was full.

	mu         sync.Mutex // guards the fields below.
	byPrefix   map[string]*namedHits
	unused     map[*namedHits]time.Time // with the time of the first flush that contained the name; zero before it.
	hasFlushed bool                     // false if all times in unused are zero.
}

// namedHits has the counters of one name.
type namedHits struct {
	hitCounts
	prefix    string // starts the names of the counters, such as ratelimit.service.rate_limit.d.ip.
	userCount int    // the number of rules and cached series that count under the name.
}

// minUnusedBound is the smallest value of namedHitTable.maxUnused.
const minUnusedBound = 10_000

// keepUnusedFor leaves time for a second sink to read the last hits of a name.
const keepUnusedFor = 10 * time.Second

func newNames(maxSeries int) *namedHitTable {
	return &namedHitTable{
		maxUnused: max(maxSeries, minUnusedBound),
		byPrefix:  make(map[string]*namedHits), unused: make(map[*namedHits]time.Time),
	}
}

// acquireName returns the name with that prefix and adds one user to it.
func (n *namedHitTable) acquireName(prefix string) *namedHits {
	n.mu.Lock()
	defer n.mu.Unlock()
	x := n.byPrefix[prefix]
	if x == nil {
		x = &namedHits{prefix: prefix}
		n.byPrefix[prefix] = x
	}
	delete(n.unused, x)
	x.userCount++
	return x
}

// releaseName removes one user of x. If x then has no users, it is kept until a flush
// contains it, or dropped if there is no room.
func (n *namedHitTable) releaseName(x *namedHits) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if x.userCount--; x.userCount > 0 {
		return
	}
	n.unused[x] = time.Time{}
	if len(n.unused) > n.maxUnused && n.hasFlushed {
		n.hasFlushed = false
		n.forgetUnused(func(flushedAt time.Time) bool { return !flushedAt.IsZero() })
	}
	if len(n.unused) > n.maxUnused {
		n.LostHits.Add(x.hitCounts[totalHits].Load())
		delete(n.unused, x)
		delete(n.byPrefix, x.prefix)
	}
}

// forgetUnused removes the unused names whose time isOld accepts.
func (n *namedHitTable) forgetUnused(isOld func(flushedAt time.Time) bool) {
	maps.DeleteFunc(n.unused, func(x *namedHits, flushedAt time.Time) bool {
		old := isOld(flushedAt)
		if old {
			delete(n.byPrefix, x.prefix)
		}
		return old
	})
}

// namesToShow returns all names. flush says that they are shown by a flush.
func (n *namedHitTable) namesToShow(now time.Time, flush bool) []*namedHits {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgetUnused(func(at time.Time) bool { return !at.IsZero() && now.Sub(at) >= keepUnusedFor })
	for x, at := range n.unused {
		if flush && at.IsZero() {
			n.unused[x], n.hasFlushed = now, true
		}
	}
	return slices.AppendSeq(make([]*namedHits, 0, len(n.byPrefix)), maps.Values(n.byPrefix))
}

// appendStats appends the counters of a name to stats. A flush leaves out counters that are 0.
func (x *namedHits) appendStats(stats []Stat, flush bool) []Stat {
	for i := range x.hitCounts {
		if value := x.hitCounts[i].Load(); value > 0 || !flush {
			stats = append(stats, Stat{x.prefix + hitCounterNames[i], KindCounter, int64(value)})
		}
	}
	return stats
}

const rulePrefix = "ratelimit.service.rate_limit."

// rulePrefixOf returns the start of the names of a rule's counters. The rule with the key d.ip
// has the prefix "ratelimit.service.rate_limit.d.ip.".
func rulePrefixOf(key string) string { return rulePrefix + cleanKey(key) + "." }

// clientPrefix is rulePrefixOf for a key that contains text from a client.
func clientPrefix(key string) string { return rulePrefix + escapeTags(cleanKey(key)) + "." }

var ipv4Pattern = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// CleanText replaces control characters, invalid UTF-8 and the characters of reserved by `_`.
func CleanText(text, reserved string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7F || c == utf8.RuneError || strings.ContainsRune(reserved, c) {
			return '_'
		}
		return c
	}, text)
}

// cleanKey replaces characters of a rule's key that statsd would misread by `_`: `:` and `|` end a name, a control
// character may start a line, and a dot starts a new level. It replaces only the dots of IPv4 addresses: d.ip_10.0.0.7
// becomes d.ip_10_0_0_7.
func cleanKey(key string) string {
	key = CleanText(key, ":|")
	if strings.Count(key, ".") < 3 {
		return key
	}
	return ipv4Pattern.ReplaceAllStringFunc(key, func(ip string) string { return strings.ReplaceAll(ip, ".", "_") })
}

var tagPattern = regexp.MustCompile(`(^|\.)__+([^.]*=)`)

// escapeTags prevents a client from adding tags to a name. A statsd server reads
// `.__key=value` as a tag; escapeTags turns `a.__key=value` into `a._key=value`.
func escapeTags(key string) string { return tagPattern.ReplaceAllString(key, "${1}_$2") }
