package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"ratelimit/src/settings"
	"ratelimit/testbed/testfiles"
)

// The table of bounds in SECURITY.md names a test for each bound. The tests and settings
// that SECURITY.md names exist.
func TestSecurityTable(t *testing.T) {
	data := testfiles.Read(t, filepath.Join(projectRoot, "SECURITY.md"))
	_, table, found := strings.Cut(string(data), "\n## What callers may send\n")
	table, _, end := strings.Cut(table, "\n## ")
	if !found || !end {
		t.Fatal("SECURITY.md has no section \"What callers may send\"")
	}
	tests, known := testNames(t), make(map[string]bool)
	for _, v := range settings.Table() {
		known[v.Name] = true
	}
	rows := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 8 || strings.HasPrefix(cells[1], "---") || strings.TrimSpace(cells[1]) == "port" {
			continue
		}
		rows++
		names := inBackticks(cells[6])
		if len(names) == 0 {
			t.Errorf("no test holds %s", line)
		}
		for _, name := range names {
			if !tests[name] {
				t.Errorf("there is no %s, which is to hold %s", name, line)
			}
		}
	}
	if rows < 30 {
		t.Errorf("%d rows were found", rows)
	}
	for _, name := range inBackticks(string(data)) {
		switch {
		case strings.HasPrefix(name, "Test"), strings.HasPrefix(name, "Fuzz"):
			if !tests[name] {
				t.Errorf("there is no test %s", name)
			}
		case regexp.MustCompile(`^[A-Z]+(_[A-Z]+)+$`).MatchString(name):
			if !known[name] && !foreign[name] {
				t.Errorf("there is no setting %s", name)
			}
		}
	}
}

// foreign are names in capitals that are not our settings.
var foreign = map[string]bool{
	"INVALID_ARGUMENT": true, "RESOURCE_EXHAUSTED": true, "UNIMPLEMENTED": true, "ENHANCE_YOUR_CALM": true,
	"REFUSED_STREAM": true,
	"SSL_CERT_FILE":  true, "SSL_CERT_DIR": true,
}

// inBackticks returns the words in backticks, up to an equals sign.
func inBackticks(text string) (words []string) {
	for _, m := range regexp.MustCompile("`([A-Za-z0-9_]+)(=[^`]*)?`").FindAllStringSubmatch(text, -1) {
		words = append(words, m[1])
	}
	return words
}

// testNames returns the names of all tests and fuzz targets.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	for _, dir := range []string{"src", "testbed", "integration-test"} {
		err := filepath.WalkDir(filepath.Join(projectRoot, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range declared.FindAllSubmatch(text, -1) {
				names[string(m[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return names
}
