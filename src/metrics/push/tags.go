package push

import (
	"cmp"
	"slices"
	"strings"

	"ratelimit/src/metrics"
)

// Tag is a key and a value that a figure has in addition to its name.
type Tag struct{ Key, Value string }

// sortedTags returns the tags of m, sorted by key. It leaves out tags with an empty key or
// value. Characters with a meaning in statsd, and dots in values, become `_`.
func sortedTags(m map[string]string) []Tag {
	var tags []Tag
	for key, value := range m {
		if key != "" && value != "" {
			tags = append(tags, Tag{metrics.CleanText(key, ":|,="), metrics.CleanText(value, ".:|,")})
		}
	}
	sortTags(tags)
	return tags
}

func sortTags(tags []Tag) {
	slices.SortFunc(tags, func(a, b Tag) int {
		return cmp.Or(strings.Compare(a.Key, b.Key),
			strings.Compare(a.Value, b.Value))
	})
}

// tagPrefix stands before each tag in a name, as in hits.__zone=a.
const tagPrefix = ".__"

// splitTags returns a name without the tags at its end, and these tags. It splits
// hits.__zone=a.__env=b into the name hits and the tags zone=a and env=b.
func splitTags(name string) (string, []Tag) {
	var tags []Tag
	for {
		mark := strings.LastIndex(name, tagPrefix)
		if mark < 0 {
			break
		}
		key, value, ok := strings.Cut(name[mark+len(tagPrefix):], "=")
		if !ok || strings.Contains(value, ".") { // The name continues behind the tag, so this is no tag at its end.
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

// withTags returns name with tags at its end. The name hits.__zone=a with the tag env=b
// becomes hits.__env=b.__zone=a. A tag in name wins over one of tags with the same key.
func withTags(name string, tags []Tag) string {
	if len(tags) == 0 {
		return name
	}
	name, own := splitTags(name)
	for _, t := range joinTags(tags, own) {
		name += tagPrefix + t.Key + "=" + t.Value
	}
	return name
}
