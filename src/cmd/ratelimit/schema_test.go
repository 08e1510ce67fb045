package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"ratelimit/src/tools/command"
)

// The program prints the committed schema.
func TestSchemaFile(t *testing.T) {
	var out, errOut output
	if code := run(t.Context(), commands(&out, &errOut), []string{"ratelimit", "schema"}); code != command.ExitOK {
		t.Fatalf("exit %d: %s", code, errOut.String())
	}
	path := filepath.Join(projectRoot, "api", "ratelimit.schema.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(data) != out.String() {
		t.Error("api/ratelimit.schema.json is not what `ratelimit schema` prints")
	}
}

// The examples name the path of the schema.
func TestExamplesNameTheSchema(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(projectRoot, "examples", "ratelimit", "config", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.Stat(filepath.Join(projectRoot, "api", "ratelimit.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := bytes.Cut(data, []byte("\n"))
		m := regexp.MustCompile(`^# yaml-language-server: \$schema=(\S+)$`).FindSubmatch(first)
		if m == nil {
			continue
		}
		found++
		got, err := os.Stat(filepath.Join(filepath.Dir(path), string(m[1])))
		if err != nil || !os.SameFile(got, want) {
			t.Errorf("%s names %s, which is not the schema: %v", path, m[1], err)
		}
	}
	if found == 0 {
		t.Error("no example names the schema")
	}
}
