package integration

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
)

// documented is a command of the README that serves until the test ends, on free ports.
type documented struct {
	*harness.Process
	ports map[string]int // by the port in the README.
}

// servicePorts are the variables of the service's ports.
var servicePorts = map[string]string{"PORT": "8080", "GRPC_PORT": "8081", "DEBUG_PORT": "6070"}

// startDocumented starts a command in a directory. variables has the port that each variable is for.
func startDocumented(t *testing.T, dir, command string, variables map[string]string, env ...string) *documented {
	t.Helper()
	d := &documented{ports: make(map[string]int)}
	env = append(os.Environ(), env...)
	for name, usual := range variables {
		port, err := harness.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		d.ports[usual] = port
		env = append(env, fmt.Sprintf("%s=%d", name, port))
	}
	d.Process = &harness.Process{
		Path: harness.Program(t, "bash", "bash"), Args: []string{"-c", "exec " + command}, Dir: dir, Env: env,
		Log: filepath.Join(t.TempDir(), "log"),
	}
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if d.Stop(); t.Failed() {
			d.ShowLog(t, command)
		}
	})
	return d
}

// awaitLine waits until the command has printed a text. That may take minutes, as the command builds the service.
func (d *documented) awaitLine(t *testing.T, want string) {
	t.Helper()
	harness.Await(t, 5*time.Minute, want, func() error {
		if err := d.Exited(); err != nil {
			return harness.Permanent{Err: err}
		}
		text, err := os.ReadFile(d.Log)
		if err == nil && !strings.Contains(string(text), want) {
			err = errors.New("not yet")
		}
		return err
	})
}

// sh runs a command that asks at the ports of the README, and returns what it prints.
func (d *documented) sh(t *testing.T, command string) string {
	t.Helper()
	for usual, port := range d.ports {
		command = strings.ReplaceAll(command, "localhost:"+usual, fmt.Sprintf("localhost:%d", port))
	}
	out, err := exec.CommandContext(t.Context(), "sh", "-c", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

// inOneMinute calls attempt from the start of a minute of fixed windows, and again in the next one if it fails: on a
// busy machine it may take longer than what is left of the minute.
func inOneMinute(t *testing.T, attempt func() error) {
	t.Helper()
	var err error
	for i := range 3 {
		if rest := time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)); i > 0 || rest < 10*time.Second {
			time.Sleep(rest)
		}
		if err = attempt(); err == nil {
			return
		}
		t.Logf("attempt %d: %v", i+1, err)
	}
	t.Error("no attempt was answered as README.md says")
}

// The commands of the README that start the service from a clone and from an unpacked release print the request that
// the README shows, and it is answered as shown.
func TestReadmeStart(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(repository)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	archive := t.TempDir() // laid out as .goreleaser.yaml says
	if err := errors.Join(os.Symlink(binary, filepath.Join(archive, "ratelimit")),
		os.Symlink(filepath.Join(root, "examples/ratelimit/config"), filepath.Join(archive, "examples"))); err != nil {
		t.Fatal(err)
	}
	readme := read(t, "README.md")
	request := regexp.MustCompile("(?s)```sh\n(for i in [^\n]*)\n```\n\n```\n(.*?)```").FindStringSubmatch(readme)
	body := regexp.MustCompile("(?s)```sh\n(curl [^\n]*)\n```\n\n```json\n(.*?)```").FindStringSubmatch(readme)
	if request == nil || body == nil {
		t.Fatal("README.md has no requests")
	}
	for command, dir := range map[string]string{
		"make run": root, "./ratelimit serve --try --config examples": archive,
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(readme, "| `"+command+"` |") {
				t.Errorf("README.md does not name %s", command)
			}
			if dir == root { // The repository's own binary stays.
				command += " BIN=" + filepath.Join(t.TempDir(), "ratelimit")
			}
			d := startDocumented(t, dir, command, servicePorts)
			d.awaitLine(t, "/json -d '{\"domain\":\"rl\"")
			if text, err := os.ReadFile(d.Log); dir == root && (err != nil || strings.Contains(string(text), "level=warning")) {
				t.Errorf("%v, a warning in\n%s", err, text)
			}
			inOneMinute(t, func() error {
				got := d.sh(t, request[1]) + d.sh(t, body[1])
				got = regexp.MustCompile(`"\d+s"`).ReplaceAllString(strings.TrimSpace(got), `"42s"`)
				if want := strings.TrimSpace(request[2] + body[2]); got != want {
					return fmt.Errorf("got\n%s\nwant\n%s", got, want)
				}
				return nil
			})
			if page := d.sh(t, "curl -s -H 'Accept: text/html' localhost:6070/"); !strings.Contains(page, "<title>") {
				t.Errorf("the operator's page: %s", page)
			}
		})
	}
}

// The README's first rule is correct, passes its test, and is served, by the commands below it.
func TestReadmeRule(t *testing.T) {
	t.Parallel()
	binary, err := harness.BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"rules/logins.yaml":      blocks(t, "README.md", "yaml", "domain: logins\n")[0],
		"tests/logins_test.yaml": blocks(t, "README.md", "yaml", "rules: ../rules\n")[0],
	} {
		if !strings.Contains(read(t, "README.md"), "`"+name+"`") {
			t.Errorf("README.md does not name %s", name)
		}
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "bin"), 0o755),
		os.Symlink(binary, filepath.Join(dir, "bin/ratelimit"))); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(blocks(t, "README.md", "sh", "bin/ratelimit ")[0]), "\n")
	for _, line := range lines[:len(lines)-1] {
		cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "ok") {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
	d := startDocumented(t, dir, lines[len(lines)-1], servicePorts, "USE_STATSD=false")
	d.awaitLine(t, "ready")
	if out := d.sh(t, `curl -s localhost:8080/json -d '{"domain":"logins","descriptors":[{"entries":[{"key":"user",`+
		`"value":"alex"}]}]}'`); !strings.Contains(out, `"requestsPerUnit":3,`) {
		t.Errorf("got %s", out)
	}
}

// `make envoy-example` answers the requests of the README's table as it says.
func TestEnvoyExample(t *testing.T) {
	t.Parallel()
	envoy := harness.Envoy(t)
	if script := read(t, "examples/envoy/install.sh"); !strings.Contains(script, ":-"+harness.EnvoyVersion+"}") {
		t.Errorf("examples/envoy/install.sh does not install Envoy %s", harness.EnvoyVersion)
	}
	row := regexp.MustCompile("(?m)^\\| `(curl localhost:8888[^`]*)` \\| ([^|:]+?)(?::[^|]*)? \\|$")
	rows := row.FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(rows) < 7 {
		t.Fatalf("README.md has %d rows with a request to Envoy", len(rows))
	}
	ports := maps.Clone(servicePorts)
	ports["ENVOY_PORT"], ports["ENVOY_ADMIN_PORT"], ports["MOCK_PORT"] = "8888", "8001", "9999"
	d := startDocumented(t, repository, "make envoy-example BIN="+filepath.Join(t.TempDir(), "ratelimit"), ports,
		"ENVOY_BIN="+envoy)
	d.awaitLine(t, "Ctrl-C stops all.")
	if text, err := os.ReadFile(d.Log); err != nil || strings.Contains(string(text), "level=warning") {
		t.Errorf("%v, a warning in\n%s", err, text)
	}
	inOneMinute(t, func() error {
		for _, row := range rows {
			want, err := statuses(row[2])
			if err != nil {
				return err
			}
			for i, status := range want {
				curl := strings.Replace(row[1], "curl ", "curl -s -o /dev/null -w '%{http_code}' ", 1)
				if got := d.sh(t, curl); got != fmt.Sprint(status) {
					return fmt.Errorf("%s, request %d: status %s, README.md says %s", row[1], i+1, got, row[2])
				}
			}
		}
		return nil
	})
	d.Stop()
	if text, err := os.ReadFile(d.Log); err != nil || strings.Contains(string(text), "a process has ended") {
		t.Errorf("after SIGTERM: %v\n%s", err, text)
	}
}
