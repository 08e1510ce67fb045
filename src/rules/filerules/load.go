package filerules

import (
	"bytes"
	gopath "path"
	"strings"

	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/divvyrules"
	"ratelimit/src/rules/reload"
	"ratelimit/src/rules/yamlrules"
)

// File is a rule file that has been read.
type File = reload.Part

// Load compiles files into one Set. The error, if any, is rules.Problems with everything that is wrong in all files.
// The warnings name what is valid but has no effect.
func Load(files []File, opt compile.Options) (*rules.Set, rules.Problems, error) {
	return reload.Compile(Format(), files, opt)
}

// LoadAllDocuments does what Load does, and also checks the later documents of YAML files. These never take effect: as
// in envoyproxy/ratelimit, the set has the rules of the first documents only.
func LoadAllDocuments(files []File, opt compile.Options) (*rules.Set, rules.Problems, error) {
	set, warnings, err := Load(files, opt)
	problems := rules.ProblemsOf(err)
	var configs []compile.DomainConfig
	for _, f := range files {
		if !hasLaterDocuments(f) {
			continue
		}
		more, wrong, odd := yamlrules.ParseLaterDocuments(f.Name, f.Data)
		for i := range more {
			more[i].DataFiles = dataFilesOf(f)
		}
		configs = append(configs, more...)
		problems, warnings = append(problems, wrong...), append(warnings, odd...)
	}
	_, odd, err := compile.Compile(configs, opt)
	if problems = append(problems, rules.ProblemsOf(err)...); len(problems) > 0 {
		return nil, nil, problems.OnePerPlace()
	}
	warnings = append(warnings, odd...)
	warnings.Sort()
	return set, warnings, nil
}

// Format returns how rule files are read.
func Format() reload.Format {
	return reload.Format{
		Read: func(f *File) (read reload.ReadPart) {
			if read.Config, read.Problems, read.Warnings = parseFile(*f); read.Config != nil {
				read.Config.DataFiles = dataFilesOf(*f)
			}
			return read
		},
		SortWarnings:    rules.Problems.Sort,
		ArrangeProblems: rules.Problems.OnePerPlace,
	}
}

// parseFile reads a file of any format.
func parseFile(f File) (cfg *compile.DomainConfig, problems, warnings rules.Problems) {
	switch ext := fileExtension(f); {
	case ext == ".ini":
		return divvyrules.ParseINI(f.Name, f.Data)
	case ext == ".json" && divvyrules.IsDivvyJSON(f.Data):
		return divvyrules.ParseJSON(f.Name, f.Data)
	}
	return yamlrules.Parse(f.Name, f.Data)
}

// fileExtension returns the end of the file's name in lower case, such as ".yaml".
func fileExtension(f File) string { return strings.ToLower(gopath.Ext(f.Name)) }

// hasLaterDocuments reports whether a file may have more YAML documents than one. Only the first takes effect.
func hasLaterDocuments(f File) bool {
	return fileExtension(f) != ".ini" && fileExtension(f) != ".json" && bytes.Contains(f.Data, []byte("\n---"))
}
