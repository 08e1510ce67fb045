package filerules

import (
	"math"
	gopath "path"
	"strings"
	"unicode/utf8"

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
func Format() reload.Format { return formatWithPieces(minPieceBytes) }

// formatWithPieces returns a Format that reads YAML files in pieces of at least so many bytes.
func formatWithPieces(minBytes int) reload.Format {
	return reload.Format{
		Identify: func(files []File) []reload.IdentifiedPart {
			list := make([]reload.IdentifiedPart, len(files))
			for i, f := range files {
				list[i] = reload.IdentifiedPart{Part: f, PartIdentity: reload.PartIdentity{Name: f.Name, SortKey: f.Name}}
			}
			return list
		},
		Read: func(f *reload.IdentifiedPart, whole bool) []func() reload.Piece {
			if whole {
				return pieceReaders(f.Part, math.MaxInt/2)
			}
			return pieceReaders(f.Part, minBytes)
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

// isYAML reports whether a file is YAML by its name.
func isYAML(f File) bool { return fileExtension(f) != ".ini" && fileExtension(f) != ".json" }

// minPieceBytes is the least size in bytes of the pieces in which a file is parsed. A file smaller than two pieces is
// parsed whole. Pieces save memory: the YAML library takes some 25 bytes for each byte of text.
const minPieceBytes = 256 << 10

// pieceReaders returns functions that parse a file. They parse a YAML file of at least two pieces in pieces.
func pieceReaders(f File, minBytes int) (readers []func() reload.Piece) {
	if len(f.Data)/2 >= minBytes && isYAML(f) && utf8.Valid(f.Data) {
		if list, ok := yamlrules.Split(f.Name, f.Data); ok {
			for read := range list.PartReaders(minBytes) {
				readers = append(readers, func() reload.Piece {
					p := read()
					if p.Config != nil {
						p.Config.DataFiles = dataFilesOf(f)
					}
					return reload.Piece{
						Config: p.Config, ContinuesConfig: p.ContinuesConfig, NeedsWholePart: p.NeedsWholeFile, Problems: p.Problems,
						Warnings: p.Warnings,
					}
				})
			}
			return readers
		}
	}
	return []func() reload.Piece{func() (p reload.Piece) {
		if p.Config, p.Problems, p.Warnings = parseFile(f); p.Config != nil {
			p.Config.DataFiles = dataFilesOf(f)
		}
		return p
	}}
}
