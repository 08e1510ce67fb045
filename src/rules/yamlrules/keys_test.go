package yamlrules

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ratelimit/api"
	"ratelimit/src/rules"
)

// Every key of the rule files has a row in the table of docs/rule-keys.md.
func TestDocumentHasEveryKey(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../docs/rule-keys.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := []string{
		"| `schema` | a tree of limits |", "| `limits` | a name in it |", "| `children` | a name in it |",
	}
	names := make(map[string][]string)
	for _, place := range places {
		for key := range place.keys {
			names[key] = append(names[key], place.name)
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
		want := slices.Sorted(maps.Keys(places[i].keys))
		if got := slices.Sorted(maps.Keys(schema.Definitions[name].Properties)); !slices.Equal(got, want) {
			t.Errorf("definition %s has the keys %v, want %v", name, got, want)
		}
	}
}

// Every key is read to the field that has it as its tag.
func TestEveryKeyIsRead(t *testing.T) {
	t.Parallel()
	everyKeyIsRead[rules.DomainConfig](t, atRoot)
	everyKeyIsRead[rules.DescriptorConfig](t, atDescriptor)
	everyKeyIsRead[rules.RuleConfig](t, atRule)
	everyKeyIsRead[rules.RateLimitConfig](t, atLimit)
}

func everyKeyIsRead[T any](t *testing.T, at *place) {
	t.Helper()
	for name := range at.keys {
		taken := false
		for _, value := range []string{"true", "5", "5s", "{a: 1}", "{unit: day}", "[{}]", "[a]"} {
			var cfg, zero T
			doc, _, err := decode([]byte("{" + name + ": " + value + "}"))
			if err != nil {
				t.Fatal(err)
			}
			r := new(reader)
			r.read(doc.Content[0], at, &cfg)
			if len(r.problems) == 0 && !reflect.DeepEqual(cfg, zero) {
				taken = true
			}
		}
		if !taken {
			t.Errorf("%s changes nothing, whatever its value", name)
		}
	}
}
