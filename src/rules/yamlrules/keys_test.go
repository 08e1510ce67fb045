package yamlrules

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ratelimit/api"
	"ratelimit/src/rules/compile"
	"ratelimit/testbed/testfiles"
)

// Every key of the rule files has a row in the table of docs/rule-keys.md.
func TestDocumentHasEveryKey(t *testing.T) {
	t.Parallel()
	text := testfiles.Read(t, "../../../docs/rule-keys.md")
	rows := []string{
		"| `schema` | a tree of limits |", "| `limits` | a name in it |", "| `children` | a name in it |",
	}
	names := make(map[string][]string)
	for _, kind := range mapKinds {
		for key := range kind.fieldIndexByKey {
			names[key] = append(names[key], kind.messageName)
		}
	}
	for key, names := range names {
		rows = append(rows, "| `"+key+"` | "+strings.Join(names, ", ")+" |")
	}
	for _, row := range rows {
		if !strings.Contains(string(text), row) {
			t.Errorf("docs/rule-keys.md has no row that begins %q", row)
		}
	}
}

// The schema has the keys that the reader knows, at the same places.
func TestSchemaHasEveryKey(t *testing.T) {
	t.Parallel()
	var schema struct {
		Definitions map[string]struct{ Properties map[string]any }
	}
	if err := json.Unmarshal(api.Schema, &schema); err != nil {
		t.Fatal(err)
	}
	for i, name := range []string{"rules", "descriptor", "rule", "rate_limit", "replaces"} {
		want := slices.Sorted(maps.Keys(mapKinds[i].fieldIndexByKey))
		if got := slices.Sorted(maps.Keys(schema.Definitions[name].Properties)); !slices.Equal(got, want) {
			t.Errorf("definition %s has the keys %v, want %v", name, got, want)
		}
	}
}

// Every key is read to the field that has it as its tag.
func TestEveryKeyIsRead(t *testing.T) {
	t.Parallel()
	everyKeyIsRead[compile.DomainConfig](t, fileMapKind)
	everyKeyIsRead[compile.DescriptorConfig](t, descriptorMapKind)
	everyKeyIsRead[compile.RuleConfig](t, ruleMapKind)
	everyKeyIsRead[compile.RateLimitConfig](t, limitMapKind)
	everyKeyIsRead[compile.PrefixLengthsConfig](t, prefixesMapKind)
	everyKeyIsRead[compile.NotifyConfig](t, notifyMapKind)
	everyKeyIsRead[compile.ReserveConfig](t, reserveMapKind)
}

func everyKeyIsRead[T any](t *testing.T, kind *mapKind) {
	t.Helper()
	for name := range kind.fieldIndexByKey {
		taken := false
		values := []string{
			"true", "5", "5s", "{a: 1}", "{unit: day}", "{v4: 24}", "[{}]", "[a]", "[5]", "{at: []}",
			"{for: 2m}",
		}
		for _, value := range values {
			var cfg, zero T
			docs, err := decodeDocuments([]byte("{"+name+": "+value+"}"), 1)
			if err != nil {
				t.Fatal(err)
			}
			r := new(reader)
			r.readMap(docs[0].Content[0], kind, &cfg)
			if len(r.problems) == 0 && !reflect.DeepEqual(cfg, zero) {
				taken = true
			}
		}
		if !taken {
			t.Errorf("%s changes nothing, whatever its value", name)
		}
	}
}
