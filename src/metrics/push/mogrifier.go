package push

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Mogrifier gives figures another name and tags.
type Mogrifier struct {
	// Pattern may match anywhere in the name, which has no tags.
	Pattern *regexp.Regexp
	// Name is the new name. $1 and so on are groups of Pattern, and $0 is the whole match;
	// a group that Pattern does not have stays as text.
	Name string
	// Tags are added, with groups in their values as in Name, except empty ones.
	Tags map[string]string
}

// apply returns the new name and tags, or false if the pattern is not there.
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

// expand puts groups into text.
func expand(text string, groups []string) string {
	return group.ReplaceAllStringFunc(text, func(ref string) string {
		if i, err := strconv.Atoi(ref[1:]); err == nil && i < len(groups) {
			return groups[i]
		}
		return ref
	})
}

// dogName is a name as DogStatsD has it.
type dogName struct {
	name string
	tags string // "|#key:value,..." or empty
}

// dogStatsD keeps the names of this flush and the one before, so that patterns are not
// tried each time.
type dogStatsD struct {
	mogrifiers []Mogrifier
	tags       []Tag

	mu       sync.Mutex // guards what follows
	now, old map[string]dogName
}

// end forgets names that were not used since the last flush.
func (d *dogStatsD) end(b []byte) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.old, d.now = d.now, make(map[string]dogName, len(d.now))
	return b
}

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
