package rules

import (
	"fmt"
	"strconv"
	"strings"

	"ratelimit/src/rules/datafile"
)

// FileChange is what differs between two versions of a file of values, or of values and their limits.
type FileChange struct {
	Path string // of the newer version
	datafile.Difference
}

// HasChanged reports whether anything differs.
func (f *FileChange) HasChanged() bool {
	return f.Added.Count+f.Removed.Count+f.Raised.Count+f.Lowered.Count > 0
}

// Text returns what changed, with the first values: `1 added ("c"), 5 lowered ("a" 20 -> 2, "b" 3 -> 1, "d" 9 -> 1
// and 2 more)`.
func (f *FileChange) Text() string {
	var parts []string
	for _, part := range []struct {
		changed *datafile.Changed
		what    string
	}{{&f.Added, "added"}, {&f.Removed, "removed"}, {&f.Raised, "raised"}, {&f.Lowered, "lowered"}} {
		if part.changed.Count > 0 {
			parts = append(parts, fmt.Sprintf("%d %s (%s)", part.changed.Count, part.what, valuesText(part.changed)))
		}
	}
	return strings.Join(parts, ", ")
}

// valuesText returns the first values that changed, quoted and cut at maxValueBytes, with their limits.
func valuesText(c *datafile.Changed) string {
	const maxValueBytes = 40
	var parts []string
	for _, v := range c.First {
		text := strconv.Quote(v.Value)
		if len(v.Value) > maxValueBytes {
			text = strconv.Quote(strings.ToValidUTF8(v.Value[:maxValueBytes], "")) + "..."
		}
		if limits := strings.Trim(v.Old+" -> "+v.New, " ->"); limits != "" {
			text += " " + limits
		}
		parts = append(parts, text)
	}
	text := strings.Join(parts, ", ")
	if more := c.Count - len(c.First); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// FileComparer compares the files of levels, each version once. Its zero value is ready to use.
type FileComparer struct {
	Gentle bool // leave the CPUs to requests, which takes longer

	pacer datafile.Pacer
	known map[[2]*datafile.Table]FileChange
}

// Compare returns what differs between the files of two levels; nothing if one of them has no file.
func (c *FileComparer) Compare(before, after *Level) FileChange {
	pair := [2]*datafile.Table{before.Data(), after.Data()}
	if pair[0] == nil || pair[1] == nil || pair[0] == pair[1] {
		return FileChange{}
	}
	if change, isKnown := c.known[pair]; isKnown {
		return change
	}
	if c.known == nil {
		c.known = make(map[[2]*datafile.Table]FileChange)
	}
	c.pacer.Gentle = c.Gentle
	change := FileChange{after.DataFile.Path, pair[0].CompareTo(pair[1], &c.pacer)}
	c.known[pair] = change
	return change
}
