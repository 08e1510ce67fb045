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
	for key, places := range places {
		var names []string
		for _, place := range []where{atRoot, atDescriptor, atRule, atLimit, atReplaces} {
			if places&place != 0 {
				names = append(names, whereNames[place])
			}
		}
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
	for place, name := range map[where]string{
		atRoot: "rules", atDescriptor: "descriptor", atRule: "rule", atLimit: "rate_limit", atReplaces: "replaces",
	} {
		var want []string
		for key, places := range places {
			if places&place != 0 {
				want = append(want, key)
			}
		}
		slices.Sort(want)
		if got := slices.Sorted(maps.Keys(schema.Definitions[name].Properties)); !slices.Equal(got, want) {
			t.Errorf("definition %s has the keys %v, want %v", name, got, want)
		}
	}
}

// Every key is read to where the table has its place.
func TestEveryKeyIsRead(t *testing.T) {
	everyKeyIsRead(t, fileKeys)
	everyKeyIsRead(t, descriptorKeys)
	everyKeyIsRead(t, limitsKeys)
	everyKeyIsRead(t, limitKeys)
	everyKeyIsRead(t, ruleKeys)
}

func everyKeyIsRead[T any](t *testing.T, keys table[T]) {
	t.Helper()
	for name := range keys {
		taken := false
		for _, value := range []string{"true", "5", "5s", "{a: 1}", "{unit: day}", "[{}]", "[a]"} {
			var cfg, zero T
			doc, _, err := decode([]byte(value))
			if err != nil {
				t.Fatal(err)
			}
			r := newReader("", 100)
			fill(r, field{name: name, node: doc.Content[0]}, keys, &cfg)
			if len(r.problems) == 0 && !reflect.DeepEqual(cfg, zero) {
				taken = true
			}
		}
		if !taken {
			t.Errorf("%s changes nothing, whatever its value", name)
		}
	}
}
