// Package testfiles reads and writes files of tests, and has the rule files of tests and examples as seeds.
package testfiles

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Seed adds the rule files of src/rules/testdata and of the examples to f.
func Seed(f *testing.F) {
	f.Helper()
	root := "."
	for _, err := os.Stat("go.mod"); err != nil && len(root) < 30; _, err = os.Stat(filepath.Join(root, "go.mod")) {
		root = filepath.Join("..", root)
	}
	for _, pattern := range []string{"src/rules/testdata/*.txt", "examples/ratelimit/config/*.yaml"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(paths) == 0 {
			f.Fatalf("%s: no files, %v", pattern, err)
		}
		for _, path := range paths {
			data, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			for one := range strings.SplitSeq(string(data), ".yaml --\n") {
				one, _, _ = strings.Cut(one, "\n-- ")
				f.Add([]byte(one))
			}
		}
	}
}
