//go:build linux

package siege

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ratelimit/testbed/measured"
	"ratelimit/testbed/testfiles"
)

// The document has every attack, with what the code says of it, and a verdict if it was not measured. Each attack that
// held has its figures.
func TestDocument(t *testing.T) {
	data := testfiles.Read(t, filepath.Join(repository, documentFile))
	document := string(data)
	figures, err := os.ReadFile(filepath.Join(repository, figuresFile))
	if err != nil || !strings.HasPrefix(string(figures), strings.Join(newReport().figureRows()[0], ",")+"\n") {
		t.Errorf("%s has other columns, %v: make siege SIEGE=--write", figuresFile, err)
	}
	_, table, _ := strings.Cut(document, "\n| attack | what is done |\n|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	if listed, want := strings.Count(table, "\n")+1, len(attacks()); listed != want {
		t.Errorf("the table of %s has %d rows, want %d: make siege SIEGE=--write", documentFile, listed, want)
	}
	for _, a := range attacks() {
		_, rest, found := strings.Cut(document, "\n| "+a.name+" | "+a.does)
		switch verdict, _, _ := strings.Cut(rest, " |\n"); {
		case found && verdict == "":
			if !strings.Contains(string(figures), "\n"+a.name+",") && !strings.Contains(string(figures), "\n\""+a.name+"\",") {
				t.Errorf("%s has no figures of %q: make siege SIEGE=--write", figuresFile, a.name)
			}
		case !strings.HasPrefix(verdict, verdictMark+"not measured"):
			t.Errorf("%s describes %q differently, or the verdict is %q: make siege SIEGE=--write", documentFile, a.name,
				verdict)
		}
	}
}

// The template writes every part of the document.
func TestTemplate(t *testing.T) {
	text, err := measured.Document(documentFile, documentTemplate, newReport())
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
