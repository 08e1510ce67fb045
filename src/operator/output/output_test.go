package output

import (
	"strings"
	"testing"
)

func TestPlural(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		n    any
		want string
	}{{0, "0 hits"}, {1, "1 hit"}, {uint64(1), "1 hit"}, {2, "2 hits"}, {uint64(11), "11 hits"}} {
		if got := Plural(tt.n, "hit"); got != tt.want {
			t.Errorf("%v: got %s, want %s", tt.n, got, tt.want)
		}
	}
}

func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "plain, with a blank": "plain, with a blank", "ümlaut": "ümlaut", "a\tb": `"a\tb"`, "\x1b[1m": `"\x1b[1m"`,
		"a\nb": `"a\nb"`,
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}

func TestFirst(t *testing.T) {
	t.Parallel()
	names := []string{"a", "b\n", "c"}
	for most, want := range map[int]string{1: "a and 2 more", 2: `a, "b\n" and 1 more`, 3: `a, "b\n", c`, 9: `a, "b\n", c`} {
		if got := First(names, most); got != want {
			t.Errorf("%d: got %s", most, got)
		}
	}
}

func TestWriteJSON(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := WriteJSON(&b, map[string]string{"rule": "<a>"}); err != nil || b.String() != "{\n  \"rule\": \"<a>\"\n}\n" {
		t.Errorf("%v: %s", err, b.String())
	}
}
