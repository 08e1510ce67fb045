package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxTerms is how many terms the glossary may have.
const maxTerms = 45

// The glossary is short, sorted, and names only identifiers that exist.
func TestDocumentsGlossary(t *testing.T) {
	t.Parallel()
	known := declared(t)
	rows := regexp.MustCompile("(?m)^\\| ([^|]+) \\| ([^|]+) \\| `([^`|]+)` \\|$").FindAllStringSubmatch(document(t, "docs/glossary.md"), -1)
	if len(rows) < 20 || len(rows) > maxTerms {
		t.Errorf("%d terms, want 20 to %d", len(rows), maxTerms)
	}
	var terms []string
	for _, row := range rows {
		terms = append(terms, strings.ToLower(row[1]))
		if !known[row[3]] {
			t.Errorf("%s: there is no %s in src", row[1], row[3])
		}
	}
	if !slices.IsSorted(terms) || len(slices.Compact(terms)) != len(rows) {
		t.Errorf("the terms are not sorted or not unique: %s", terms)
	}
}

// declared returns the names that src declares outside of functions: package.Name, and
// package.Type.Member for fields and methods.
func declared(t *testing.T) map[string]bool {
	t.Helper()
	known := make(map[string]bool)
	err := filepath.WalkDir(filepath.Join(projectRoot, "src"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			for _, name := range names(decl) {
				known[file.Name.Name+"."+name] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return known
}

// names returns the names that decl declares, and those of the members of its types.
func names(decl ast.Decl) (list []string) {
	if f, ok := decl.(*ast.FuncDecl); ok {
		if f.Recv == nil {
			return []string{f.Name.Name}
		}
		receiver := f.Recv.List[0].Type
		if pointer, ok := receiver.(*ast.StarExpr); ok {
			receiver = pointer.X
		}
		if named, ok := receiver.(*ast.Ident); ok {
			list = append(list, named.Name+"."+f.Name.Name)
		}
		return list
	}
	for _, spec := range decl.(*ast.GenDecl).Specs {
		switch s := spec.(type) {
		case *ast.ValueSpec:
			for _, name := range s.Names {
				list = append(list, name.Name)
			}
		case *ast.TypeSpec:
			list = append(list, s.Name.Name)
			members := new(ast.FieldList)
			switch typ := s.Type.(type) {
			case *ast.StructType:
				members = typ.Fields
			case *ast.InterfaceType:
				members = typ.Methods
			}
			for _, field := range members.List {
				for _, name := range field.Names {
					list = append(list, s.Name.Name+"."+name.Name)
				}
			}
		}
	}
	return list
}
