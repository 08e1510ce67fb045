//go:build linux

package siege

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The document has every attack, with what the code says of it and a
// verdict.
func TestDocument(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(repository, documentFile))
	if err != nil {
		t.Fatal(err)
	}
	document := string(data)
	if !strings.Contains(document, newReport().Attacks()) {
		t.Errorf("%s describes other attacks than there are: make siege SIEGE=--write", documentFile)
	}
	for _, a := range attacks() {
		row := "| " + a.letter + " | " + a.name + " | "
		_, rest, ok := strings.Cut(document, row)
		if !ok || !strings.HasPrefix(rest, "held") && !strings.HasPrefix(rest, "not measured") {
			t.Errorf("%s has no verdict on %q: make siege SIEGE=--write", documentFile, a.name)
		}
	}
}

// The template writes every part of the document.
func TestTemplate(t *testing.T) {
	text, err := newReport().document()
	if err != nil || !strings.HasPrefix(string(text), "# Attacks\n") || strings.Contains(string(text), "{{") {
		t.Errorf("%v in\n%s", err, text)
	}
}

// Each attack has a name of its own, and all that the report needs.
func TestAttacksAreWhole(t *testing.T) {
	var names []string
	letters := make(map[string]bool)
	for _, a := range attacks() {
		if slices.Contains(names, a.name) || a.name == "" || a.does == "" || a.strike == nil || a.quiet && a.unhurried {
			t.Errorf("%q: its name is missing or there twice, or it says or does nothing", a.name)
		}
		names = append(names, a.name)
		letters[a.letter] = letters[a.letter] || !a.onlyFull
	}
	for _, letter := range strings.Split("ABCDEFGHIJK", "") {
		if !letters[letter] {
			t.Errorf("no attack %s is made in short", letter)
		}
	}
}
