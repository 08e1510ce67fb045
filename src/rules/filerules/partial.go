package filerules

import (
	"bytes"
	"compress/flate"
	"io"
	"slices"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/rules/loading"
)

// accepted is a file as it is in force.
type accepted struct {
	name   string
	packed []byte // its text, compressed: a large set of rules is kept for long
	length int
}

// pack remembers files that are in force from now on.
func pack(files []loading.File) []accepted {
	var packed bytes.Buffer
	w, err := flate.NewWriter(&packed, flate.BestSpeed)
	if err != nil {
		panic(err) // BestSpeed is a level
	}
	list := make([]accepted, 0, len(files))
	for _, f := range files {
		packed.Reset()
		w.Reset(&packed)
		_, _ = w.Write(f.Data) // a bytes.Buffer takes everything
		_ = w.Close()
		list = append(list, accepted{f.Name, bytes.Clone(packed.Bytes()), len(f.Data)})
	}
	return list
}

// file is the file as it was read.
func (a accepted) file() loading.File {
	data := make([]byte, a.length)
	_, _ = io.ReadFull(flate.NewReader(bytes.NewReader(a.packed)), data) // it was written by pack
	return loading.File{Name: a.name, Data: data}
}

// inPart returns the files that may be in force when some of those that were read have
// problems: those that changed and touch no domain of a bad one as they are now, the
// others as they were before. It reports false if nothing may change.
func inPart(now []loading.File, before []accepted, root string, problems rules.Problems) ([]loading.File, bool) {
	if len(before) == 0 || len(now) == 0 {
		return nil, false
	}
	bad := make(map[string]bool, len(problems))
	for _, p := range problems {
		if p.File == "" || p.File == root {
			return nil, false // of the directory as a whole
		}
		bad[p.File] = true
	}
	same := make([]loading.File, 0, len(before))
	for _, a := range before {
		same = append(same, a.file())
	}
	files := rules.Partial(now, same, func(f loading.File) rules.Source {
		return rules.Source{Name: f.Name, Domain: loading.DomainOf(f)}
	}, bad)
	slices.SortFunc(files, func(a, b loading.File) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(same, func(a, b loading.File) int { return strings.Compare(a.Name, b.Name) })
	changed := !slices.EqualFunc(files, same, func(a, b loading.File) bool { return a.Name == b.Name && bytes.Equal(a.Data, b.Data) })
	return files, changed
}
