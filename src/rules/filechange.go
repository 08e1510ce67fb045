package rules

import "ratelimit/src/rules/datafile"

// FileChange counts what differs between two versions of a file of values, or of values and their limits.
type FileChange struct {
	Path                            string // of the newer version
	Added, Removed, Raised, Lowered int
}

// HasChanged reports whether anything differs.
func (f *FileChange) HasChanged() bool { return f.Added+f.Removed+f.Raised+f.Lowered > 0 }

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
	change := FileChange{Path: after.DataFile.Path}
	change.Added, change.Removed, change.Raised, change.Lowered = pair[0].CompareTo(pair[1], &c.pacer)
	c.known[pair] = change
	return change
}
