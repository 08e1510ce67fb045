package action

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

var full = flag.Bool("full", false, "also run what make action-check runs")

func TestMain(m *testing.M) { harness.RunTests(m, nil) }

func program(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"bash", "git", "curl", "jq"} {
		harness.Program(t, name, name)
	}
	path, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// path returns the absolute path of a file of this repository.
func path(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("../..", name))
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// result is what a command printed, on both streams, and its exit code.
type result struct {
	out  string
	code int
}

// call runs a command in a directory with these variables besides PATH and HOME.
func call(t *testing.T, dir string, env map[string]string, args ...string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir, cmd.Env = dir, []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + harness.BuildDir(), "GIT_CONFIG_NOSYSTEM=1",
	}
	for name, value := range env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatalf("%v: %v", args, err)
	}
	return result{string(out), cmd.ProcessState.ExitCode()}
}

// git runs git in a directory, and ends the test if it fails.
func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	r := call(t, dir, nil, append([]string{"git"}, args...)...)
	if r.code != 0 {
		t.Fatalf("git %v: exit %d\n%s", args, r.code, r.out)
	}
	return strings.TrimSpace(r.out)
}

// write writes files below a directory. Empty contents delete a file.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		err := os.Remove(path)
		if text != "" {
			if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
				err = os.WriteFile(path, []byte(text), 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data := testfiles.Read(t, path)
	return string(data)
}

// example is a copy of examples/rules-repo, made as its README says, as a git repository with the branch change, which
// starts from origin/main.
var example = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(harness.BuildDir(), "example")
	out, err := exec.Command("bash", "-ec", `
cp -rL ../../examples/rules-repo "$0"
cd "$0"
git init -q -b main
git config user.name test
git config user.email test@localhost
git add -A
git commit -q -m rules
git update-ref refs/remotes/origin/main HEAD
git checkout -q -b change`, dir).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, out)
	}
	return dir, err
})

// newRepository returns a copy of example whose newest commit makes the changes.
func newRepository(t *testing.T, changes map[string]string) string {
	t.Helper()
	from, err := example()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "repository")
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	if write(t, dir, changes); len(changes) > 0 {
		git(t, dir, "add", "-A")
		git(t, dir, "commit", "-q", "-m", "change")
	}
	return dir
}

// shop returns the rules of the example with another limit for users.
func shop(limit string) string {
	return "domain: shop\ndescriptors:\n  - key: user\n    " + limit + "\n  - key: ip\n    rate_limit: {unit: minute, " +
		"requests_per_unit: 100}\n"
}

const (
	fourAMinute  = "rate_limit: {unit: minute, requests_per_unit: 4}"
	threeAMinute = "rate_limit: {unit: minute, requests_per_unit: 3}"
	mistake      = "rate_limt: {unit: minute, requests_per_unit: 4}"
	oddValue     = "value: 10.0.0.0/8\n    rate_limit: {unit: minute, requests_per_unit: 4}"
)

// expect reports the texts that are not in got in this order.
func expect(t *testing.T, got string, want ...string) {
	t.Helper()
	rest := got
	for _, text := range want {
		_, after, ok := strings.Cut(rest, text)
		if !ok {
			t.Errorf("no %q in\n%s", text, got)
			return
		}
		rest = after
	}
}
