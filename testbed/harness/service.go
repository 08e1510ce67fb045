package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// startDir is the directory in which the program of the tests was started. Tests may change the working directory.
var startDir, errStartDir = os.Getwd()

// BuildService returns the path of the service's program, which it builds into dir as it is shipped. RATELIMIT_BIN
// names another one.
func BuildService(dir string) (string, error) {
	if path := os.Getenv("RATELIMIT_BIN"); path != "" {
		if !filepath.IsAbs(path) {
			path = filepath.Join(startDir, path)
		}
		_, err := os.Stat(path) // "go test" notes it, so it takes no cached result for another program
		return path, errors.Join(err, errStartDir)
	}
	return build(filepath.Join(dir, "ratelimit"), "./src/cmd/ratelimit")
}

// BuildLoad returns the path of the generator of load that has the lean client, which it builds into dir.
func BuildLoad(dir string) (string, error) {
	return build(filepath.Join(dir, "load"), "./integration-test/load")
}

// Root returns the directory of this project: that of the go.mod above the directory in which the program was started.
func Root() (string, error) {
	if errStartDir != nil {
		return "", errStartDir
	}
	list := exec.Command("go", "list", "-m", "-f", "{{.Dir}}")
	list.Dir = startDir
	root, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("go list -m: %w (run it inside the project)", err)
	}
	return strings.TrimSpace(string(root)), nil
}

// GoCommand returns a go command that compiles with the flags of make build, so packages that several programs of the
// tests share are compiled once. It runs in the directory of this project.
func GoCommand(ctx context.Context, args ...string) (*exec.Cmd, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	profile := filepath.Join(root, "src/cmd/ratelimit/calls.pgo")
	flags := os.Getenv("GOFLAGS") + " -trimpath -gcflags=all=-dwarf=false '-pgo=" + profile + "'"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS="+flags)
	return cmd, nil
}

// build builds a package of this module, and returns path, that of the program.
func build(path, pkg string) (string, error) {
	build, err := GoCommand(context.Background(), "build", "-buildvcs=false", "-o", path, pkg)
	if err != nil {
		return "", err
	}
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return path, nil
}

// Service is a running service.
type Service struct {
	Process
	// Addrs has the address of each port, by its name in the log, such as "grpc".
	Addrs map[string]string
	// Rules is the directory of its rule files.
	Rules string
}

// NewService prepares the service on the loopback interface, with ports that the system chooses, and these variables.
// The package's TestMain must call RunTests.
func NewService(t testing.TB, env ...string) *Service {
	t.Helper()
	path, err := BuiltService()
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	s := &Service{
		Process: Process{Path: path, Args: []string{"serve"}, Log: filepath.Join(root, "log")},
		Rules:   filepath.Join(root, "config"),
	}
	if err := os.Mkdir(s.Rules, 0o755); err != nil {
		t.Fatal(err)
	}
	s.Env = append([]string{
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0",
		"RUNTIME_ROOT=" + root, "RUNTIME_DEBOUNCE=10ms",
	}, env...)
	return s
}

// WriteRules replaces a file of rules in one step.
func (s *Service) WriteRules(t testing.TB, name, text string) {
	t.Helper()
	draft := filepath.Join(filepath.Dir(s.Rules), "draft")
	if err := os.WriteFile(draft, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(draft, filepath.Join(s.Rules, name)); err != nil {
		t.Fatal(err)
	}
}

// listening finds the addresses in a log.
var listening = regexp.MustCompile(`msg=listening address="?([^"\s]+)"? port=(\w+)`)

// ReadLog returns the addresses that the log of a service names, and whether it says that the service is ready.
func ReadLog(text string) (addrs map[string]string, ready bool) {
	addrs = make(map[string]string)
	for _, m := range listening.FindAllStringSubmatch(text, -1) {
		addrs[m[2]] = m[1]
	}
	return addrs, strings.Contains(text, "msg=ready")
}

// Start starts the service, and waits until it has logged the addresses of these ports; without any, until it is ready.
// It is stopped at the end of the test, and shows its log if that failed.
func (s *Service) Start(t testing.TB, ports ...string) {
	t.Helper()
	if err := s.Process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Stop()
		if t.Failed() {
			s.ShowLog(t, "the service")
		}
	})
	Await(t, Deadline, "the service listens", func() error {
		if err := s.Exited(); err != nil {
			return Permanent{err}
		}
		text, err := os.ReadFile(s.Log)
		if err != nil {
			return err
		}
		var ready bool
		if s.Addrs, ready = ReadLog(string(text)); !ready && len(ports) == 0 {
			return errors.New("it has not said that it is ready")
		}
		for _, port := range ports {
			if s.Addrs[port] == "" {
				return fmt.Errorf("it has not logged its port %s", port)
			}
		}
		return nil
	})
}
