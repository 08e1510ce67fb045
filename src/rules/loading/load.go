// Package loading reads rule files of all formats and compiles them into one Set.
//
//	YAML, with `domain` or `schema`, in *.json too  ->  yamlrules   \
//	*.ini, and *.json of divvy                      ->  divvyrules  -> configurations -> rules.Compiler -> *rules.Set
//
// Files are read on all CPUs, large YAML files in parts.
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
	"ratelimit/src/rules/reload"
	"ratelimit/src/rules/yamlrules"
)

// RuleFile is a rule file that has been read.
type RuleFile = reload.Part

// Load compiles files into one Set. The error, if any, is rules.Problems with everything that is wrong in all files. The warnings
// name what is valid but has no effect.
func Load(files []RuleFile, opt rules.Options) (*rules.Set, rules.Problems, error) {
	set, warnings, err := loadInParts(files, opt, minPartBytes)
	if errors.Is(err, errNeedsWholeFile) {
		set, warnings, err = loadInParts(files, opt, math.MaxInt/2)
	}
	return set, warnings, err
}

// Identify returns the name of each file, and its domain if that can be read.
func Identify(files []RuleFile) []reload.PartIdentity {
	ids := make([]reload.PartIdentity, len(files))
	for i, f := range files {
		ids[i].Name = f.Name
		if cfg, _, _ := parseFile(f); cfg != nil {
			ids[i].Domain = cfg.Domain
		}
	}
	return ids
}

// parseFile reads a file of any format.
func parseFile(f RuleFile) (cfg *rules.DomainConfig, problems, warnings rules.Problems) {
	switch ext := fileExtension(f); {
	case ext == ".ini":
		return divvyrules.ParseINI(f.Name, f.Data)
	case ext == ".json" && divvyrules.IsDivvyJSON(f.Data):
		return divvyrules.ParseJSON(f.Name, f.Data)
	}
	return yamlrules.Parse(f.Name, f.Data)
}

// fileExtension returns the end of the file's name in lower case, such as ".yaml".
func fileExtension(f RuleFile) string { return strings.ToLower(gopath.Ext(f.Name)) }

// IsYAML reports whether a file is YAML by its name.
func IsYAML(f RuleFile) bool { return fileExtension(f) != ".ini" && fileExtension(f) != ".json" }

// minPartBytes is the least size in bytes of the parts in which a file is parsed. A file smaller than two parts is parsed whole. Parts
// save memory: the YAML library takes some 25 bytes for each byte of text.
const minPartBytes = 256 << 10

// errNeedsWholeFile is the error of load if a file cannot be parsed in parts.
var errNeedsWholeFile = errors.New("loading: a file has to be read as a whole")

// loadInParts does what Load does, with files in parts of at least minPartBytes bytes.
func loadInParts(files []RuleFile, opt rules.Options, partBytes int) (*rules.Set, rules.Problems, error) {
	c := rules.NewCompiler(opt)
	var problems, warnings rules.Problems
	for p := range resultsInOrder(partParsers(files, partBytes)) {
		problems = append(problems, p.Problems...)
		warnings = append(warnings, p.Warnings...)
		switch {
		case p.NeedsWholeFile:
			return nil, nil, errNeedsWholeFile
		case p.ContinuesConfig:
			c.ExtendConfig(p.Config)
		case p.Config != nil:
			c.AddConfig(p.Config)
		}
	}
	set, odd, err := c.Result()
	warnings = append(warnings, odd...)
	problems = append(problems, rules.ProblemsOf(err)...)
	if len(problems) > 0 {
		return nil, nil, problems.OnePerPlace()
	}
	warnings.Sort()
	return set, warnings, nil
}

// partParsers returns functions that parse the files, in order. Files of at least two parts are parsed in parts.
func partParsers(files []RuleFile, partBytes int) (functions []func() yamlrules.ParsedPart) {
	for _, f := range files {
		if len(f.Data)/2 >= partBytes && IsYAML(f) && utf8.Valid(f.Data) {
			if list, ok := yamlrules.Split(f.Name, f.Data); ok {
				functions = slices.AppendSeq(functions, list.PartReaders(partBytes))
				continue
			}
		}
		functions = append(functions, func() (p yamlrules.ParsedPart) {
			p.Config, p.Problems, p.Warnings = parseFile(f)
			return p
		})
	}
	return functions
}

// resultsInOrder calls functions and yields their results in order. It runs as many functions at a time as there are CPUs.
func resultsInOrder[T any](functions []func() T) iter.Seq[T] {
	return func(yield func(T) bool) {
		var running []chan T // Each channel receives one result. The order is that of the functions.
		for len(functions) > 0 || len(running) > 0 {
			for len(functions) > 0 && len(running) < runtime.GOMAXPROCS(0) {
				f, result := functions[0], make(chan T, 1)
				functions, running = functions[1:], append(running, result)
				go func() { result <- f() }()
			}
			if !yield(<-running[0]) {
				return
			}
			running = running[1:]
		}
	}
}
