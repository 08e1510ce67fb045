package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// BuildService returns the path of the service's program, which it builds into dir as it is shipped. RATELIMIT_BIN names another one.
func BuildService(dir string) (string, error) {
	if path := os.Getenv("RATELIMIT_BIN"); path != "" {
		return filepath.Abs(path)
	}
	path := filepath.Join(dir, "ratelimit")
	build := exec.Command("go", "build", "-trimpath", "-o", path, "ratelimit/src/cmd/ratelimit")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", build, err, out)
	}
	return path, nil
}
