package docker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"ratelimit/testbed/harness"
)

// ciFile makes the image that checks rules in CI.
const ciFile = "deploy/ci/Dockerfile"

// ciCommands returns the two commands in the comments of ciFile: the first builds the image, the second one checks a
// repository of rules.
func ciCommands(t *testing.T) (build, check string) {
	t.Helper()
	list := commandsIn(t, filepath.Join(repository, ciFile))
	if len(list) != 2 || !strings.HasPrefix(list[0], "docker build ") || !strings.HasPrefix(list[1], "docker run ") ||
		!strings.HasSuffix(list[1], " ratelimit-ci") {
		t.Fatalf("%s: commands %q, want one that builds ratelimit-ci, and one that runs it", ciFile, list)
	}
	return list[0], list[1]
}

// testCI builds the image of ciFile, and checks changes of examples/rules-repo with it, as the comments of ciFile and
// the job for GitLab say.
func (e *engine) testCI(t *testing.T, source string) {
	defer step(t, "all of it")()
	build, check := ciCommands(t)
	if e.standIns != "" {
		build = strings.ReplaceAll(build, "docker build ", "docker build --build-arg http_proxy=http://"+e.joinProxy(t)+" ")
	}
	if r := e.shell(t, source, build); r.code != 0 {
		t.Fatalf("%s: exit %d\n%s", build, r.code, r.out)
	}
	good, bad, job := e.rulesCheckout(t, source, "s/: 5}/: 4}/"), e.rulesCheckout(t, source, "s/rate_limit:/rate_limt:/"),
		gitLabJob(t)
	with := func(option, command string) string {
		return strings.Replace(command, "docker run ", "docker run "+option+" ", 1)
	}
	for _, tt := range []struct {
		dir, command string
		code         int
		want         []string
	}{
		{good, check, 0, []string{
			"== ratelimit check rules\nok: 1 file", "ok    tests/shop_test.yaml",
			"== ratelimit diff: rules since origin/main\n1 rule tightened", "rules/shop.yaml:",
		}},
		{bad, check, 1, []string{`error: rules/shop.yaml:5:5: unknown key "rate_limt"`}},
		{bad, with("-e FORMAT=github", check), 1, []string{"::error file=rules/shop.yaml,line=5,col=5::unknown key"}},
		{good, job, 0, []string{"1 rule tightened", "== ratelimit check next\nok: 1 file"}},
		{bad, job, 1, []string{"error: rules/shop.yaml:5:5: unknown key"}},
		// The checkout belongs to another user. Without safe.directory in the system's configuration, git reads nothing of
		// it.
		{good, with("-e GIT_CONFIG_NOSYSTEM=1", check), 2, []string{"error: no common commit with origin/main here"}},
	} {
		r := e.shell(t, tt.dir, tt.command)
		if r.code != tt.code {
			t.Errorf("%s: exit %d, want %d\n%s", tt.command, r.code, tt.code, r.out)
		}
		for _, want := range tt.want {
			if !strings.Contains(r.out, want) {
				t.Errorf("%s: want %q in\n%s", tt.command, want, r.out)
			}
		}
		t.Logf("%s\n\texit %d: %.300s", tt.command, r.code, strings.ReplaceAll(r.out, "\n", "\n\t"))
	}
	report, err := os.ReadFile(filepath.Join(good, "rate-limits.md"))
	if want := "<!-- ratelimit diff rules -->\n### Rate limits: 1 rule tightened"; err != nil ||
		!strings.HasPrefix(string(report), want) {
		t.Errorf("rate-limits.md: %v, want %q at the start of\n%s", err, want, report)
	}
}

// gitLabJob returns the command that runs the script of the example's job as GitLab's runner does: a shell of the image
// reads it.
func gitLabJob(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(repository, "examples/rules-repo/.gitlab-ci.yml"))
	var jobs map[string]struct{ Script []string }
	if err = errors.Join(err, yaml.Unmarshal(text, &jobs)); err != nil {
		t.Fatal(err)
	}
	script := strings.Join(jobs["rate limits"].Script, "\n")
	return `docker run --rm -i -v "$PWD:/builds/rules" -w /builds/rules -e CI_MERGE_REQUEST_DIFF_BASE_SHA="$(cat base)" ratelimit-ci bash -eo pipefail << 'END'` + "\n" + script + "\nEND"
}

// result is what a command printed, and its exit code.
type result struct {
	out  string
	code int
}

// shell runs a command of the documents in a directory.
func (e *engine) shell(t *testing.T, dir, command string) result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", command)
	cmd.Dir, cmd.Env = dir, e.env
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatalf("%s: %v", command, err)
	}
	return result{string(out), cmd.ProcessState.ExitCode()}
}

// rulesCheckout returns a clone of a repository that is laid out as examples/rules-repo. The last commit of its branch
// runs sed with change on rules/shop.yaml, and the file base names the commit before. All files belong
// to a user that the image does not know.
func (e *engine) rulesCheckout(t *testing.T, source, change string) string {
	t.Helper()
	harness.Program(t, "git", "git")
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", `
cp -rL "$1/examples/rules-repo" origin
git init -q -b main origin
git -C origin add -A
git -C origin commit -q -m rules
git clone -q origin checkout
cd checkout
git rev-parse HEAD > base
git checkout -q -b change
sed -i "$2" rules/shop.yaml
git commit -q -a -m change`, "sh", source, change)
	cmd.Dir = dir
	cmd.Env = append(slices.Clone(e.env), "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null",
		"GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@localhost", "GIT_COMMITTER_NAME=test",
		"GIT_COMMITTER_EMAIL=test@localhost")
	output(t, cmd)
	const stranger = "4711:4711"
	checkout := filepath.Join(dir, "checkout")
	chown := func(ctx context.Context, owner string) ([]byte, error) {
		return e.command(ctx, "run", "--rm", "-v", checkout+":/work", "ratelimit-ci", "chown", "-R", owner,
			"/work").CombinedOutput()
	}
	t.Cleanup(func() { // so that the directory can be removed
		if out, err := chown(context.WithoutCancel(t.Context()), fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())); err != nil {
			t.Errorf("chown: %v\n%s", err, out)
		}
	})
	if out, err := chown(t.Context(), stranger); err != nil {
		t.Fatalf("chown: %v\n%s", err, out)
	}
	return checkout
}

// proxySocket is the file at which startProxy listens, in the directory of an engine of runIsolated.
const proxySocket = "proxy.sock"

// startProxy starts a proxy of HTTP in the network of this machine, for the engine of runIsolated, which has none: the
// build of ciFile fetches packages of Debian.
func startProxy(t *testing.T, dir string) {
	t.Helper()
	listener, err := net.Listen("unix", filepath.Join(dir, proxySocket))
	if err != nil {
		t.Fatal(err)
	}
	// A request to a proxy has the whole URL, so there is nothing to rewrite.
	server := &http.Server{Handler: &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}}}
	go func() { _ = server.Serve(listener) }() // It returns when the server is closed.
	t.Cleanup(func() { _ = server.Close() })
}

// joinProxy returns the address at which containers of the engine find the proxy of startProxy.
func (e *engine) joinProxy(t *testing.T) string {
	t.Helper()
	bridge, err := net.InterfaceByName("docker0")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := bridge.Addrs()
	if err != nil || len(addrs) == 0 {
		t.Fatalf("the addresses of %s: %v, %v", bridge.Name, addrs, err)
	}
	host, _, _ := strings.Cut(addrs[0].String(), "/")
	return harness.StartProxyAt(t, net.JoinHostPort(host, "3128"), filepath.Join(e.standIns, proxySocket)).Addr
}
