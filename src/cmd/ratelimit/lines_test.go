package main

import (
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"ratelimit/testbed/testfiles"
)

// maxColumns is how long a line of Go source may be. A tab counts as one column.
const maxColumns = 120

// TestLineLengths holds all Go files to maxColumns. A line may be longer if a string in it cannot be broken without
// harm to its reader: a raw string, or one that takes most of the line by itself.
func TestLineLengths(t *testing.T) {
	t.Parallel()
	root := "../../.."
	for _, folder := range []string{"src", "testbed", "integration-test", "tools"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, _ os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".pb.go") {
				for _, line := range tooLongLines(t, path) {
					t.Errorf("%s:%d: more than %d columns: break the line", path, line, maxColumns)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// tooLongLines returns the numbers of the lines of a file that are too long.
func tooLongLines(t *testing.T, path string) (numbers []int) {
	t.Helper()
	source := testfiles.Read(t, path)
	var withText map[int]bool
	for i, line := range strings.Split(string(source), "\n") {
		if utf8.RuneCountInString(line) <= maxColumns {
			continue
		}
		if withText == nil {
			withText = linesWithLongText(path, source)
		}
		if !withText[i+1] {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}

// linesWithLongText returns the numbers of the lines that a raw string or a string of at least 40 bytes is on.
func linesWithLongText(path string, source []byte) map[int]bool {
	files := token.NewFileSet()
	file := files.AddFile(path, -1, len(source))
	var scan scanner.Scanner
	scan.Init(file, source, nil, 0)
	numbers := map[int]bool{}
	for {
		pos, kind, text := scan.Scan()
		if kind == token.EOF {
			return numbers
		}
		if kind != token.STRING || text[0] == '"' && len(text) < 40 {
			continue
		}
		first := file.Line(pos)
		for line := range strings.Count(text, "\n") + 1 {
			numbers[first+line] = true
		}
	}
}

func TestLinesWithLongText(t *testing.T) {
	t.Parallel()
	source := "package p\n\nvar a = `one\ntwo`\n\nvar b = \"short\"\n\nvar c = \"" + strings.Repeat("long ", 10) + "\"\n"
	got := linesWithLongText("p.go", []byte(source))
	for line, want := range map[int]bool{1: false, 3: true, 4: true, 6: false, 8: true} {
		if got[line] != want {
			t.Errorf("line %d has long text: %v, want %v", line, got[line], want)
		}
	}
}
