package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ratelimit/testbed/testfiles"
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
	doc := testfiles.Read(t, filepath.Join(projectRoot, "src", "imports.md"))
	allowed := make(map[string][]string)
	for _, row := range tableRows(string(doc), "package") {
		for _, pkg := range words(row[0]) {
			if allowed[pkg] != nil {
				t.Errorf("src/imports.md has two rows for %s", pkg)
			}
			allowed[pkg] = append(words(row[1]), strings.Fields(row[1])...)
		}
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
			t.Errorf("package %s is not in the table of src/imports.md", pkg)
			continue
		}
		for _, name := range list {
			if strings.HasPrefix(name, "ratelimit/testbed/") && !strings.HasPrefix(pkg, "testbed/") {
				t.Errorf("%s imports %s, which is for tests", pkg, name)
			}
			room, _, _ := strings.Cut(pkg, "/")
			if strings.HasPrefix(name, "ratelimit/src/tools/") && room != "tools" && room != "cmd" {
				t.Errorf("%s serves requests and imports %s, which runs offline", pkg, name)
			}
			ours, ok := strings.CutPrefix(name, "ratelimit/src/")
			if strings.HasPrefix(name, "ratelimit/testbed/") {
				ours, ok = strings.TrimPrefix(name, "ratelimit/"), true
			}
			if ok && !slices.Contains(may, ours) && !slices.Contains(may, "anything") {
				t.Errorf("%s imports %s, which src/imports.md does not allow", pkg, ours)
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
			t.Errorf("src/imports.md lists %s, which does not exist", pkg)
		}
	}
}

// namesByPackage returns the identifiers and the imports in the non-test files of each package under src.
func namesByPackage(t *testing.T) map[string]map[string]bool {
	t.Helper()
	found := make(map[string]map[string]bool)
	src := filepath.Join(projectRoot, "src")
	err := filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		pkg, err := filepath.Rel(src, filepath.Dir(path))
		if err != nil {
			return err
		}
		pkg = filepath.ToSlash(pkg)
		if found[pkg] == nil {
			found[pkg] = make(map[string]bool)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				found[pkg][n.Name] = true
			case *ast.ImportSpec:
				found[pkg][strings.Trim(n.Path.Value, `"`)] = true
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestArchitectureDistance counts the packages that name a feature and are not its rooms: by an import, or by an
// identifier with one of the feature's words. src/imports.md has the ceilings, which only fall.
func TestArchitectureDistance(t *testing.T) {
	doc := testfiles.Read(t, filepath.Join(projectRoot, "src", "imports.md"))
	rows, found := tableRows(string(doc), "feature"), namesByPackage(t)
	if len(rows) < 10 {
		t.Fatalf("the table of features has %d rows", len(rows))
	}
	for _, row := range rows {
		rooms, terms := words(row[1]), words(row[2])
		ceiling, err := strconv.Atoi(row[3])
		if err != nil {
			t.Errorf("%s: %v", row[0], err)
		}
		var naming []string
		for pkg, list := range found {
			if isIn(pkg, rooms) {
				continue
			}
			for name := range list {
				ours, isImport := strings.CutPrefix(name, "ratelimit/src/")
				isTerm := !strings.Contains(name, "/") &&
					slices.ContainsFunc(terms, func(term string) bool { return strings.Contains(name, term) })
				if isImport && isIn(ours, rooms) || isTerm {
					naming = append(naming, pkg)
					break
				}
			}
		}
		slices.Sort(naming)
		switch n := len(naming); {
		case n > ceiling:
			t.Errorf("%s: %d packages name it, at most %d may: %s", row[0], n, ceiling, strings.Join(naming, ", "))
		case n < ceiling:
			t.Logf("%s: lower the ceiling of %d to %d: %s", row[0], ceiling, n, strings.Join(naming, ", "))
		}
	}
}

// isIn reports whether pkg is one of rooms, or below one.
func isIn(pkg string, rooms []string) bool {
	return slices.ContainsFunc(rooms, func(room string) bool { return pkg == room || strings.HasPrefix(pkg, room+"/") })
}
