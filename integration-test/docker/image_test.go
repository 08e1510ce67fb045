package docker

import (
	"bufio"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

const (
	image    = "ratelimit-docker-check"
	maxBytes = 30 << 20
	// patience is how long a container may take for anything.
	patience = 2 * time.Minute
)

// build builds the image from source, for the platform of an architecture, and returns the path of its binary.
func (e *engine) build(t *testing.T, source, tag, arch string, more ...string) (binary string) {
	t.Helper()
	defer step(t, "docker build for "+arch)()
	args := append([]string{
		"build", "--platform", "linux/" + arch, "--build-arg", "VERSION=1.2.3-check", "--build-arg",
		"COMMIT=c0ffee", "-t", tag,
	}, more...)
	e.run(t, append(args, source)...)
	container := e.run(t, "create", "--platform", "linux/"+arch, tag)
	defer e.run(t, "rm", container)
	binary = filepath.Join(t.TempDir(), "ratelimit")
	e.run(t, "cp", container+":/bin/ratelimit", binary)
	return binary
}

func sum(t *testing.T, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // It is only read.
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%x", hash.Sum(nil))
}

// firstSum is the hash of the binary that testBuild has built.
var firstSum string

// imageConfig is what docker image inspect says of an image.
type imageConfig struct {
	ID           string `json:"Id"`
	Architecture string
	Os           string
	Size         int64
	Config       struct {
		User         string
		Entrypoint   []string
		ExposedPorts map[string]struct{}
		Healthcheck  struct{ Test []string }
	}
}

func (e *engine) inspect(t *testing.T, tag string) (c imageConfig) {
	t.Helper()
	if err := json.Unmarshal([]byte(e.run(t, "image", "inspect", "--format", "{{json .}}", tag)), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func (e *engine) testBuild(t *testing.T, source string) {
	firstSum = sum(t, e.build(t, source, image, "amd64"))
	c := e.inspect(t, image)
	t.Logf("the image has %.1f MiB", float64(c.Size)/(1<<20))
	if c.Size > maxBytes {
		t.Errorf("the image has %d bytes, want at most %d", c.Size, maxBytes)
	}
	if c.Os != "linux" || c.Architecture != "amd64" || c.Config.User != "65532:65532" ||
		!slices.Equal(c.Config.Entrypoint, []string{"/bin/ratelimit"}) || len(c.Config.ExposedPorts) != 4 {
		t.Errorf("the image is %+v", c)
	}
	e.testCommands(t, image, source)
}

// testCommands runs the commands that the image has.
func (e *engine) testCommands(t *testing.T, image, source string) {
	t.Helper()
	for _, tt := range []struct{ args, want string }{
		{"IMAGE version", "ratelimit 1.2.3-check (commit c0ffee, go1."},
		{"--entrypoint /bin/ratelimit_client IMAGE --help", "-domain"},
		{"--entrypoint /bin/ratelimit_config_check -v RULES:/rules:ro IMAGE -config_dir /rules", "ok: "},
		{"-v RULES:/rules:ro IMAGE check /rules", "ok: "}, // time zones included
	} {
		args := strings.NewReplacer("IMAGE", image, "RULES",
			filepath.Join(source, "examples/ratelimit/config")).Replace(tt.args)
		out, err := e.command(t.Context(), append([]string{"run", "--rm"}, strings.Fields(args)...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), tt.want) {
			t.Errorf("docker run %s: %v, want %q in\n%s", tt.args, err, tt.want, out)
		}
	}
}

// The image for arm64 is built by the compiler for this machine, and its binary is for arm64. It is not run.
func (e *engine) testARM64(t *testing.T, source string) {
	const tag = image + ":arm64"
	base := ""
	if e.standIns != "" { // A tag of this engine stands for one architecture.
		names := standInNames(t)
		base = names[slices.IndexFunc(names, func(name string) bool { return strings.Contains(name, "distroless/static") })]
		e.buildStandIn(t, base, "arm64")
		defer e.buildStandIn(t, base, "amd64")
	}
	binary := e.build(t, source, tag, "arm64")
	if c := e.inspect(t, tag); c.Architecture != "arm64" || c.Size > maxBytes {
		t.Errorf("the image is for %s and has %d bytes", c.Architecture, c.Size)
	}
	f, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // It is only read.
	isDynamic := slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	if f.Machine != elf.EM_AARCH64 || isDynamic {
		t.Errorf("the binary is for %v, dynamic: %v", f.Machine, isDynamic)
	}
}

// A build elsewhere, of files with other times, that reuses nothing of the first, has the same binary.
func (e *engine) testReproducible(t *testing.T, source string) {
	other := filepath.Join(t.TempDir(), "elsewhere")
	if err := os.Rename(source, other); err != nil {
		t.Fatal(err)
	}
	old := time.Date(2020, 2, 2, 2, 2, 2, 0, time.UTC)
	err := filepath.WalkDir(other, func(path string, _ fs.DirEntry,
		err error,
	) error {
		return errors.Join(err, os.Chtimes(path, old, old))
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(other, "Dockerfile")
	text := testfiles.Read(t, path)
	const cache = "--mount=type=cache,target=/root/.cache/go-build"
	if !strings.Contains(string(text), cache+" \\\n    CGO_ENABLED=0 ") {
		t.Fatalf("no %s before CGO_ENABLED=0 in the Dockerfile: change this test, too", cache)
	}
	uncached := strings.NewReplacer(cache, strings.Replace(cache, "cache", "tmpfs", 1), "CGO_ENABLED=0",
		"GOCACHE=/root/.cache/go-build CGO_ENABLED=0").Replace(string(text))
	if err := os.WriteFile(path, []byte(uncached), 0o644); err != nil {
		t.Fatal(err)
	}
	if second := sum(t, e.build(t, other, image+":again", "amd64", "--no-cache")); second != firstSum {
		t.Errorf("two builds differ: %s and %s", firstSum, second)
	}
	t.Logf("sha256 of both binaries: %s", firstSum)
}

// container is a running container of the image.
type container struct {
	e  *engine
	id string
}

// start runs the image in the background until the test ends. args are those of docker run, with the image.
func (e *engine) start(t *testing.T, args ...string) *container {
	t.Helper()
	c := &container{e, e.run(t, append([]string{"run", "-d"}, args...)...)}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context()) // It has ended.
		if t.Failed() {
			logs, _ := e.command(ctx, "logs", "--tail", "50", c.id).CombinedOutput()
			t.Logf("the log of %s:\n%s", args, logs)
		}
		if out, err := e.command(ctx, "rm", "-f", "-v", c.id).CombinedOutput(); err != nil {
			t.Errorf("docker rm: %v\n%s", err, out)
		}
	})
	return c
}

func (c *container) inspect(t *testing.T, format string) string {
	t.Helper()
	return c.e.run(t, "inspect", "--format", format, c.id)
}

func (c *container) exec(t *testing.T, args ...string) string {
	t.Helper()
	return c.e.run(t, append([]string{"exec", c.id}, args...)...)
}

// awaitHealth waits for a result of the health check.
func (c *container) awaitHealth(t *testing.T, want string) {
	t.Helper()
	harness.Await(t, patience, "the container is "+want, func() error {
		if got := c.inspect(t, "{{.State.Status}} {{.State.Health.Status}}"); got != "running "+want {
			return fmt.Errorf("it is %s: %s", got, c.inspect(t, "{{range .State.Health.Log}}{{.Output}}{{end}}"))
		}
		return nil
	})
}

// address returns where a published port of the container is.
func (c *container) address(t *testing.T, port string) string {
	t.Helper()
	first, _, _ := strings.Cut(c.e.run(t, "port", c.id, port), "\n")
	return first
}

const question = `{"domain": "check", "descriptors": [{"entries": [{"key": "user", "value": "alex"}]}]}`

func putRule(t *testing.T, dir string, limit int) {
	t.Helper()
	text := fmt.Sprintf(
		"domain: check\ndescriptors:\n  - key: user\n    rate_limit: {unit: hour, requests_per_unit: %d}\n", limit)
	if err := os.WriteFile(filepath.Join(dir, "check.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// rulesDir returns a directory that every user may read.
func rulesDir(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "rules")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// testLocal builds an image on nothing as `make image` does, and runs it.
func (e *engine) testLocal(t *testing.T, source string) {
	const local = image + ":local"
	cmd := exec.CommandContext(t.Context(), "make", "image", "IMAGE="+local, "DOCKER="+e.docker, "VERSION=1.2.3-check",
		"COMMIT=c0ffee")
	cmd.Dir, cmd.Env = source, e.env
	start := time.Now()
	output(t, cmd)
	distroless, c := e.inspect(t, image), e.inspect(t, local)
	t.Logf("make image: %v; the image has %.1f MiB", time.Since(start).Round(time.Second), float64(c.Size)/(1<<20))
	if c.Config.User != distroless.Config.User || !slices.Equal(c.Config.Entrypoint, distroless.Config.Entrypoint) ||
		!maps.Equal(c.Config.ExposedPorts, distroless.Config.ExposedPorts) || c.Size > distroless.Size {
		t.Errorf("the image is %+v, that of distroless %+v", c, distroless)
	}
	e.testCommands(t, local, source)
	e.testHardened(t, local)
}

func (e *engine) testHardened(t *testing.T, image string) {
	rules := rulesDir(t)
	putRule(t, rules, 70_000)
	c := e.start(t, "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65532", "-v",
		rules+":/rules:ro",
		"-p", "127.0.0.1::8080", image, "serve", "--config", "/rules")
	c.awaitHealth(t, "healthy")
	if got := c.exec(t, "/bin/ratelimit", "health"); got != "OK" {
		t.Errorf("ratelimit health: %q", got)
	}
	c.testPrivileges(t)

	url := "http://" + c.address(t, "8080") + "/json"
	for _, limit := range []int{70_000, 90_000} {
		putRule(t, rules, limit)
		want := fmt.Sprintf(`"requestsPerUnit":%d,`, limit)
		harness.Await(t, patience, "the rule allows "+want, func() error {
			resp, err := http.Post(url, "application/json", strings.NewReader(question))
			if err != nil {
				return err
			}
			defer func() { _ = resp.Body.Close() }() // All that matters has been read.
			text, err := io.ReadAll(resp.Body)
			if err == nil && !strings.Contains(string(text), want) {
				err = fmt.Errorf("status %d, %s", resp.StatusCode, text)
			}
			return err
		})
	}
	if got := c.exec(t, "/bin/ratelimit_client", "-domain", "check", "-descriptors",
		"user=kim"); !strings.Contains(got, "OK") {
		t.Errorf("ratelimit_client: %s", got)
	}
	c.exec(t, "/bin/ratelimit_config_check", "-config_dir", "/rules")
	c.testStop(t)

	var stdout, stderr strings.Builder
	logs := e.command(t.Context(), "logs", c.id)
	logs.Stdout, logs.Stderr = &stdout, &stderr
	// as other services of Go do
	if err := logs.Run(); err != nil || stdout.Len() > 0 || !strings.Contains(stderr.String(), "msg=ready") {
		t.Errorf("docker logs: %v; on stdout:\n%s\non stderr:\n%s", err, stdout.String(), stderr.String())
	}
}

// testPrivileges reads the state of the process, if the engine runs on this machine and has the same processes.
func (c *container) testPrivileges(t *testing.T) {
	t.Helper()
	top := c.e.run(t, "top", c.id, "-eo", "pid,uid,args")
	if lines := strings.Split(top, "\n"); len(lines) < 2 || strings.Fields(lines[1])[1] != "65532" {
		t.Errorf("not the user 65532:\n%s", top)
	}
	status, err := os.ReadFile("/proc/" + c.inspect(t, "{{.State.Pid}}") + "/status")
	if err != nil || !strings.Contains(string(status), "Name:\tratelimit\n") {
		t.Logf("capabilities are not checked: the engine's processes are not visible (%v)", err)
		return
	}
	for _, want := range []string{
		"Uid:\t65532\t65532\t65532\t65532", "CapPrm:\t0000000000000000",
		"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2",
	} {
		if !strings.Contains(string(status), want+"\n") {
			t.Errorf("no %q in\n%s", want, status)
		}
	}
}

// testStop stops the container while a request has arrived by half. It is answered, and the exit code is 0.
func (c *container) testStop(t *testing.T) {
	t.Helper()
	conn, err := net.Dial("tcp", c.address(t, "8080"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // The answer has been read.
	half := len(question) / 2
	write := func(text string) {
		if _, err := io.WriteString(conn, text); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf("POST /json HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n",
		len(question)))
	r := bufio.NewReader(conn)
	// The service reads the body.
	if line, err := r.ReadString('\n'); err != nil || !strings.HasPrefix(line, "HTTP/1.1 100 ") {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := r.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	write(question[:half])
	began := time.Now()
	stop := c.e.command(t.Context(), "stop", "--time", "20", c.id)
	if err := stop.Start(); err != nil {
		t.Fatal(err)
	}
	harness.Await(t, patience, "the service knows of SIGTERM", func() error {
		if c.e.command(t.Context(), "exec", c.id, "/bin/ratelimit", "health").Run() == nil {
			return errors.New("it is ready")
		}
		return nil
	})
	write(question[half:])
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Errorf("the request in flight: %v", err)
	} else if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		t.Errorf("the request in flight: status %d, %s", resp.StatusCode, text)
	}
	_ = conn.Close()
	if err := stop.Wait(); err != nil {
		t.Errorf("docker stop: %v", err)
	}
	if got := c.inspect(t, "{{.State.Status}} {{.State.ExitCode}} {{.State.OOMKilled}}"); got != "exited 0 false" {
		t.Errorf("after docker stop, which took %v: %s", time.Since(began), got)
	}
}

// A service that waits for Redis becomes unhealthy, and the check says why.
func (e *engine) testUnhealthy(t *testing.T) {
	rules := rulesDir(t)
	putRule(t, rules, 1)
	c := e.start(t, "--health-interval", "1s", "--health-retries", "2", "--health-start-period", "1ms", "-e",
		"BACKEND_TYPE=redis", "-e", "REDIS_SOCKET_TYPE=tcp",
		"-e", "REDIS_URL=127.0.0.1:1", "-v", rules+":/rules:ro", image, "serve", "--config", "/rules")
	c.awaitHealth(t, "unhealthy")
	if got := c.inspect(t, "{{range .State.Health.Log}}{{.Output}}{{end}}"); !strings.Contains(got, "status 500: ") {
		t.Errorf("the health check says %q", got)
	}
}

// A container of ratelimit divvy is healthy, though it has no HTTP port, with and without PORT.
func (e *engine) testDivvy(t *testing.T) {
	file, err := filepath.Abs(filepath.Join(repository, "examples/divvy/example-config.ini"))
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{"PORT=8321", "DIVVY_ROUND=nearest"} {
		c := e.start(t, "-e", port, "-v", file+":/rules.ini:ro", image, "divvy", "/rules.ini")
		c.awaitHealth(t, "healthy")
	}
}
