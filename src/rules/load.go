package rules

import (
	"errors"
	"iter"
	"math"
	gopath "path"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"
)

// File is a rule file that has been read.
type File struct {
	Name string // as shown in messages
	Data []byte
}

// parse reads a file by its name and what is in it: *.ini and *.json are divvy's,
// unless the latter are what YAML files are, with a domain or a schema.
func parse(f File) (cfg *DomainConfig, problems, warnings Problems) {
	switch strings.ToLower(gopath.Ext(f.Name)) {
	case ".ini":
		return ParseINI(f.Name, f.Data)
	case ".json":
		return ParseJSON(f.Name, f.Data)
	}
	return ParseYAML(f.Name, f.Data)
}

// Load parses and compiles files into one Set. The error, if any, is Problems
// with all that is wrong in all files; the warnings are what Compile and the
// reader found odd. Files are read on all CPUs, large ones in parts.
func Load(files []File, opt Options) (*Set, Problems, error) {
	set, warnings, err := load(files, opt, partBytes)
	if errors.Is(err, errWhole) {
		set, warnings, err = load(files, opt, math.MaxInt/2)
	}
	return set, warnings, err
}

// errWhole says that a large file cannot be read in parts.
var errWhole = errors.New("rules: a file has to be read as a whole")

// load is Load with parts of at least so many bytes.
func load(files []File, opt Options, partBytes int) (*Set, Problems, error) {
	c := newCompiler(opt)
	var problems, warnings Problems
	for p := range inOrder(pieces(files, partBytes)) {
		problems = append(problems, p.problems...)
		warnings = append(warnings, p.warnings...)
		switch {
		case p.whole:
			return nil, nil, errWhole
		case p.more:
			c.more(p.cfg)
		case p.cfg != nil:
			c.begin(p.cfg)
		}
	}
	set, odd, err := c.done()
	var more Problems
	if errors.As(err, &more) {
		problems = append(problems, more...)
	}
	if opt.AllDocuments {
		wrong, more := checkDocuments(files, opt)
		problems, odd = append(problems, wrong...), append(odd, more...)
	}
	if len(problems) > 0 {
		problems.sort()
		// One mistake is one problem: what the reader could not take, the
		// compiler then misses at the same place.
		return nil, nil, slices.CompactFunc(problems, func(a, b Problem) bool { return a.Line > 0 && a.Pos == b.Pos })
	}
	warnings = append(warnings, odd...)
	warnings.sort()
	return set, warnings, nil
}

// piece is a rule file, or a part of one, that has been parsed.
type piece struct {
	cfg                *DomainConfig // nil: nothing to compile
	more               bool          // cfg continues the list of the piece before
	whole              bool          // the file cannot be read in parts
	problems, warnings Problems
}

// pieces are functions that parse the files, in order, those of at least two parts in parts.
func pieces(files []File, partBytes int) iter.Seq[func() piece] {
	return func(yield func(func() piece) bool) {
		for _, f := range files {
			list, ok := splitFile{}, false
			if ext := strings.ToLower(gopath.Ext(f.Name)); len(f.Data)/2 >= partBytes && ext != ".ini" && ext != ".json" && utf8.Valid(f.Data) {
				list, ok = splitYAML(f.Data)
			}
			if !ok {
				if !yield(func() (p piece) {
					p.cfg, p.problems, p.warnings = parse(f)
					return p
				}) {
					return
				}
				continue
			}
			if !yield(func() piece { return list.readFrame(f.Name) }) {
				return
			}
			for p := range list.parts(partBytes) {
				if !yield(func() piece { return list.readPart(f.Name, p) }) {
					return
				}
			}
		}
	}
}

// inOrder calls all functions, one per CPU at a time, and yields what they return in their
// order. It is at most one per CPU ahead.
func inOrder[T any](functions iter.Seq[func() T]) iter.Seq[T] {
	return func(yield func(T) bool) {
		results := make(chan chan T, runtime.GOMAXPROCS(0)-1)
		stop := make(chan struct{})
		defer close(stop)
		go func() {
			defer close(results)
			for f := range functions {
				result := make(chan T, 1)
				select {
				case results <- result:
					go func() { result <- f() }()
				case <-stop:
					return
				}
			}
		}()
		for result := range results {
			if !yield(<-result) {
				return
			}
		}
	}
}
