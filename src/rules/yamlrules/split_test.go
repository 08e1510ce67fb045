package yamlrules

import (
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"ratelimit/testbed/testfiles"
)

const notYAML = "not YAML"

// FuzzSplit holds a file that is read item by item to the same file read at once.
func FuzzSplit(f *testing.F) {
	testfiles.Seed(f)
	for _, text := range splits {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if utf8.Valid(data) { // Parse reads other files at once.
			sameInParts(t, data)
		}
	})
}

// sameInParts reports whether data can be read in parts, and fails if that gives anything else
// than reading it at once.
func sameInParts(t *testing.T, data []byte) bool {
	t.Helper()
	inParts, whole := &reader{file: "a.yaml"}, &reader{file: "a.yaml"}
	cfg, ok := inParts.readInParts(data, 1)
	if !ok {
		return false
	}
	wantCfg := whole.readWhole(data)
	cfg.Descriptors, cfg.DescriptorParts = slices.Concat(cfg.DescriptorParts...), nil
	got, want := inParts.problems.OnePerPlace(), whole.problems.OnePerPlace()
	if strings.Contains(want.Error(), notYAML) {
		if !strings.Contains(got.Error(), notYAML) {
			t.Fatalf("%q: in parts %v, whole %v", data, got, want)
		}
		return true
	}
	inParts.warnings.Sort()
	whole.warnings.Sort()
	if !reflect.DeepEqual([]any{cfg, got, inParts.warnings}, []any{wantCfg, want, whole.warnings}) {
		t.Fatalf("%q\nin parts: %+v\n%v\n%v\nwhole: %+v\n%v\n%v", data, cfg, got, inParts.warnings, wantCfg, want,
			whole.warnings)
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
		text := testfiles.Read(t, path)
		if !sameInParts(t, text) {
			t.Errorf("%s is not read in parts", path)
		}
	}
}
