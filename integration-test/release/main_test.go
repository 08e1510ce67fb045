package release

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/testbed/testfiles"
)

var full = flag.Bool("full", false, "make a whole release and install its packages; takes many minutes")

// repository is the root of the project.
const repository = "../.."

func TestMain(m *testing.M) {
	flag.Parse()
	if *full {
		_ = os.Setenv("CI", "true") // Then a missing program is a failure. Setenv takes any name without = and NUL.
	}
	os.Exit(m.Run())
}

// needFull skips a test without -full.
func needFull(t *testing.T) {
	t.Helper()
	if !*full {
		t.Skip("this takes many minutes: make release-check")
	}
}

// run runs a command in a directory with variables added to the environment. It returns the output, and ends the test
// if the command fails.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// read returns the content of one of the repository's files.
func read(t *testing.T, name string) string {
	t.Helper()
	text := testfiles.Read(t, filepath.Join(repository, name))
	return string(text)
}
