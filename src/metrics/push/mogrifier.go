package push

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Mogrifier gives a figure another name and more tags. The pattern ^a\.(.*)\.hits$ with the
// name hits and the tag user=$1 turns a.ann.hits into hits with the tag user:ann.
type Mogrifier struct {
	// Pattern is matched anywhere in the name, without the tags of the name.
	Pattern *regexp.Regexp
	// Name is the new name. $1 is the first group of Pattern, $0 the whole match. A
	// reference to a group that does not exist stays as it is.
	Name string
	// Tags are added to the figure. Values may refer to groups, as Name does; a tag whose
	// value becomes empty is left out.
	Tags map[string]string
}

// apply returns the new name and the added tags. It returns false if Pattern does not match.
func (m *Mogrifier) apply(name string) (string, []Tag, bool) {
	groups := m.Pattern.FindStringSubmatch(name)
	if groups == nil {
		return "", nil, false
	}
	var tags []Tag
	for _, key := range slices.Sorted(maps.Keys(m.Tags)) {
		if value := expand(m.Tags[key], groups); value != "" {
			tags = append(tags, Tag{Key: key, Value: value})
		}
	}
	if renamed := expand(m.Name, groups); renamed != "" {
		name = renamed
	}
	return name, tags, true
}

var group = regexp.MustCompile(`\$\d+`)

// expand replaces $0, $1 and so on in text by the groups.
func expand(text string, groups []string) string {
	return group.ReplaceAllStringFunc(text, func(ref string) string {
		if i, err := strconv.Atoi(ref[1:]); err == nil && i < len(groups) {
			return groups[i]
		}
		return ref
	})
}

// dogName is the DogStatsD form of a name.
type dogName struct {
	name string
	tags string // "|#key:value,key:value" or empty
}

// dogStatsD writes DogStatsD lines. It caches each name for two flushes, so that it does not
// match all patterns for each line.
type dogStatsD struct {
	mogrifiers []Mogrifier
	tags       []Tag

	mu       sync.Mutex         // guards the fields below
	now, old map[string]dogName // used since the last flush; used only before it
}

// end removes the names from the cache that were not used since the last flush. It appends
// nothing.
func (d *dogStatsD) end(b []byte) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.old, d.now = d.now, make(map[string]dogName, len(d.now))
	return b
}

// find returns the DogStatsD form of name, which may have tags at its end.
func (d *dogStatsD) find(name string) dogName {
	d.mu.Lock()
	defer d.mu.Unlock()
	if known, ok := d.now[name]; ok {
		return known
	}
	known, ok := d.old[name]
	if !ok {
		known = d.build(name)
	}
	if d.now == nil {
		d.now = make(map[string]dogName)
	}
	d.now[name] = known
	return known
}

// build is find without the cache.
func (d *dogStatsD) build(name string) dogName {
	name, own := splitTags(name)
	tags := joinTags(d.tags, own)
	for i := range d.mogrifiers {
		if renamed, more, ok := d.mogrifiers[i].apply(name); ok {
			name, tags = renamed, append(slices.Clip(tags), more...)
			break
		}
	}
	var list strings.Builder
	for i, t := range tags {
		list.WriteString([]string{"|#", ","}[min(i, 1)])
		list.WriteString(clean(t.Key, ":|,"))
		list.WriteByte(':')
		list.WriteString(clean(t.Value, "|,"))
	}
	return dogName{clean(name, ":|"), list.String()}
}
