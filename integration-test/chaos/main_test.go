package chaos

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

const repository = "../.."

// Flags of make chaos, CHAOS="--full --write".
var (
	full  = flag.Bool("full", false, "have every fault on every store; takes some minutes")
	write = flag.Bool("write", false, "with --full: write docs/reliability.md anew")
)

var buildDir string // set by TestMain before any test runs

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if buildDir, err = os.MkdirTemp("", "ratelimit-chaos-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(buildDir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

// binary is the program, built once, as it is shipped.
var binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("RATELIMIT_BIN"); path != "" {
		return filepath.Abs(path)
	}
	path := filepath.Join(buildDir, "ratelimit")
	build := exec.Command("go", "build", "-trimpath", "-o", path, "./src/cmd/ratelimit")
	build.Dir = repository
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return path, nil
})
