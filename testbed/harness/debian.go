package harness

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// debianRelease is Debian 12.
const debianRelease = "bookworm"

// Debian returns the path of a tar file with a clean Debian 12, or ends the test. mmdebstrap makes it with the
// arguments, once, as root, and it stays in the user's cache directory under the name.
func Debian(t testing.TB, name string, args ...string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(cache, "ratelimit-test", "debian-"+debianRelease+"-"+name+".tar")
	if _, err := os.Stat(archive); err == nil {
		return archive
	}
	program := Program(t, "mmdebstrap", "mmdebstrap")
	t.Logf("fetching a clean Debian, once: %s", archive)
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		t.Fatal(err)
	}
	draft, err := os.MkdirTemp(filepath.Dir(archive), "installing-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(draft) }() // It is empty if all went well.
	file := filepath.Join(draft, "debian.tar")
	if out, err := exec.CommandContext(t.Context(), program,
		append(args, debianRelease, file)...).CombinedOutput(); err != nil {
		t.Fatalf("mmdebstrap %q: %v\n%s", args, err, out)
	}
	if err := os.Rename(file, archive); err != nil {
		t.Fatal(err)
	}
	return archive
}
