package yamlrules

import (
	"bytes"
	"testing"

	"gopkg.in/yaml.v3"

	"ratelimit/testbed/testfiles"
)

// differentNode returns a node that differs between two trees, or nil.
func differentNode(a, b *yaml.Node) *yaml.Node {
	if a.Kind != b.Kind || a.Value != b.Value || a.Style != b.Style || a.Line != b.Line || a.Column != b.Column ||
		a.Anchor != b.Anchor ||
		len(a.Content) != len(b.Content) || a.Kind == yaml.ScalarNode && a.Tag != "" {
		return a
	}
	for i := range a.Content {
		if n := differentNode(a.Content[i], b.Content[i]); n != nil {
			return n
		}
	}
	return nil
}

// checkPlain fails if parsePlain gives other nodes than yaml.v3. It returns whether parsePlain can parse data.
func checkPlain(t *testing.T, data []byte) bool {
	t.Helper()
	root, ok := parsePlain(data)
	if !ok {
		return false
	}
	documents, err := decodeAnyDocuments(data, 2)
	if err != nil || len(documents) != 1 || len(documents[0].Content) != 1 {
		t.Fatalf("%q: %d documents, %v", data, len(documents), err)
	}
	if n := differentNode(root, documents[0].Content[0]); n != nil {
		t.Fatalf("%q: %+v differs", data, n)
	}
	return true
}

var plainTexts = []string{
	"domain: d\n", "a:\n  b: c", "a:\n- b: c\n  d: e\n- f: g\nh: i\n",
	"  - key: path\n    value: /v1/items/0\n  - key: x\n",
	"# comment\n\na: 'b c'\n# more\nd: \"e: # f\"\n   # end", "a:\n  -   b: c\n      d:\n        e: f\n",
	"a: 1\nb: yes\nc: null\nd: v*\n",
}

// otherTexts are not plain, or not YAML.
var otherTexts = []string{
	"", "a", "a:\n", "a:\nb: c\n", "a: b: c\n", "a: b\n  c\n", "a: b\n  c: d\n", "a: [b]\n", "a: {b: c}\n", "a: *b\n",
	"a: &b c\n", "- - a: b\n", "- a\n",
	"a: |\n  b\n", "a: b # c\n", "a: b c\n", "a:\n\tb: c\n", "a: b\n---\nc: d\n", "a: \"b\\n\"\n", "a: 'b''c'\n",
	"a: \"b\" c\n", "? a\n", "a: \"\xff\"\n",
	"a: b\r\n", "  a: b\nc: d\n", "- a: b\nc: d\n", "a:\n  b: c\n d: e\n", "- a: b\n - c: d\n", "a: \"b\n  c\"\n",
	"a: %b\n", "%YAML 1.2\n", "a: b\n...\n",
}

func TestPlain(t *testing.T) {
	t.Parallel()
	for _, text := range plainTexts {
		if !checkPlain(t, []byte(text)) {
			t.Errorf("%q is not plain", text)
		}
	}
	for _, text := range otherTexts {
		if checkPlain(t, []byte(text)) {
			t.Errorf("%q is plain", text)
		}
	}
	for _, text := range testfiles.Fleet(2, 3) {
		if !checkPlain(t, text) {
			t.Errorf("%s is not plain", text)
		}
	}
}

// FuzzPlain holds parsePlain to yaml.v3, for a text and for what is left when a line is removed from it.
func FuzzPlain(f *testing.F) {
	testfiles.Seed(f)
	for _, text := range append(plainTexts, otherTexts...) {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		checkPlain(t, data)
		if lines := bytes.SplitAfter(data, []byte{'\n'}); len(lines) < 100 {
			for i := range lines {
				checkPlain(t, bytes.Join(append(append([][]byte(nil), lines[:i]...), lines[i+1:]...), nil))
			}
		}
	})
}
