package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// EnvoyVersion is the release that the examples are written for, and that Envoy installs.
const EnvoyVersion = "1.40.0"

// Envoy returns the path of an Envoy, or ends the test: with CI=true as failed, otherwise as skipped. It takes the one
// that examples/envoy/install.sh finds or installs. With -short, it skips the test.
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
	root, err := Root()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(root, "examples/envoy/install.sh"))
	cmd.Env = append(os.Environ(), "ENVOY_VERSION="+EnvoyVersion)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cmd, err, stderr.String())
	}
	return strings.TrimSpace(string(out)), nil
})
