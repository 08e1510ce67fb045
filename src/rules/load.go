package rules

import (
	"errors"
	"slices"
)

// File is a rule file that has been read.
type File struct {
	Name string // as shown in messages
	Data []byte
}

// Load parses and compiles files into one Set. The error, if any, is Problems
// with all that is wrong in all files; the warnings are what Compile and the
// reader found odd.
func Load(files []File, opt Options) (*Set, Problems, error) {
	configs := make([]DomainConfig, 0, len(files))
	var problems, warnings Problems
	for _, f := range files {
		cfg, bad, odd := ParseYAML(f.Name, f.Data)
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
