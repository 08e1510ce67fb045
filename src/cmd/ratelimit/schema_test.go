package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"ratelimit/src/operator/explain"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/ruletest"
	"ratelimit/testbed/testfiles"
)

// The program prints the committed schema.
func TestSchemaFile(t *testing.T) {
	code, out, errOut := call(t, "ratelimit", "schema")
	if code != command.ExitOK {
		t.Fatalf("exit %d: %s", code, errOut)
	}
	path := filepath.Join(projectRoot, "api", "ratelimit.schema.json")
	data := testfiles.Read(t, path)
	if string(data) != out {
		t.Error("api/ratelimit.schema.json is not what `ratelimit schema` prints")
	}
}

// yamlFiles returns the text of all YAML files of the project, by path.
func yamlFiles(t *testing.T) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for _, root := range []string{"examples", "deploy", "integration-test", "src", ".github"} {
		err := filepath.WalkDir(filepath.Join(projectRoot, root), func(path string, entry os.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() || !regexp.MustCompile(`\.ya?ml$`).MatchString(path) {
				return err
			}
			data, err := os.ReadFile(path)
			if err == nil {
				path, err = filepath.Rel(projectRoot, path)
			}
			files[path] = string(data)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}

// isRules reports whether a YAML file has rules, and not tests of rules or anything else.
func isRules(text string) bool {
	return regexp.MustCompile(`(?m)^(domain|schema):`).MatchString(text) &&
		!regexp.MustCompile(`(?m)^(tests|apiVersion):`).MatchString(text)
}

// Each example of rules names the path of the schema in its first line, for editors. The rules of examples/kubernetes
// do not: they are also a file of the Helm chart, where the path is another one.
func TestExamplesNameTheSchema(t *testing.T) {
	want, err := os.Stat(filepath.Join(projectRoot, "api", "ratelimit.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range yamlFiles(t) {
		if !isRules(text) || !strings.HasPrefix(path, "examples") || strings.HasPrefix(path, "examples/kubernetes") {
			continue
		}
		first, _, _ := strings.Cut(text, "\n")
		m := regexp.MustCompile(`^# yaml-language-server: \$schema=(\S+)$`).FindStringSubmatch(first)
		if m == nil {
			t.Errorf("the first line of %s does not name the schema", path)
			continue
		}
		got, err := os.Stat(filepath.Join(projectRoot, filepath.Dir(path), m[1]))
		if err != nil || !os.SameFile(got, want) {
			t.Errorf("%s names %s, which is not the schema: %v", path, m[1], err)
		}
	}
}

// The entry for SchemaStore in CONTRIBUTING.md matches rule files, and no other YAML file of the project.
func TestSchemaStoreEntry(t *testing.T) {
	_, text, _ := strings.Cut(document(t, "CONTRIBUTING.md"), "```json\n{\n  \"name\"")
	text, _, _ = strings.Cut(text, "```")
	var entry struct {
		Name, Description, URL string
		FileMatch              []string
	}
	if err := json.Unmarshal([]byte("{\"name\""+text), &entry); err != nil {
		t.Fatalf("CONTRIBUTING.md: %v in\n%s", err, text)
	}
	if entry.Name == "" || entry.Description == "" || !strings.HasSuffix(entry.URL, "/api/ratelimit.schema.json") {
		t.Errorf("got %+v", entry)
	}
	matched := make(map[string]bool)
	files := yamlFiles(t)
	files["shop.ratelimit.yaml"], files["deep/shop.ratelimit.yml"], files["x/ratelimit/config/a.yml"] = "domain: d",
		"domain: d", "domain: d"
	for path, text := range files {
		for _, pattern := range entry.FileMatch {
			// A pattern is compared with as many of the last names of the path as it has itself.
			tail, names := strings.TrimPrefix(pattern, "**/"), strings.Split(path, "/")
			names = names[max(0, len(names)-strings.Count(tail, "/")-1):]
			if ok, err := filepath.Match(tail, strings.Join(names, "/")); err != nil {
				t.Fatal(err)
			} else if ok && !isRules(text) {
				t.Errorf("%s matches %s, which has no rules", pattern, path)
			} else if ok {
				matched[pattern] = true
				delete(files, path)
			}
		}
	}
	for path := range files {
		if strings.HasPrefix(path, "examples/ratelimit/config/") {
			t.Errorf("no pattern matches %s", path)
		}
	}
	if len(matched) != len(entry.FileMatch) {
		t.Errorf("of %q, only %v match a file", entry.FileMatch, matched)
	}
}

// resultSchemas are the schemas of JSON that commands print, and the types that are printed.
var resultSchemas = map[string]reflect.Type{
	"explanation.schema.json":  reflect.TypeFor[explain.Report](),
	"test-results.schema.json": reflect.TypeFor[ruletest.Summary](),
}

// schemaNode is the part of a JSON Schema that the schemas of results use.
type schemaNode struct {
	Ref         string                 `json:"$ref"`
	Description string                 `json:"description"`
	Type        any                    `json:"type"` // a name, or a name and "null"
	Properties  map[string]*schemaNode `json:"properties"`
	Items       *schemaNode            `json:"items"`
}

// The schemas of results have each field of the type that is printed, with its type and a description, and no other
// field.
func TestResultSchemas(t *testing.T) {
	for file, typ := range resultSchemas {
		var root schemaNode
		if err := json.Unmarshal([]byte(document(t, "api/"+file)), &root); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		compareSchema(t, file, &root, typ)
	}
}

// compareSchema reports how a node differs from a type. Its path is for messages.
func compareSchema(t *testing.T, path string, node *schemaNode, typ reflect.Type) {
	t.Helper()
	nullable := typ.Kind() == reflect.Pointer
	if nullable {
		typ = typ.Elem()
	}
	if node.Ref != "" {
		if resultSchemas[node.Ref] != typ {
			t.Errorf("%s refers to %s, which is not of a %v", path, node.Ref, typ)
		}
		return
	}
	want := "integer"
	switch typ.Kind() {
	case reflect.Struct:
		want = "object"
		compareProperties(t, path, node, typ)
	case reflect.Slice:
		want = "array"
		if node.Items == nil {
			t.Errorf("%s has no items", path)
			return
		}
		compareSchema(t, path+"[]", node.Items, typ.Elem())
	case reflect.String:
		want = "string"
	case reflect.Bool:
		want = "boolean"
	case reflect.Float64:
		want = "number"
	}
	got := fmt.Sprint(node.Type)
	if got != want && (!nullable || got != "["+want+" null]") {
		t.Errorf("%s is of type %s, want %s", path, got, want)
	}
}

func compareProperties(t *testing.T, path string, node *schemaNode, typ reflect.Type) {
	t.Helper()
	known := make(map[string]bool)
	for _, field := range reflect.VisibleFields(typ) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "-" || field.Anonymous || !field.IsExported() {
			continue
		}
		known[name] = true
		property := node.Properties[name]
		if property == nil {
			t.Errorf("%s has no %s", path, name)
			continue
		}
		if property.Description == "" && property.Ref == "" {
			t.Errorf("%s.%s has no description", path, name)
		}
		compareSchema(t, path+"."+name, property, field.Type)
	}
	for name := range node.Properties {
		if !known[name] {
			t.Errorf("%s has %s, which is not printed", path, name)
		}
	}
}
