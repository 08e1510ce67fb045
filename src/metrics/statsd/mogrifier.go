package statsd

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"ratelimit/src/metrics/flush"
)

// Mogrifier gives figures another name and tags.
type Mogrifier struct {
	// Pattern is looked for anywhere in the name, which has no tags.
	Pattern *regexp.Regexp
	// Name is the new name. $1 and so on are groups of Pattern, $0 is all that
	// matched; a group that Pattern does not have stays as text.
	Name string
	// Tags are added, with groups in their values as in Name. Those that come
	// out empty are left out.
	Tags map[string]string
}

// ParseMogrifier makes a Mogrifier of text. The label tells it from others in
// errors, which join all problems.
func ParseMogrifier(label, pattern, name string, tags map[string]string) (Mogrifier, error) {
	var problems []error
	problem := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf("statsd: mogrifier %s: %w", label, fmt.Errorf(format, args...)))
	}
	m := Mogrifier{Name: name, Tags: tags}
	if pattern == "" {
		problem("it has no pattern: write a regular expression that finds the names it is for")
	}
	var err error
	if m.Pattern, err = regexp.Compile(pattern); err != nil {
		problem("pattern %q: %w", pattern, err)
	}
	if name == "" {
		problem("it has no name: write the new name, in which $1 is the first group of the pattern")
	}
	for _, key := range sortedKeys(tags) {
		if key == "" {
			problem("a tag with value %q has no key: write key:value", tags[key])
		} else if tags[key] == "" {
			problem("tag %q has no value: write %s:value", key, key)
		}
	}
	return m, errors.Join(problems...)
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// apply returns the new name and tags, or false if the pattern is not there.
func (m *Mogrifier) apply(name string) (string, []flush.Tag, bool) {
	groups := m.Pattern.FindStringSubmatch(name)
	if groups == nil {
		return "", nil, false
	}
	var tags []flush.Tag
	for _, key := range sortedKeys(m.Tags) {
		if value := expand(m.Tags[key], groups); value != "" {
			tags = append(tags, flush.Tag{Key: key, Value: value})
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

// names makes dogNames. It keeps those of this flush and the one before, so
// that patterns are not tried each time.
type names struct {
	mogrifiers []Mogrifier
	tags       []flush.Tag

	mu       sync.Mutex
	now, old map[string]dogName
}

// age forgets names that were not asked for since the last call.
func (n *names) age() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.old, n.now = n.now, make(map[string]dogName, len(n.now))
}

func (n *names) find(name string) dogName {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d, ok := n.now[name]; ok {
		return d
	}
	d, ok := n.old[name]
	if !ok {
		d = n.build(name)
	}
	if n.now == nil {
		n.now = make(map[string]dogName)
	}
	n.now[name] = d
	return d
}

func (n *names) build(name string) dogName {
	name, own := flush.Split(name)
	tags := flush.Join(n.tags, own)
	for i := range n.mogrifiers {
		if renamed, more, ok := n.mogrifiers[i].apply(name); ok {
			name, tags = renamed, append(slices.Clip(tags), more...)
			break
		}
	}
	var list strings.Builder
	for i, t := range tags {
		list.WriteString([]string{"|#", ","}[min(i, 1)])
		list.WriteString(flush.Clean(t.Key, ":|,"))
		list.WriteByte(':')
		list.WriteString(flush.Clean(t.Value, "|,"))
	}
	return dogName{flush.Clean(name, ":|"), list.String()}
}
