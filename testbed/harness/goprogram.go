package harness

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// GoProgram returns the path of a program from a Go module, or ends the test: with CI=true as failed, otherwise as
// skipped. It installs the program once into the user's cache directory. pkg and version are what "go install
// pkg@version" takes. With -short, it skips the test.
func GoProgram(t testing.TB, pkg, version string) string {
	t.Helper()
	if testing.Short() {
		t.Skipf("-short: this test starts %s", pkg)
	}
	file, err := installGoProgram(t.Context(), pkg, version)
	switch {
	case err == nil:
	case os.Getenv("CI") == "true":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
	return file
}

func installGoProgram(ctx context.Context, pkg, version string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	name := programName(pkg)
	dir := filepath.Join(cache, "ratelimit-test")
	file := filepath.Join(dir, name+"-"+version)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	draft, err := os.MkdirTemp(dir, "installing-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(draft) }()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Minute) // The largest programs take many minutes on two busy cores.
	defer cancel()
	install, err := GoCommand(ctx, "install", pkg+"@"+version)
	if err != nil {
		return "", err
	}
	install.Env = append(install.Env, "GOBIN="+draft)
	if out, err := install.CombinedOutput(); err != nil {
		return "", fmt.Errorf("this test needs %s: %s: %w\n%s", name, strings.Join(install.Args, " "), err, out)
	}
	// Of two test runs that install it at the same time, the later one wins.
	return file, os.Rename(filepath.Join(draft, name), file)
}

// programName returns the name of the program that `go install` makes of a package: that of its folder, without the
// major version of a module.
func programName(pkg string) string {
	dir, name := path.Split(pkg)
	if strings.HasPrefix(name, "v") && strings.Trim(name[1:], "0123456789") == "" {
		name = path.Base(dir)
	}
	return name
}
