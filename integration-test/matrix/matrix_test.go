package matrix

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var full = flag.Bool("full", false, "run the matrix; takes many minutes")

func onlyInFull(t *testing.T) {
	t.Helper()
	if !*full {
		t.Skip("this takes many minutes: make matrix-check")
	}
}

// runs are the arguments of go test for the variable that names a server.
var runs = map[string][][]string{
	"REDIS_SERVER": {
		{"./testbed/redistest", "./src/backend/redis"},
		{"./src/service", "-run", "Redis"},
		{"./integration-test", "-run", "^TestRedis(SharedByThree|AsDocumentedUpstream)$"},
	},
	"MEMCACHED": {
		{"./testbed/memcachedtest", "./src/backend/memcached"},
		{"./src/service", "-run", "Memcache"},
		{"./integration-test", "-run", "^TestMemcached"},
	},
}

// goTest runs `go test` at the root of the repository. It returns "passes", or the tests that failed and the end of the
// output.
func goTest(t *testing.T, env []string, args ...string) (verdict, out string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go",
		append([]string{"test", "-count=1", "-p", "1", "-timeout", "20m"}, args...)...)
	cmd.Dir, cmd.Env = "../..", append(append(os.Environ(), "CI=true"), env...)
	text, err := cmd.CombinedOutput()
	if err == nil {
		return "passes", ""
	}
	failed := []string{"fails:"}
	for _, m := range regexp.MustCompile(`(?m)^--- FAIL: (\S+)`).FindAllStringSubmatch(string(text), -1) {
		failed = append(failed, m[1])
	}
	const most = 20_000 // bytes; logs of servers are long
	return strings.Join(failed, " "), string(text[max(0, len(text)-most):])
}

var versionNumber = regexp.MustCompile(`(Redis|Valkey|memcached)\D*?(\d+\.\d+\.\d+)`)

// TestServers runs the tests of each server. They mostly wait, so three servers are tested at the same time.
func TestServers(t *testing.T) {
	onlyInFull(t)
	all := servers(t)
	rows := make([]string, len(all))
	t.Run("all", func(t *testing.T) {
		for i, s := range all {
			t.Run(s.from+" "+filepath.Base(s.path), func(t *testing.T) {
				t.Parallel()
				begun := time.Now()
				rows[i] = s.test(t)
				fmt.Printf("%s\t(%s)\n", rows[i], time.Since(begun).Round(time.Second))
			})
		}
	})
	fmt.Printf("\n| server | from | tests |\n|---|---|---|\n%s\n\n", strings.Join(rows, "\n"))
}

// test runs the tests of the server, and returns its row of the table.
func (s *server) test(t *testing.T) string {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), s.path, "--version").CombinedOutput()
	version := versionNumber.FindStringSubmatch(string(text))
	if err != nil || version == nil {
		t.Fatalf("%s --version: %v: %s", s.path, err, text)
	}
	verdict := "pass"
	for _, args := range runs[s.variable] {
		if s.skip != "" {
			args = append([]string{"-skip", s.skip}, args...)
		}
		if result, out := goTest(t, []string{s.variable + "=" + s.path}, args...); result != "passes" {
			verdict = result
			t.Errorf("%s=%s go test %s\n%s", s.variable, s.path, strings.Join(args, " "), out)
		}
	}
	if s.why != "" {
		verdict += "; " + s.why + ", so tests with TLS are left out"
	}
	return fmt.Sprintf("| %s %s | %s | %s |", version[1], version[2], s.from, verdict)
}

// TestGoReleases builds the program and runs tests of its core with the newest patch of the two last releases of Go.
func TestGoReleases(t *testing.T) {
	onlyInFull(t)
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-versions", "go").Output()
	if err != nil {
		t.Fatalf("go list -m -versions go: %v", err)
	}
	for _, version := range lastReleases(string(out)) {
		begun, env := time.Now(), []string{"GOTOOLCHAIN=go" + version}
		verdict, text := goTest(t, env, "./src/algorithm/...", "./src/rules/...", "./src/limiter/...", "./src/backend/memory",
			"./src/frontend/rls", "./src/tools/check")
		build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(t.TempDir(), "ratelimit"),
			"ratelimit/src/cmd/ratelimit")
		build.Env = append(os.Environ(), env...)
		if out, err := build.CombinedOutput(); err != nil {
			verdict, text = "does not build", string(out)
		}
		if verdict != "passes" {
			t.Errorf("GOTOOLCHAIN=go%s\n%s", version, text)
		}
		fmt.Printf("| Go %s | Go's module proxy | %s |\n%s\n", version, verdict, time.Since(begun).Round(time.Second))
	}
}

// lastReleases returns the newest patch of the two last releases in the output of `go list -m -versions go`, which is
// sorted.
func lastReleases(list string) (last []string) {
	release := regexp.MustCompile(`^(\d+\.\d+)\.\d+$`)
	var minors []string
	for version := range strings.FieldsSeq(list) {
		m := release.FindStringSubmatch(version)
		switch n := len(minors); {
		case m == nil: // the name of the module, or a release candidate
		case n > 0 && minors[n-1] == m[1]:
			last[n-1] = version
		default:
			minors, last = append(minors, m[1]), append(last, version)
		}
	}
	return last[max(0, len(last)-2):]
}

func TestLastReleases(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"go 1.25.0 1.25.1 1.26rc1 1.26.0 1.26.2 1.26.10 1.27rc1 1.27.0 1.28rc1": "[1.26.10 1.27.0]",
		"go 1.26.0": "[1.26.0]",
		"":          "[]",
	} {
		if got := fmt.Sprint(lastReleases(list)); got != want {
			t.Errorf("%s: got %s, want %s", list, got, want)
		}
	}
}
