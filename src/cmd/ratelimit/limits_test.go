package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Pages say what was run. What was not stands in docs/limits.md alone, with the reason.
func TestDocumentsLimits(t *testing.T) {
	t.Parallel()
	untested := regexp.MustCompile(`(?i)untested|(has|have|was|were) not run\b|could not be reached|no engine has run`)
	for _, page := range append(documents(t), "CONTRIBUTING.md", "SECURITY.md") {
		for i, line := range strings.Split(document(t, page), "\n") {
			if found := untested.FindString(line); found != "" && page != "docs/limits.md" {
				t.Errorf("%s:%d: %q: say it in docs/limits.md", page, i+1, found)
			}
		}
	}
}

// The table of fields in docs/logging.md has each field of a log line, and no others.
func TestDocumentsLogFields(t *testing.T) {
	t.Parallel()
	written := map[string]bool{"error": true} // error is the field of WithError
	for _, port := range []string{"http", "grpc", "debug", "health", "prometheus", "divvy", "resp"} {
		written[port] = true // ports.addresses
	}
	var names []string
	for _, pattern := range []string{"src/service/*.go", "src/service/*/*.go"} {
		found, err := filepath.Glob(filepath.Join(projectRoot, pattern))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			for _, key := range logFieldsOf(n) {
				written[key] = true
			}
			return true
		})
	}
	told := make(map[string]bool)
	_, table, _ := strings.Cut(document(t, "docs/logging.md"), "| field | in lines |")
	for _, row := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(table, -1) {
		for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[1], -1) {
			told[m[1]] = true
		}
	}
	if got, want := slices.Sorted(maps.Keys(told)), slices.Sorted(maps.Keys(written)); !slices.Equal(got, want) {
		t.Errorf("docs/logging.md has the fields\n%q, the code\n%q", got, want)
	}
}

// logFieldsOf returns the names of log fields that a node writes: a literal of logrus.Fields, WithField, or an element
// of fields or facts.
func logFieldsOf(n ast.Node) (names []string) {
	var keys []ast.Expr
	switch n := n.(type) {
	case *ast.CompositeLit:
		if typ, ok := n.Type.(*ast.SelectorExpr); ok && typ.Sel.Name == "Fields" {
			for _, e := range n.Elts {
				keys = append(keys, e.(*ast.KeyValueExpr).Key)
			}
		}
	case *ast.CallExpr:
		if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "WithField" {
			keys = n.Args[:1]
		}
	case *ast.IndexExpr:
		if x, ok := n.X.(*ast.Ident); ok && (x.Name == "fields" || x.Name == "facts") {
			keys = append(keys, n.Index)
		}
	}
	for _, key := range keys {
		if lit, ok := key.(*ast.BasicLit); ok {
			name, _ := strconv.Unquote(lit.Value)
			names = append(names, name)
		}
	}
	return names
}
