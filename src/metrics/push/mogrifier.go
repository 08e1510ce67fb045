package push

import (
	"maps"
	"regexp"
	"slices"
	"strconv"
)

// Mogrifier gives a figure another name and more tags. The pattern ^a\.(.*)\.hits$ with the
// name hits and the tag user=$1 turns a.ann.hits into hits with the tag user:ann.
type Mogrifier struct {
	// Pattern is matched anywhere in the name, without the tags of the name.
	Pattern *regexp.Regexp
	// Name is the new name. $1 is the first group of Pattern, $0 the whole match. A
	// reference to a group that does not exist stays as it is.
	Name string
	// Tags are added to the figure. Values may refer to groups, as Name does; a tag whose value becomes empty is left out.
	Tags map[string]string
}

// renameFigure returns the new name and the added tags. It returns false if Pattern does not match.
func (m *Mogrifier) renameFigure(name string) (string, []Tag, bool) {
	groups := m.Pattern.FindStringSubmatch(name)
	if groups == nil {
		return "", nil, false
	}
	var tags []Tag
	for _, key := range slices.Sorted(maps.Keys(m.Tags)) {
		if value := replaceGroups(m.Tags[key], groups); value != "" {
			tags = append(tags, Tag{Key: key, Value: value})
		}
	}
	if renamed := replaceGroups(m.Name, groups); renamed != "" {
		name = renamed
	}
	return name, tags, true
}

var groupReference = regexp.MustCompile(`\$\d+`)

// replaceGroups replaces $0, $1 and so on in text by the groups.
func replaceGroups(text string, groups []string) string {
	return groupReference.ReplaceAllStringFunc(text, func(ref string) string {
		if i, err := strconv.Atoi(ref[1:]); err == nil && i < len(groups) {
			return groups[i]
		}
		return ref
	})
}
