package integration

import (
	"os"
	"path/filepath"
	"testing"

	"gopkg.in/yaml.v3"

	"ratelimit/testbed/testfiles"
)

// document is a YAML file that a test runs with small changes.
type document struct{ root yaml.Node }

func readYAML(t *testing.T, path string) *document {
	t.Helper()
	text := testfiles.Read(t, path)
	d := new(document)
	if err := yaml.Unmarshal(text, &d.root); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return d
}

// at returns what stands under key, wherever in the document that key is.
func (d *document) at(key string) []*yaml.Node {
	var found []*yaml.Node
	var look func(*yaml.Node)
	look = func(n *yaml.Node) {
		for i, child := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 1 && n.Content[i-1].Value == key {
				found = append(found, child)
			}
			look(child)
		}
	}
	look(&d.root)
	return found
}

// set gives every key of that name the scalar value. There must be one.
func (d *document) set(t *testing.T, key, value string) {
	t.Helper()
	found := d.at(key)
	if len(found) == 0 {
		t.Fatalf("no key %s to set to %s", key, value)
	}
	for _, n := range found {
		n.Value, n.Tag, n.Style = value, "", 0 // a bare word: YAML decides what it is
	}
}

func (d *document) text(t *testing.T) string {
	t.Helper()
	text, err := yaml.Marshal(&d.root)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// write puts the document into a temporary file and returns its path.
func (d *document) write(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(d.text(t)), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}
