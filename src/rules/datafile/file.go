package datafile

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Reference is what a rule file says of a data file.
type Reference struct {
	Name string // the path as written, from the directory of the rule file on
	Kind Kind
}

// File is a data file that a rule file refers to.
type File struct {
	Path string // the file in messages
	Sum  Sum    // the hash of the file. It is zero if the file could not be read
	// Table has what is in the file. It is nil if there are Problems, which are those of the file as a whole or of its
	// lines.
	Table    *Table
	Problems []Problem
}

// Sum is a hash of the bytes of a file.
type Sum [sha256.Size]byte

// Files are all data files that a rule file refers to.
type Files map[Reference]*File

// AppendVersion appends a text to dst that changes whenever one of the files does.
func (f Files) AppendVersion(dst []byte) []byte {
	for _, r := range slices.SortedFunc(maps.Keys(f), compareReferences) {
		file := f[r]
		dst = fmt.Appendf(dst, "%v %q %x", r.Kind, r.Name, file.Sum)
		if file.Sum == (Sum{}) {
			dst = fmt.Appendf(dst, " %+v", file.Problems)
		}
		dst = append(dst, '\n')
	}
	return dst
}

func compareReferences(a, b Reference) int {
	return cmp.Or(strings.Compare(a.Name, b.Name), cmp.Compare(a.Kind, b.Kind))
}
