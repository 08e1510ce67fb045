package loading

import (
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

// parse reads a file by its name and what is in it: *.ini and *.json are divvy's,
// unless the latter are what YAML files are, with a domain or a schema.
func parse(f File) (cfg *rules.DomainConfig, problems, warnings rules.Problems) {
	switch strings.ToLower(gopath.Ext(f.Name)) {
	case ".ini":
		return divvyrules.ParseINI(f.Name, f.Data)
	case ".json":
		return divvyrules.ParseJSON(f.Name, f.Data)
	}
	return yamlrules.Parse(f.Name, f.Data)
}

// Load parses and compiles files into one Set. The error, if any, is Problems
// with all that is wrong in all files; the warnings are what Compile and the
// reader found odd. Files are read on all CPUs, large ones in parts.
func Load(files []File, opt rules.Options) (*rules.Set, rules.Problems, error) {
	set, warnings, err := load(files, opt, partBytes)
	if errors.Is(err, errWhole) {
		set, warnings, err = load(files, opt, math.MaxInt/2)
	}
	return set, warnings, err
}

// partBytes is the least size in bytes of the parts in which a rule file is read; one smaller
// than two parts is read whole. The YAML library takes some 25 bytes of memory per byte of text.
const partBytes = 256 << 10

// errWhole says that a large file cannot be read in parts.
var errWhole = errors.New("rules: a file has to be read as a whole")

// load is Load with parts of at least so many bytes.
func load(files []File, opt rules.Options, partBytes int) (*rules.Set, rules.Problems, error) {
	c := rules.NewCompiler(opt)
	var problems, warnings rules.Problems
	for p := range inOrder(pieces(files, partBytes)) {
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
	var more rules.Problems
	if errors.As(err, &more) {
		problems = append(problems, more...)
	}
	if opt.AllDocuments {
		wrong, more := checkDocuments(files, opt)
		problems, odd = append(problems, wrong...), append(odd, more...)
	}
	if len(problems) > 0 {
		problems.Sort()
		// One mistake is one problem: what the reader could not take, the
		// compiler then misses at the same place.
		return nil, nil, slices.CompactFunc(problems, func(a, b rules.Problem) bool { return a.Line > 0 && a.Pos == b.Pos })
	}
	warnings = append(warnings, odd...)
	warnings.Sort()
	return set, warnings, nil
}

// pieces are functions that parse the files, in order, those of at least two parts in parts.
func pieces(files []File, partBytes int) iter.Seq[func() yamlrules.Part] {
	return func(yield func(func() yamlrules.Part) bool) {
		for _, f := range files {
			list, ok := yamlrules.List{}, false
			if ext := strings.ToLower(gopath.Ext(f.Name)); len(f.Data)/2 >= partBytes && ext != ".ini" && ext != ".json" && utf8.Valid(f.Data) {
				list, ok = yamlrules.Split(f.Data)
			}
			if !ok {
				if !yield(func() (p yamlrules.Part) {
					p.Config, p.Problems, p.Warnings = parse(f)
					return p
				}) {
					return
				}
				continue
			}
			if !yield(func() yamlrules.Part { return list.ReadFrame(f.Name) }) {
				return
			}
			for p := range list.Parts(partBytes) {
				if !yield(func() yamlrules.Part { return list.ReadPart(f.Name, p) }) {
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

// checkDocuments compiles the documents behind the first of YAML files, which Load never puts
// in force, and returns what is wrong or odd in them.
func checkDocuments(files []File, opt rules.Options) (problems, warnings rules.Problems) {
	var configs []rules.DomainConfig
	for _, f := range files {
		if ext := strings.ToLower(gopath.Ext(f.Name)); ext == ".ini" || ext == ".json" {
			continue
		}
		more, wrong, odd := yamlrules.ParseMore(f.Name, f.Data)
		configs = append(configs, more...)
		problems = append(problems, wrong...)
		warnings = append(warnings, odd...)
	}
	_, odd, err := rules.Compile(configs, opt)
	var wrong rules.Problems
	if errors.As(err, &wrong) {
		problems = append(problems, wrong...)
	}
	return problems, append(warnings, odd...)
}

// DomainOf returns the domain of a rule file, or "" if that cannot be read.
func DomainOf(f File) string {
	cfg, _, _ := parse(f)
	if cfg == nil {
		return ""
	}
	return cfg.Domain
}
