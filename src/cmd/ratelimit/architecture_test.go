package main

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// projectRoot is the project's root, seen from this package.
const projectRoot = "../../.."

// tableRows returns the cells of the Markdown tables in text whose header's
// first cell is title.
func tableRows(text, title string) (rows [][]string) {
	inside := false
	for line := range strings.SplitSeq(text, "\n") {
		if !strings.HasPrefix(line, "|") {
			inside = false
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case cells[0] == title:
			inside = true
		case inside && !strings.HasPrefix(cells[0], "---"):
			rows = append(rows, cells)
		}
	}
	return rows
}

var quoted = regexp.MustCompile("`([^`]+)`")

func words(cell string) (list []string) {
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		list = append(list, m[1])
	}
	return list
}

// imports returns what the non-test files of each package import: of those under src without "src/", and of testbed.
func imports(t *testing.T) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	addImports(t, found, filepath.Join(projectRoot, "src"), filepath.Join(projectRoot, "src"))
	addImports(t, found, projectRoot, filepath.Join(projectRoot, "testbed"))
	return found
}

// addImports adds the packages under dir. Their names are relative to base.
func addImports(t *testing.T, found map[string][]string, base, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(base, filepath.Dir(path))
		if err != nil {
			return err
		}
		pkg = filepath.ToSlash(pkg)
		found[pkg] = append(found[pkg], "") // also a package that imports nothing
		for _, spec := range file.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			found[pkg] = append(found[pkg], name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestArchitecture(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join(projectRoot, "docs", "architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	allowed := make(map[string][]string)
	for _, row := range tableRows(string(doc), "package") {
		allowed[words(row[0])[0]] = append(words(row[1]), strings.Fields(row[1])...)
	}
	homes := make(map[string][]string)
	for _, row := range tableRows(string(doc), "library") {
		homes[words(row[0])[0]] = words(row[1])
	}
	if len(allowed) < 10 || len(homes) < 5 {
		t.Fatalf("the tables were not found: %d packages, %d libraries", len(allowed), len(homes))
	}
	found := imports(t)
	for pkg, list := range found {
		may, listed := allowed[pkg]
		if !listed {
			t.Errorf("package %s is not in the table of docs/architecture.md", pkg)
			continue
		}
		for _, name := range list {
			if strings.HasPrefix(name, "ratelimit/testbed/") && !strings.HasPrefix(pkg, "testbed/") {
				t.Errorf("%s imports %s, which is for tests", pkg, name)
			}
			if room, _, _ := strings.Cut(pkg, "/"); strings.HasPrefix(name, "ratelimit/src/tools/") && room != "tools" && room != "cmd" {
				t.Errorf("%s serves requests and imports %s, which runs offline", pkg, name)
			}
			ours, ok := strings.CutPrefix(name, "ratelimit/src/")
			if strings.HasPrefix(name, "ratelimit/testbed/") {
				ours, ok = strings.TrimPrefix(name, "ratelimit/"), true
			}
			if ok && !slices.Contains(may, ours) && !slices.Contains(may, "anything") {
				t.Errorf("%s imports %s, which docs/architecture.md does not allow", pkg, ours)
			}
			for library, rooms := range homes {
				if (name == library || strings.HasPrefix(name, library+"/")) && !slices.Contains(rooms, pkg) {
					t.Errorf("%s imports %s, which lives in %v", pkg, name, rooms)
				}
			}
		}
	}
	for pkg := range allowed {
		if found[pkg] == nil {
			t.Errorf("docs/architecture.md lists %s, which does not exist", pkg)
		}
	}
}
