package release

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

const (
	firstRefusal = time.Minute     // bounds the time from `dpkg -i` to the first request that is refused.
	maxExposure  = 15              // the worst rating of `systemd-analyze security`, times ten.
	patience     = 2 * time.Minute // bounds what should take seconds.
)

// container is a Debian that systemd has booted, without network.
type container struct {
	t    *testing.T
	root string // its file system.
	init string // the pid of its systemd.
}

// bootDebian boots a clean Debian.
func bootDebian(t *testing.T) *container {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("this test boots a container: run it as root")
	}
	nspawn := harness.Program(t, "systemd-nspawn", "systemd-container")
	archive := harness.Debian(t, "systemd", "--variant=minbase", "--include=systemd,curl")
	root := filepath.Join(t.TempDir(), "debian")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, ".", nil, "tar", "--extract", "--file", archive, "--directory", root)
	log, err := os.Create(root + ".log")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(nspawn, "--quiet", "--register=no", "--keep-unit", "--directory="+root, "--private-network",
		"--boot", "--console=pipe")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // systemd-nspawn then shuts the system down.
		timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait() // The status is that of the shutdown.
		timer.Stop()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("console:\n%s", text)
		}
	})
	c := &container{t: t, root: root}
	children := fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid)
	c.await("the boot", func() error {
		pids, err := os.ReadFile(children) // At first a process that sets up the container, then its systemd.
		if c.init = strings.TrimSpace(string(pids)); err != nil || c.init == "" {
			return fmt.Errorf("%s: %v, no process", children, err)
		}
		out, err := c.try("systemctl", "is-system-running")
		if state := strings.TrimSpace(out); state == "running" || state == "degraded" {
			return nil
		}
		return fmt.Errorf("systemctl is-system-running: %v, %s", err, out)
	})
	return c
}

func (c *container) await(what string, condition func() error) {
	c.t.Helper()
	harness.Await(c.t, patience, what, condition)
}

// try runs a command in the container and returns what it prints.
func (c *container) try(name string, args ...string) (string, error) {
	args = append([]string{
		"--all", "--target", c.init, "--", "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
		"DEBIAN_FRONTEND=noninteractive", name,
	}, args...)
	out, err := exec.CommandContext(c.t.Context(), "nsenter", args...).CombinedOutput()
	return string(out), err
}

// run runs a command in the container, which must succeed.
func (c *container) run(name string, args ...string) string {
	c.t.Helper()
	out, err := c.try(name, args...)
	if err != nil {
		c.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// copyIn copies a file into /opt of the container and returns its path there.
func (c *container) copyIn(file string) string {
	c.t.Helper()
	data, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(filepath.Join(c.root, "opt", filepath.Base(file)), data, 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return "/opt/" + filepath.Base(file)
}

// edit replaces text in a file of the container.
func (c *container) edit(file, from, to string) {
	c.t.Helper()
	name := filepath.Join(c.root, file)
	data, err := os.ReadFile(name)
	if err == nil && !strings.Contains(string(data), from) {
		err = fmt.Errorf("%s has no %q", file, from)
	}
	if err == nil {
		err = os.WriteFile(name, []byte(strings.ReplaceAll(string(data), from, to)), 0o600)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// exists reports whether the container has a file.
func (c *container) exists(file string) bool {
	_, err := os.Lstat(filepath.Join(c.root, file))
	return err == nil
}

// ask asks whether a login may pass, and returns the status of HTTP.
func (c *container) ask() (string, error) {
	return c.try("curl", "--silent", "--output", "/dev/null", "--write-out", "%{http_code}", "127.0.0.1:8080/json",
		"--data", `{"domain":"example","descriptors":[{"entries":[{"key":"login","value":"192.0.2.7"}]}]}`)
}

// askUntil asks until the answer has a status.
func (c *container) askUntil(want string) {
	c.t.Helper()
	c.await("an answer "+want, func() error {
		got, err := c.ask()
		if got != want {
			return fmt.Errorf("status %s, %v", got, err)
		}
		return nil
	})
}

// property returns a property of the unit.
func (c *container) property(name string) string {
	c.t.Helper()
	return strings.TrimSpace(c.run("systemctl", "show", "--value", "--property="+name, "ratelimit"))
}

// testDebian installs the package on a clean Debian, and then the next version, and removes it.
func (m made) testDebian(t *testing.T) {
	c := bootDebian(t)
	deb := c.copyIn(m.file("linux_amd64.deb"))
	begun := time.Now()
	c.run("dpkg", "--install", deb)
	c.askUntil("429")
	took := time.Since(begun)
	t.Logf("the first request was refused %v after the start of dpkg", took.Round(100*time.Millisecond))
	if took > firstRefusal {
		t.Errorf("that is more than %v", firstRefusal)
	}
	c.testUnit()
	next := m.nextVersion(t)
	c.testUpgrade(c.copyIn(next.file("linux_amd64.deb")), next.tag)
	c.testRemove()
}

// testUnit checks that the unit is correct and the process confined.
func (c *container) testUnit() {
	t := c.t
	if out := c.run("systemd-analyze", "verify", "--man=no", "ratelimit.service"); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	c.run("systemd-analyze", "security", "--no-pager", "--threshold="+strconv.Itoa(maxExposure), "ratelimit.service")
	for name, want := range map[string]string{
		"ActiveState": "active", "SubState": "running", "NRestarts": "0",
		"UnitFileState": "enabled",
	} {
		if got := c.property(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	status := c.run("cat", "/proc/"+c.property("MainPID")+"/status")
	for _, want := range []string{
		`(?m)^Uid:\t[1-9]`, `(?m)^CapEff:\t0+$`, `(?m)^CapBnd:\t0+$`, `(?m)^NoNewPrivs:\t1$`,
		`(?m)^Seccomp:\t2$`,
	} {
		if !regexp.MustCompile(want).MatchString(status) {
			t.Errorf("the process is not %s:\n%s", want, status)
		}
	}
	if out := c.run("ratelimit_client", "-dial_string=127.0.0.1:8081", "-domain=example",
		"-descriptors=login=192.0.2.8"); !strings.Contains(out, "OK") {
		t.Errorf("over gRPC: %s", out)
	}
}

// testUpgrade installs the next version. Changed settings and rules stay, the service restarts, and its counters
// survive.
func (c *container) testUpgrade(deb, tag string) {
	t := c.t
	c.edit("/etc/ratelimit/rules/example.yaml", "unit: minute, requests_per_unit: 5", "unit: year, requests_per_unit: 3")
	c.run("systemctl", "reload", "ratelimit")
	c.edit("/etc/ratelimit/environment", "USE_STATSD=false", "USE_STATSD=false\nLOG_LEVEL=debug")
	c.askUntil("429")
	pid := c.property("MainPID")
	c.run("dpkg", "--force-confdef", "--force-confold", "--install", deb)
	c.await("the restart", func() error {
		if state, now := c.property("ActiveState"), c.property("MainPID"); state != "active" || now == pid || now == "0" {
			return fmt.Errorf("%s, pid %s, before %s", state, now, pid)
		}
		return nil
	})
	if out := c.run("ratelimit", "--version"); !strings.HasPrefix(out, "ratelimit "+tag+" ") {
		t.Errorf("--version prints %s", out)
	}
	if got, err := c.ask(); err != nil || got != "429" {
		t.Errorf("after the upgrade the same request is answered %s, %v: its counter is gone", got, err)
	}
	if out := c.run("cat", "/etc/ratelimit/environment"); !strings.Contains(out, "LOG_LEVEL=debug") ||
		strings.Contains(out, addedSetting) {
		t.Errorf("the changed settings are now\n%s", out)
	}
	if info, err := os.Stat(filepath.Join(c.root, "/etc/ratelimit/environment")); err != nil ||
		info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
}

// testRemove removes the package, which leaves what the operator wrote, and purges it, which leaves nothing.
func (c *container) testRemove() {
	t := c.t
	c.run("dpkg", "--remove", "ratelimit")
	if got, err := c.ask(); err == nil {
		t.Errorf("after the removal an answer: %s", got)
	}
	if !c.exists("/etc/ratelimit/environment") || !c.exists("/var/lib/private/ratelimit/counters") ||
		c.exists("/usr/bin/ratelimit") {
		t.Error("the removal did not leave settings and counters, or left the binary")
	}
	c.run("dpkg", "--purge", "ratelimit")
	if out := c.run("find", "/etc", "/usr", "/var", "-name", "*ratelimit*"); out != "" {
		t.Errorf("after the purge there are\n%s", out)
	}
}

// addedSetting is in the settings of the next version's package. Changed settings stay without it.
const addedSetting = "# Another setting."

// nextVersion makes the package of the next version, with other settings.
func (m made) nextVersion(t *testing.T) made {
	t.Helper()
	config := testfiles.Read(t, filepath.Join(m.clone, ".goreleaser.yaml"))
	one := strings.NewReplacer("[linux, darwin, windows]", "[linux]", "goarch: [amd64, arm64]", "goarch: [amd64]",
		"[deb, rpm]", "[deb]").Replace(string(config))
	// goreleaser wants a clean tree.
	for name, text := range map[string]string{
		"next.yaml":                  one,
		"deploy/systemd/environment": read(t, "deploy/systemd/environment") + addedSetting + "\n",
	} {
		if err := os.WriteFile(filepath.Join(m.clone, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, m.clone, nil, "git", "add", ".")
	run(t, m.clone, nil, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet",
		"--message=next")
	return makeRelease(t, m.clone, "v1.0.1", "next.yaml", "archive", "sbom")
}
