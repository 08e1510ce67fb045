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

func TestWriteJSON(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := WriteJSON(&b, map[string]string{"rule": "<a>"}); err != nil || b.String() != "{\n  \"rule\": \"<a>\"\n}\n" {
		t.Errorf("%v: %s", err, b.String())
	}
}
