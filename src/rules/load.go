package rules

import (
	"errors"
	gopath "path"
	"slices"
	"strings"
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
// reader found odd.
func Load(files []File, opt Options) (*Set, Problems, error) {
	configs := make([]DomainConfig, 0, len(files))
	var problems, warnings Problems
	for _, f := range files {
		cfg, bad, odd := parse(f)
		problems = append(problems, bad...)
		warnings = append(warnings, odd...)
		if cfg != nil {
			configs = append(configs, *cfg)
		}
	}
	set, odd, err := Compile(configs, opt)
	var more Problems
	if errors.As(err, &more) {
		problems = append(problems, more...)
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
