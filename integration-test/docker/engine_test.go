package docker

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// insideVariable is set in the process that runs in the namespaces of its own engine; it has the directory with the
// stand-ins.
const insideVariable = "RATELIMIT_DOCKER_CHECK_DIR"

// engine is the Docker engine that the test uses.
type engine struct {
	docker  string   // the path of the client.
	compose []string // "docker compose" or "docker-compose", as a command.
	env     []string // the environment of both.
	// standIns is the directory with the stand-ins of base images. Empty: the engine has or pulls the real ones.
	standIns string
}

// client finds the docker command with BuildKit, and compose. host is the socket of the engine; empty: the default.
func client(t *testing.T, host string) *engine {
	t.Helper()
	e := &engine{env: append(os.Environ(), "DOCKER_BUILDKIT=1", "COMPOSE_DOCKER_CLI_BUILD=1", "BUILDKIT_PROGRESS=plain")}
	if host != "" {
		e.env = append(e.env, "DOCKER_HOST="+host)
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path := filepath.Join(dir, "docker")
		if _, err := os.Stat(path); err == nil && hasBuildKit(path) {
			e.docker = path
			break
		}
	}
	if e.docker == "" {
		t.Fatal("no docker command with BuildKit is on the PATH (Debian: apt-get install docker.io; since version 23 the " +
			"command also needs the plugin buildx)")
	}
	// docker-compose runs the docker of the PATH to build.
	e.env = append(e.env, "PATH="+filepath.Dir(e.docker)+":"+os.Getenv("PATH"))
	if exec.Command(e.docker, "compose", "version").Run() == nil {
		e.compose = []string{e.docker, "compose"}
	} else if path, err := exec.LookPath("docker-compose"); err == nil {
		e.compose = []string{path}
	} else {
		t.Fatal("neither docker compose nor docker-compose works (Debian: apt-get install docker-compose)")
	}
	return e
}

// hasBuildKit reports whether a docker command can build with BuildKit: built in before version 23, with the plugin
// buildx since.
func hasBuildKit(path string) bool {
	if exec.Command(path, "buildx", "version").Run() == nil {
		return true
	}
	out, err := exec.Command(path, "--version").Output() // "Docker version 20.10.24+dfsg1, build 297e128"
	version := regexp.MustCompile(`version (\d+)\.`).FindSubmatch(out)
	if err != nil || version == nil {
		return false
	}
	major, _ := strconv.Atoi(string(version[1]))
	return major < 23
}

// command returns a docker command. It is killed when ctx ends.
func (e *engine) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, e.docker, args...)
	cmd.Env = e.env
	return cmd
}

// run runs a docker command, which must succeed, and returns what it prints on its standard output, without white space
// around it.
func (e *engine) run(t *testing.T, args ...string) string {
	t.Helper()
	return output(t, e.command(t.Context(), args...))
}

// output runs cmd, which must succeed, and returns its standard output without white space around it.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", strings.Join(cmd.Args, " "), err, lastLines(stdout.String()), lastLines(stderr.String()))
	}
	return strings.TrimSpace(stdout.String())
}

// lastLines returns the last lines of a text, for people to read.
func lastLines(text string) string {
	const keep = 60
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(lines[max(0, len(lines)-keep):], "")
}

// runIsolated makes the stand-ins, and runs this test again with an engine of its own. Both are in namespaces, whose
// first process is that test: when it ends, the kernel kills the engine and all containers, and the mounts are gone.
func runIsolated(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("no engine answers (docker version), and only root can start one: start Docker, name an engine in " +
			"DOCKER_HOST, or run this as root")
	}
	for name, pkg := range map[string]string{
		"dockerd": "docker.io", "containerd": "docker.io", "runc": "docker.io", "unshare": "util-linux", "ip": "iproute2",
		"iptables": "iptables", "curl": "curl", "git": "git", "mmdebstrap": "mmdebstrap",
	} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v (Debian: apt-get install %s)", err, pkg)
		}
	}
	// so that the directory is removed then, too
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "ratelimit-docker-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		// The killed engine may still write for a moment.
		err := harness.Retry(time.Minute, func() error { return os.RemoveAll(dir) })
		if err != nil {
			t.Error(err)
		}
		removeControlGroups(t, filepath.Base(dir))
	}()
	makeStandIns(t, dir)
	startProxy(t, dir)

	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	inside := exec.CommandContext(ctx, "unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
		self, "-test.v", "-test.run="+flag.Lookup("test.run").Value.String(), "-test.timeout=40m", "-full")
	inside.Env = append(os.Environ(), insideVariable+"="+dir, "TMPDIR="+dir)
	inside.Stdout, inside.Stderr = os.Stdout, os.Stderr
	inside.SysProcAttr = harness.KilledWithParent()
	if err := inside.Run(); err != nil {
		t.Fatalf("the test with an engine of its own: %v", cmp.Or(ctx.Err(), err))
	}
}

// removeControlGroups removes the control groups of containers, which are below one of that name and whose processes
// have been killed.
func removeControlGroups(t *testing.T, name string) {
	t.Helper()
	err := harness.Retry(10*time.Second, func() error {
		var failed error
		for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			groups, _ := filepath.Glob(pattern + name) // The pattern is correct.
			for _, group := range groups {
				var all []string
				// Remove fails for what is not listed.
				_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
					if err == nil && d.IsDir() {
						all = append(all, path)
					}
					return nil
				})
				for _, path := range slices.Backward(all) { // A group is removed as an empty directory is, the inner ones first.
					failed = cmp.Or(failed, os.Remove(path))
				}
			}
		}
		return failed
	})
	if err != nil {
		t.Logf("a control group is left over: %v", err)
	}
}

// startEngine starts dockerd, in the namespaces that runIsolated made, and builds the stand-ins.
func startEngine(t *testing.T, dir string) *engine {
	t.Helper()
	output(t, exec.Command("ip", "link", "set", "lo", "up"))
	socket := "unix://" + filepath.Join(dir, "docker.sock")
	dockerd := &harness.Process{
		Path: "dockerd", Log: filepath.Join(dir, "dockerd.log"),
		Args: []string{
			"--host", socket, "--pidfile", filepath.Join(dir, "dockerd.pid"),
			"--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
			"--cgroup-parent", "/" + filepath.Base(dir), "--config-file", filepath.Join(dir, "daemon.json"),
		},
	}
	testfiles.Write(t, filepath.Join(dir, "daemon.json"), "{}\n")
	if err := dockerd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		dockerd.Stop()
		if t.Failed() {
			dockerd.ShowLog(t, "dockerd")
		}
	})
	e := client(t, socket)
	harness.Await(t, time.Minute, "dockerd answers", func() error {
		if err := dockerd.Exited(); err != nil {
			return harness.Permanent{Err: fmt.Errorf("dockerd: %w", err)}
		}
		return e.command(t.Context(), "version").Run()
	})
	e.standIns = dir
	for _, name := range standInNames(t) {
		e.buildStandIn(t, name, "amd64")
		t.Logf("stand-in, not the real image: %s (%s)", name, standInFor(t, name).from)
	}
	return e
}

// machinesEngine returns the engine of this machine; nil if none answers.
func machinesEngine(t *testing.T) *engine {
	t.Helper()
	path, err := exec.LookPath("docker")
	if err != nil || exec.Command(path, "version").Run() != nil {
		return nil
	}
	return client(t, "")
}
