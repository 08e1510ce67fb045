package filerules

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/reload"
	"ratelimit/testbed/testfiles"
)

const notYAML = "not YAML"

// FuzzSplit holds a file that is read item by item to the same file read at once.
func FuzzSplit(f *testing.F) {
	testfiles.Seed(f)
	for _, text := range splits {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) { sameInParts(t, data) })
}

// sameInParts reports whether data can be read in parts, and fails if that gives anything else
// than reading it at once.
func sameInParts(t *testing.T, data []byte) bool {
	t.Helper()
	files := []File{{Name: "a.yaml", Data: data}}
	pieces := pieceReaders(files[0], 1)
	if len(pieces) == 1 || slices.ContainsFunc(pieces,
		func(read func() reload.Piece) bool { return read().NeedsWholePart }) {
		return false
	}
	set, odd, err := reload.Compile(formatWithPieces(1), files, compile.Options{})
	want, wantOdd, wantErr := reload.Compile(formatWithPieces(math.MaxInt/2), files, compile.Options{})
	if wantErr != nil && strings.Contains(wantErr.Error(), notYAML) {
		if err == nil || !strings.Contains(err.Error(), notYAML) {
			t.Fatalf("%q: in parts %v, whole %v", data, err, wantErr)
		}
		return true
	}
	if !reflect.DeepEqual(err, wantErr) || !reflect.DeepEqual(odd, wantOdd) || !reflect.DeepEqual(set, want) {
		t.Fatalf("%q\nin parts: %v\n%v\nwhole: %v\n%v", data, err, odd, wantErr, wantOdd)
	}
	return true
}

// splits are files that are read in parts.
var splits = []string{
	"domain: d\ndescriptors:\n  - key: a\n  - key: b\n  ",
	"domain: d\ndescriptors:\n- key: a\n- key: {b\n- key: d\n",
	"domain: d\ndescriptors:\n  - key: a\n    rate_limit: {unit: day, requests_per_unit: 1}\n  - key: b\n    value: c\n",
	"descriptors:\n- key: a\n- key: b\n  descriptors:\n  - key: c\ndomain: d\n",
	"# comment\n---\ndomain: d\n\ndescriptors: # of them\n\n # here\n  - key: a\n# there\n  -\n    key: b\n  - key: |\n " +
		"     - c\n      - d\n\n...\n",
	"domain: d\r\nrules:\r\n- match: {a: b}\r\n  rate_limit: {unit: day}\r\n- match: {}\r\n  oops: 1\r\n",
	"domain: d\ndescriptors:\n- key: a\n- kay: b\n- [key, c]\n- key: a\ncharge: path\n",
	"domain: d\ndescriptors:\n- key: a\n- key: @c\n- key: d\n",
	"domain: d\ndescriptors:\n- key: a\n---\ndomain: e\n",
	"domain: d\ndescriptors:\n- key: é\n- key: \"b\n  c\"\n- key: d\n",
}

// wholes are files that are not.
var wholes = []string{
	"{domain: d, descriptors: [{key: a}]}",
	"domain: d\ndescriptors:\n  key: a\n",
	"domain: d\ndescriptors:\n- key: &a b\n- key: *a\n",
	"domain: \"\ndescriptors:\n- key: a\n\"\n",
	"domain: d\ndescriptors:\n- key: a\n- key: \"b\n- c\"\n",
	"domain: d\ndescriptors:\n- key: a\ndescriptors:\n- key: b\n",
	"domain: d\ndescriptors:\n- key: a\nrules:\n- match: {}\n",
	"domain: d\ndescriptors:\n  - key: a\n key: b\n",
	"domain: d\ndescriptors:\n  - key: a\n- key: b\n",
	"domain: d\ndescriptors:\n- key: \"a\u2028\"\n- key: b\n",
	"domain: d\ndescriptors:\n- key: a\n-\tkey: d\n",
	"tests: []\ndescriptors:\n- key: a\n- key: b\n",
}

func TestSplit(t *testing.T) {
	t.Parallel()
	for _, text := range splits {
		if !sameInParts(t, []byte(text)) {
			t.Errorf("%q is not read in parts", text)
		}
	}
	for _, text := range wholes {
		if sameInParts(t, []byte(text)) {
			t.Errorf("%q is read in parts", text)
		}
	}
	examples, err := filepath.Glob("../../../examples/ratelimit/config/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatal("no examples", err)
	}
	for _, path := range examples {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !sameInParts(t, text) {
			t.Errorf("%s is not read in parts", path)
		}
	}
}

// A large file has its problems where they are, and is read whatever is in it.
func TestLargeFile(t *testing.T) {
	t.Parallel()
	const items = 20_000
	list := func(bad int, with string) []byte {
		var b bytes.Buffer
		b.WriteString("domain: d\ndescriptors:\n")
		for i := range items {
			item := fmt.Sprintf("- key: user\n  value: user-%d\n  rate_limit: {unit: day, requests_per_unit: 1}\n", i)
			if i == bad {
				item = with
			}
			b.WriteString(item)
		}
		return b.Bytes()
	}
	const bad = 15_000
	at := fmt.Sprintf("a.yaml:%d", 3+3*bad)
	for _, tt := range []struct{ with, want string }{
		{"- key: user\n  value: other\n", ""},
		{"- {key: a, kex: &x b}\n", at + ":12: unknown key \"kex\"; did you mean `key`?"},
		{
			"- key: user\n  value: user-1\n",
			at + ":3: descriptor \"user_user-1\" is already defined at a.yaml:6:3, on the same level; remove one, or join " +
				"their limits and descriptors",
		},
		{"- key: @\n", at + ":8: not YAML: found character that cannot start any token; indent with blanks, not with tabs, and put text that begins with @, % or ` in quotes"},
		{"- {key: &x a}\n- {key: *x, value: b}\n", ""},
	} {
		set, _, err := Load([]File{{Name: "a.yaml", Data: list(bad, tt.with)}}, compile.Options{})
		if got := fmt.Sprint(err); err != nil && got != tt.want || err == nil && tt.want != "" {
			t.Errorf("%q:\n got %s\nwant %s", tt.with, got, tt.want)
		}
		if err == nil && len(set.Rules()) != items-1 {
			t.Errorf("%q: %d rules, want %d", tt.with, len(set.Rules()), items-1)
		}
	}
}
