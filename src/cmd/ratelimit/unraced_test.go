package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestUnracedTestsRun: make test finds the functions Test of files tagged !race below src, and runs them without the
// race detector. Anything else in such files, or such a file elsewhere, would run nowhere.
func TestUnracedTestsRun(t *testing.T) {
	t.Parallel()
	other := regexp.MustCompile(`(?m)^func (Fuzz|Example)\w*`)
	src, tagged := filepath.Join(projectRoot, "src")+string(filepath.Separator), 0
	err := filepath.WalkDir(projectRoot, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(text, []byte("//go:build !race\n")) {
			return err
		}
		tagged++
		if !strings.HasPrefix(path, src) {
			t.Errorf("%s is tagged !race and not below src, where make test looks for such files", path)
		}
		for _, name := range other.FindAll(text, -1) {
			t.Errorf("%s: %s never runs: make test runs only tests of files tagged !race; move it", path, name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if tagged < 15 {
		t.Errorf("only %d files are tagged !race", tagged)
	}
}
