package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/testbed/testfiles"
)

// The tests of the example rules pass.
func TestExampleTests(t *testing.T) {
	for _, example := range []string{"ratelimit", "tenants"} {
		if code, out, errOut := call(t, "ratelimit", "test",
			filepath.Join(projectRoot, "examples", example, "tests")); code != 0 || !strings.HasPrefix(out, "ok    ") {
			t.Errorf("%s: exit %d\n%s%s", example, code, out, errOut)
		}
	}
}

// writeFile writes a file and makes its directory.
func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	testfiles.Write(t, name, text)
}
