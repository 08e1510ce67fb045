package callertext

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"

	"ratelimit/src/rules"
)

// Each form in which the service prints a descriptor is the descriptor to commands: as it is, in quotes as in the log,
// as JSON, and without these quotes.
func FuzzParseEntries(f *testing.F) {
	for _, words := range [][4]string{
		{"user", "bot,7", "", ""},
		{"tenant=acme", "", "", ""},
		{"a", `\`, "b c", "d"},
		{"a", `"`, `"`, `\"`},
		{"a", `"b"`, "", ""},
		{`"a"`, "", `"b"`, ""},
		{`\"`, "*", "ü", "\xff\n"},
		{"a", "\u2028<&>", "b", "\ufffd"},
	} {
		f.Add([]byte(words[0]), []byte(words[1]), []byte(words[2]), []byte(words[3]))
	}
	f.Fuzz(func(t *testing.T, key, value, secondKey, secondValue []byte) {
		want := []rules.Entry{{Key: key, Value: value}}
		if len(secondKey) > 0 {
			want = append(want, rules.Entry{Key: secondKey, Value: secondValue})
		}
		if len(key) == 0 {
			return // No rule has an empty key.
		}
		text := WholeDescriptor(want)
		if strings.Contains(text, "…") {
			return // It may be that of a cut text, which is refused.
		}
		var b bytes.Buffer
		encoder := json.NewEncoder(&b)
		encoder.SetEscapeHTML(false) // as the log
		if err := encoder.Encode(text); err != nil {
			t.Fatal(err)
		}
		inLog, inJSON := strconv.Quote(text), strings.TrimSuffix(b.String(), "\n")
		for _, form := range []string{
			text, inLog, inJSON, inLog[1 : len(inLog)-1], inJSON[1 : len(inJSON)-1], strconv.Quote(inLog),
		} {
			got, err := ParseDescriptor(form)
			same := func(a, b rules.Entry) bool { return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) }
			if err != nil || !slices.EqualFunc(got, want, same) {
				t.Errorf("%s: got %s, want %s; %v", form, WholeDescriptor(got), text, err)
			}
		}
	})
}
