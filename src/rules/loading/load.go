// Package loading reads rule files of all formats and compiles them into one Set.
//
//	YAML, with `domain` or `schema`, in *.json too  ->  yamlrules   \
//	*.ini, and *.json of divvy                      ->  divvyrules  -> configurations -> rules.Compiler -> *rules.Set
//
// Files are read on all CPUs, large YAML files in parts.
package loading

import (
	"bytes"
	"errors"
	"iter"
	"math"
	gopath "path"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"

	"ratelimit/src/rules"
	"ratelimit/src/rules/divvyrules"
	"ratelimit/src/rules/yamlrules"
)

// File is a rule file that has been read.
type File struct {
	Name string // as shown in messages
	Data []byte
}

// Load compiles files into one Set. The error, if any, is rules.Problems with everything that is wrong in all files. Warnings name what
// is valid but has no effect.
func Load(files []File, opt rules.Options) (*rules.Set, rules.Problems, error) {
	set, warnings, err := load(files, opt, partBytes)
	if errors.Is(err, errWhole) {
		set, warnings, err = load(files, opt, math.MaxInt/2)
	}
	return set, warnings, err
}

// DomainOf returns the domain of a rule file, or "" if that cannot be read.
func DomainOf(f File) string {
	cfg, _, _ := parse(f)
	if cfg == nil {
		return ""
	}
	return cfg.Domain
}

// parse reads a file of any format.
func parse(f File) (cfg *rules.DomainConfig, problems, warnings rules.Problems) {
	switch ext := extension(f); {
	case ext == ".ini":
		return divvyrules.ParseINI(f.Name, f.Data)
	case ext == ".json" && divvyrules.IsDivvy(f.Data):
		return divvyrules.ParseJSON(f.Name, f.Data)
	}
	return yamlrules.Parse(f.Name, f.Data)
}

func extension(f File) string { return strings.ToLower(gopath.Ext(f.Name)) }

// isYAML reports whether a file is YAML by its name.
func isYAML(f File) bool { return extension(f) != ".ini" && extension(f) != ".json" }

// partBytes is the least size in bytes of the parts in which a file is read; one smaller than two parts is read whole. The YAML library
// takes some 25 bytes of memory per byte of text.
const partBytes = 256 << 10

// errWhole says that a large file cannot be read in parts.
var errWhole = errors.New("loading: a file has to be read as a whole")

// load is Load with parts of at least so many bytes.
func load(files []File, opt rules.Options, partBytes int) (*rules.Set, rules.Problems, error) {
	c := rules.NewCompiler(opt)
	var problems, warnings rules.Problems
	for p := range inOrder(parts(files, partBytes)) {
		problems = append(problems, p.Problems...)
		warnings = append(warnings, p.Warnings...)
		switch {
		case p.Whole:
			return nil, nil, errWhole
		case p.More:
			c.Extend(p.Config)
		case p.Config != nil:
			c.Add(p.Config)
		}
	}
	set, odd, err := c.Done()
	warnings = append(warnings, odd...)
	problems = append(problems, problemsOf(err)...)
	if opt.AllDocuments {
		wrong, odd := checkMore(files, opt)
		problems, warnings = append(problems, wrong...), append(warnings, odd...)
	}
	if len(problems) > 0 {
		problems.Sort()
		// The compiler may miss what the reader could not read. That is one problem, at one place.
		return nil, nil, slices.CompactFunc(problems, func(a, b rules.Problem) bool { return a.Line > 0 && a.Pos == b.Pos })
	}
	warnings.Sort()
	return set, warnings, nil
}

func problemsOf(err error) (problems rules.Problems) {
	errors.As(err, &problems)
	return problems
}

// checkMore compiles the documents behind the first of YAML files, which never take effect, and returns what is wrong or odd in them.
func checkMore(files []File, opt rules.Options) (problems, warnings rules.Problems) {
	var configs []rules.DomainConfig
	for _, f := range files {
		if isYAML(f) && bytes.Contains(f.Data, []byte("\n---")) {
			more, wrong, odd := yamlrules.ParseMore(f.Name, f.Data)
			configs = append(configs, more...)
			problems, warnings = append(problems, wrong...), append(warnings, odd...)
		}
	}
	_, odd, err := rules.Compile(configs, opt)
	return append(problems, problemsOf(err)...), append(warnings, odd...)
}

// parts yields functions that parse the files, in order. Files of at least two parts are parsed in parts.
func parts(files []File, partBytes int) iter.Seq[func() yamlrules.Part] {
	return func(yield func(func() yamlrules.Part) bool) {
		for _, f := range files {
			if len(f.Data)/2 >= partBytes && isYAML(f) && utf8.Valid(f.Data) {
				if list, ok := yamlrules.Split(f.Name, f.Data); ok {
					for read := range list.Parts(partBytes) {
						if !yield(read) {
							return
						}
					}
					continue
				}
			}
			if !yield(func() (p yamlrules.Part) {
				p.Config, p.Problems, p.Warnings = parse(f)
				return p
			}) {
				return
			}
		}
	}
}

// inOrder calls all functions, one per CPU at a time, and yields their results in order.
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
