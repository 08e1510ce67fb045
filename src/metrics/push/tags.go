package push

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Tag is a key and a value that a figure has in addition to its name.
type Tag struct{ Key, Value string }

// sortedTags returns the tags of m, sorted by key. It leaves out tags with an empty key or
// value. Characters with a meaning in statsd, and dots in values, become `_`.
func sortedTags(m map[string]string) []Tag {
	var tags []Tag
	for key, value := range m {
		if key != "" && value != "" {
			tags = append(tags, Tag{clean(key, ":|,="), clean(value, ".:|,")})
		}
	}
	sortTags(tags)
	return tags
}

// clean replaces control characters, invalid UTF-8 and the characters of reserved by `_`.
func clean(text, reserved string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7F || c == utf8.RuneError || strings.ContainsRune(reserved, c) {
			return '_'
		}
		return c
	}, text)
}

func sortTags(tags []Tag) {
	slices.SortFunc(tags, func(a, b Tag) int { return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Value, b.Value)) })
}

// tagMark stands before each tag in a name, as in hits.__zone=a.
const tagMark = ".__"

// splitTags returns a name without the tags at its end, and these tags. It splits
// hits.__zone=a.__env=b into the name hits and the tags zone=a and env=b.
func splitTags(name string) (string, []Tag) {
	var tags []Tag
	for {
		mark := strings.LastIndex(name, tagMark)
		if mark < 0 {
			break
		}
		key, value, ok := strings.Cut(name[mark+len(tagMark):], "=")
		if !ok || strings.Contains(value, ".") { // the name continues behind the tag
			break
		}
		tags = append(tags, Tag{key, value})
		name = name[:mark]
	}
	slices.Reverse(tags)
	return name, tags
}

// joinTags returns the tags of both lists, sorted by key. If both have a key, the value is
// that of own. It may return extra itself, so the caller must not change the result.
func joinTags(extra, own []Tag) []Tag {
	if len(own) == 0 {
		return extra
	}
	all := slices.Clone(own)
	for _, t := range extra {
		if !slices.ContainsFunc(own, func(o Tag) bool { return o.Key == t.Key }) {
			all = append(all, t)
		}
	}
	sortTags(all)
	return all
}

// appendName appends name with tags at its end. The name hits.__zone=a with the tag env=b
// becomes hits.__env=b.__zone=a. A tag in name wins over one of tags with the same key.
func appendName(b []byte, name string, tags []Tag) []byte {
	if len(tags) > 0 {
		var own []Tag
		name, own = splitTags(name)
		tags = joinTags(tags, own)
	}
	b = append(b, name...)
	for _, t := range tags {
		b = append(b, tagMark+t.Key+"="+t.Value...)
	}
	return b
}
