package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// installation is how a program is installed into a directory.
type installation struct {
	// product is what the directory has afterwards, relative to it.
	product  string
	commands func(dir string) [][]string
}

// installOnce installs a program into a directory of the user's cache, unless it is there, and returns the path of the
// product. It works in a directory of its own and renames that when all is done, so the result is never half made, also
// when two test runs begin together.
func installOnce(name string, in installation) (product string, err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "ratelimit-test", name)
	product = filepath.Join(dir, in.product)
	if _, err := os.Stat(product); err == nil {
		return product, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", err
	}
	draft, err := os.MkdirTemp(filepath.Dir(dir), "installing-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(draft) }() // It is gone if all went well.
	for _, args := range in.commands(draft) {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%q: %w\n%s", args, err, out)
		}
	}
	if _, err := os.Stat(filepath.Join(draft, in.product)); err != nil {
		return "", err
	}
	renamed := os.Rename(draft, dir)
	if _, err := os.Stat(product); err != nil { // Another process may have installed it meanwhile, which is just as good.
		return "", renamed
	}
	return product, nil
}

// npmInstall installs a package of npm. The product is the directory for NODE_PATH.
func npmInstall(name, version string) installation {
	return installation{"node_modules", func(dir string) [][]string {
		return [][]string{{
			"npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--ignore-scripts",
			name + "@" + version,
		}}
	}}
}

// pipInstall installs a package of PyPI into a virtual environment. The product is its Python.
func pipInstall(name, version string) installation {
	return installation{filepath.Join("bin", "python"), func(dir string) [][]string {
		return [][]string{
			{"python3", "-m", "venv", dir},
			{
				filepath.Join(dir, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
				name + "==" + version,
			},
		}
	}}
}
