package output

import (
	"slices"
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	t.Parallel()
	columns := []Column{{Title: "NAME"}, {Title: "N", IsNumber: true}, {Title: "LIMIT"}}
	rows := [][]string{
		{"a", "1", "10 per minute"},
		{"a long name of a rule", "100", ""},
		{"日本", "7", "x"},
		{"ex\x1b[2J\u009b", "0", "e\u0301"},
	}
	for _, tt := range []struct {
		cells int
		want  []string
	}{
		{0, []string{
			`NAME                     N  LIMIT`,
			`a                        1  10 per minute`,
			`a long name of a rule  100`,
			`日本                     7  x`,
			`"ex\x1b[2J\u009b"        0  é`,
		}},
		{36, []string{
			`NAME                N  LIMIT`,
			`a                   1  10 per minute`,
			`a long name of …  100`,
			`日本                7  x`,
			`"ex\x1b[2J\u009…    0  é`,
		}},
		{30, []string{
			`NAME                     N`, `a                        1`, `a long name of a rule  100`,
			`日本                     7`, `"ex\x1b[2J\u009b"        0`,
		}},
		{16, []string{`NAME`, `a`, `a long name of …`, `日本`, `"ex\x1b[2J\u009…`}},
		{4, []string{`NAME`, `a`, `a l…`, `日本`, `"ex…`}},
		{1, []string{`…`, `a`, `…`, `…`, `…`}},
	} {
		got := Table(tt.cells, columns, rows)
		for i, line := range got {
			if n := Cells(line); tt.cells > 0 && n > tt.cells {
				t.Errorf("%d cells: line %d has %d: %s", tt.cells, i, n, line)
			}
		}
		if strings.ReplaceAll(strings.Join(got, "\n"), "e\u0301", "é") != strings.Join(tt.want, "\n") {
			t.Errorf("%d cells:\n%s\nwant\n%s", tt.cells, strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
		}
	}
	if rows[3][0] != "ex\x1b[2J\u009b" {
		t.Error("the rows of the caller have changed")
	}
}

func TestShorten(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][]string{ // the results for 0, 1, 2 ... cells
		"":         {"", ""},
		"abc":      {"", "…", "a…", "abc", "abc"},
		"日本":       {"", "…", "…", "日…", "日本"},
		"e\u0301f": {"", "…", "e\u0301f"},
	} {
		var got []string
		for n := range want {
			got = append(got, Shorten(text, n))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// What JSON leaves as it is must not control a terminal either.
func TestJSONIsPrintable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := WriteJSONLine(&b, []string{"é <日>", "\x1b\x7f\u009b\u202e\u00a0", "\U000e0001"}); err != nil {
		t.Fatal(err)
	}
	if want := `["é <日>","\u001b\u007f\u009b\u202e\u00a0","\udb40\udc01"]` + "\n"; b.String() != want {
		t.Errorf("got %s want %s", b.String(), want)
	}
}

func TestWrap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		text         string
		cells, lines int
		want         string
	}{
		{"one two three", 0, 3, "one two three"},
		{"one two three", 13, 3, "one two three"},
		{"one two three", 9, 3, "one two|  three"},
		{"one two three four five", 9, 2, "one two|  three …"},
		{"/a/path/without/blanks: why", 10, 4, "/a/path/wi|  thout/bl|  anks:|  why"},
		{"日本語 日本語", 8, 3, "日本語|  日本語"},
		{"one two", 3, 3, "on…"},
	} {
		if got := strings.Join(Wrap(tt.text, tt.cells, tt.lines), "|"); got != tt.want {
			t.Errorf("%+v: got %s", tt, got)
		}
	}
}

func TestDistinctParts(t *testing.T) {
	t.Parallel()
	for names, want := range map[string]string{
		"10.0.3.17:6070":                "10.0.3.17:6070",
		"10.0.3.17:6070 10.0.4.2:6070":  "…3.17:6070 …4.2:6070",
		"127.0.0.1:16070 127.0.0.1:167": "…16070 …167",
		"a:1 b:2":                       "a:1 b:2",
		"rl-7f-aa:1 rl-7f-ab:1":         "…aa:1 …ab:1",
		"same.example same.example":     "…example …example",
	} {
		if got := strings.Join(DistinctParts(strings.Fields(names)), " "); got != want {
			t.Errorf("%s: got %s, want %s", names, got, want)
		}
	}
}
