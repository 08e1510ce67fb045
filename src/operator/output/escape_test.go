package output

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
)

func TestEscaping(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                             "",
		"plain\n\tümlaut, 漢字, …\n":     "plain\n\tümlaut, 漢字, …\n",
		"\x1b[31mred\a\r\n":            `\u001b[31mred\u0007\u000d` + "\n",
		"\u009b31m \u202e \u00a0":      `\u009b31m \u202e \u00a0`,
		"a byte \x9b of another text ": `a byte \x9b of another text `,
		"\U000e0041":                   `\udb40\udc41`,
		"\ufffd":                       "\ufffd",
	} {
		for size := 1; size < 5; size++ { // Writers may cut characters.
			var got strings.Builder
			w := Escaping(&got)
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				if written, err := io.WriteString(w, rest[:n]); written != n || err != nil {
					t.Fatal(written, err)
				}
				rest = rest[n:]
			}
			if got.String() != want {
				t.Errorf("%q in parts of %d: got %q, want %q", text, size, got.String(), want)
			}
		}
	}
}

// JSON has the same value with the escapes.
func TestEscapingKeepsJSON(t *testing.T) {
	t.Parallel()
	const want = "\x1b \u009b \u2028 \U000e0041 <ü>\n"
	var b strings.Builder
	if err := json.NewEncoder(Escaping(&b)).Encode(want); err != nil {
		t.Fatal(err)
	}
	var got string
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil || got != want ||
		strings.ContainsRune(b.String(), '\u009b') {
		t.Errorf("%q, %v from %s", got, err, b.String())
	}
}

func TestRaw(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if Raw(Escaping(&b)) != io.Writer(&b) || Raw(&b) != io.Writer(&b) {
		t.Error("Raw returns another writer")
	}
}
