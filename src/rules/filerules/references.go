package filerules

import (
	"bytes"

	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/datafile"
	"ratelimit/src/rules/yamlrules"
)

// hasLaterDocuments reports whether a file may have more YAML documents than one. Only the first takes effect.
func hasLaterDocuments(f File) bool {
	return fileExtension(f) != ".ini" && fileExtension(f) != ".json" && bytes.Contains(f.Data, []byte("\n---"))
}

// dataFilesOf returns the data files that were read for a rule file.
func dataFilesOf(f File) datafile.Files {
	files, _ := f.Attached.(datafile.Files)
	return files
}

// mayHaveDataFiles reports whether DataFiles may return any. It only searches for the words values_from and
// limits_from.
func mayHaveDataFiles(f File) bool {
	return bytes.Contains(f.Data, []byte(datafile.Values.String())) ||
		bytes.Contains(f.Data, []byte(datafile.Limits.String()))
}

// DataFiles returns the data files that a rule file refers to, each once. It parses the file.
func DataFiles(f File) (list []datafile.Reference) {
	seen := make(map[datafile.Reference]bool)
	var walk func([]compile.DescriptorConfig)
	walk = func(descriptors []compile.DescriptorConfig) {
		for i := range descriptors {
			for r := range descriptors[i].DataFiles() {
				if !seen[r] {
					seen[r] = true
					list = append(list, r)
				}
			}
			walk(descriptors[i].Descriptors)
		}
	}
	if cfg, _, _ := parseFile(f); cfg != nil {
		for _, descriptors := range append(cfg.DescriptorParts, cfg.Descriptors) {
			walk(descriptors)
		}
	}
	if hasLaterDocuments(f) { // Only LoadAllDocuments looks at these.
		later, _, _ := yamlrules.ParseLaterDocuments(f.Name, f.Data)
		for i := range later {
			walk(later[i].Descriptors)
		}
	}
	return list
}
