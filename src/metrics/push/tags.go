package push

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Tag belongs to a figure beside its name.
type Tag struct{ Key, Value string }

// sortedTags returns the tags of m, sorted by key. Characters that end a name, a tag or a
// line become `_`, and so do the dots of values; tags without key or value are left out.
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

// clean replaces the characters of odd, control characters and invalid UTF-8 by `_`.
func clean(text, odd string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7F || c == utf8.RuneError || strings.ContainsRune(odd, c) {
			return '_'
		}
		return c
	}, text)
}

func sortTags(tags []Tag) {
	slices.SortFunc(tags, func(a, b Tag) int { return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(a.Value, b.Value)) })
}

// tagMark begins each tag in a name: name.__key=value.
const tagMark = ".__"

// splitTags separates the tags that a name ends with: a.__x=1.__y=2 is a, x=1, y=2.
func splitTags(name string) (string, []Tag) {
	var tags []Tag
	for {
		mark := strings.LastIndex(name, tagMark)
		if mark < 0 {
			break
		}
		key, value, ok := strings.Cut(name[mark+len(tagMark):], "=")
		if !ok || strings.Contains(value, ".") { // the name continues after it
			break
		}
		tags = append(tags, Tag{key, value})
		name = name[:mark]
	}
	slices.Reverse(tags)
	return name, tags
}

// joinTags adds own tags to extra ones; a key that both have keeps its own value.
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

// appendName appends name and the tags as statsd has them: at the end, sorted by key, as
// .__key=value.
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
