package chaos

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"ratelimit/testbed/measured"
	"ratelimit/testbed/testfiles"
)

// heldCell matches what the document says of a trial that held.
var heldCell = regexp.MustCompile(`^(back after [0-9.]+ m?s|[0-9]+ % of calls as ever|[0-9]+ of [0-9]+ at most)$`)

// The document has every fault and every store, with what the code says of them,
// and no cell that explains nothing.
func TestDocument(t *testing.T) {
	data := testfiles.Read(t, filepath.Join(repository, documentFile))
	document := string(data)
	r := newReport()
	if !strings.Contains(document, r.Faults()) {
		t.Errorf("%s describes other faults than there are: make chaos CHAOS=--write", documentFile)
	}
	rows := make(map[string][]string)
	for line := range strings.Lines(document) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) == 1+len(storeNames) {
			rows[cells[0]] = cells[1:]
		}
	}
	figures, err := os.ReadFile(filepath.Join(repository, figuresFile))
	if err != nil || !strings.HasPrefix(string(figures), strings.Join(newReport().figureRows()[0][:3], ",")) {
		t.Errorf("%s has other columns, %v: make chaos CHAOS=--write", figuresFile, err)
	}
	for i := range faults {
		f := &faults[i]
		for k, s := range storeNames {
			row := rows[f.name]
			if row == nil {
				t.Errorf("%s has no row for %q: make chaos CHAOS=--write", documentFile, f.name)
				break
			}
			cell := row[k]
			ok := heldCell.MatchString(cell) || strings.HasPrefix(cell, "not measured: ")
			if f.unlike[s] != "" {
				ok = cell == r.verdict(f, s)
			}
			if !ok {
				t.Errorf("%s: %s on %s is %q", documentFile, f.name, s, cell)
			} else if strings.HasPrefix(cell, "back") && !strings.Contains(string(figures), f.name+","+string(s)+",") {
				t.Errorf("%s has no figures of %s on %s", figuresFile, f.name, s)
			}
		}
	}
}

// The template writes every part of the document.
func TestTemplate(t *testing.T) {
	text, err := measured.Document(documentFile, documentTemplate, newReport())
	if err != nil || !strings.HasPrefix(string(text), "# Reliability\n") || strings.Contains(string(text), "{{") {
		t.Errorf("%v in\n%s", err, text)
	}
}

// Each fault has what it needs, and is in the short run on a store that can have
// it.
func TestFaultsAreWhole(t *testing.T) {
	seen := make(map[string]bool)
	for _, f := range faults {
		if seen[f.name] || f.name == "" || f.does == "" {
			t.Errorf("%q, %q: a name is missing or there twice, or it says nothing", f.name, f.does)
		}
		seen[f.name] = true
		if (f.begin == nil) == (f.virtual == nil) {
			t.Errorf("%s: it has to begin, or to be virtual", f.name)
		}
		if f.short == "" || f.unlike[f.short] != "" {
			t.Errorf("%s: in short it is tried on %q", f.name, f.short)
		}
		for s, why := range f.unlike {
			if _, name, refers := strings.Cut(why, "see *"); refers {
				name, _, _ = strings.Cut(name, "*")
				if !has(s, name) {
					t.Errorf("%s on %s refers to %q, which is not tried there", f.name, s, name)
				}
			}
		}
	}
}

// has tells whether a fault of that name is tried on s.
func has(s storeName, name string) bool {
	for _, f := range faults {
		if f.name == name {
			return f.unlike[s] == ""
		}
	}
	return false
}
