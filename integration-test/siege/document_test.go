package siege

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The section of the document has every attack, with what the code says of it and a
// verdict.
func TestDocument(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(repository, documentFile))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _, err := cut(string(data))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(section, newReport().Attacks()) {
		t.Errorf("%s describes other attacks than there are: make siege SIEGE=--write", documentFile)
	}
	for _, a := range attacks() {
		row := "| " + a.letter + " | " + a.name + " | "
		_, rest, ok := strings.Cut(section, row)
		if !ok || !strings.HasPrefix(rest, "held") && !strings.HasPrefix(rest, "not measured") {
			t.Errorf("%s has no verdict on %q: make siege SIEGE=--write", documentFile, a.name)
		}
	}
}

// Writing the section changes nothing else, and can be repeated.
func TestSectionIsReplaced(t *testing.T) {
	document := "before\n" + sectionBegin + "old\n" + sectionEnd + "after\n"
	before, section, after, err := cut(document)
	if before != "before\n" || section != "old\n" || after != "after\n" || err != nil {
		t.Errorf("%q, %q, %q, %v", before, section, after, err)
	}
	if _, _, _, err := cut("before\n" + sectionEnd); err == nil {
		t.Error("half a section was found")
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
