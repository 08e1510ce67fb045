//go:build unix && !solaris && !aix

package snapshot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ratelimit/testbed/testfiles"
)

// A file in place of the lock file is not changed, and the error names it.
func TestLockFileChangesNoOther(t *testing.T) {
	t.Parallel()
	const text = "what an operator needs, which is longer than a number"
	for name, put := range map[string]func(target, lock string) error{
		"a link":            os.Symlink,
		"a hard link":       os.Link,
		"another file":      func(target, lock string) error { return os.WriteFile(lock, []byte(text), 0o600) },
		"a short file":      func(_, lock string) error { return os.WriteFile(lock, []byte("yes\n"), 0o600) },
		"a pipe":            func(_, lock string) error { return syscall.Mkfifo(lock, 0o600) },
		"a link to nowhere": func(target, lock string) error { return os.Symlink(target+"-missing", lock) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			target, path := filepath.Join(dir, "target"), filepath.Join(dir, "counters")
			testfiles.Write(t, target, text)
			if err := put(target, path+".lock"); err != nil {
				t.Fatal(err)
			}
			if _, _, err := open(t, path); err == nil || !strings.Contains(err.Error(), path+".lock is ") {
				t.Errorf("error: %v", err)
			}
			if got, err := os.ReadFile(target); err != nil || string(got) != text {
				t.Errorf("the target has %q, %v", got, err)
			}
			if _, err := os.Stat(target + "-missing"); err == nil {
				t.Error("the file that a link leads to was created")
			}
		})
	}
}

// A lock file of an earlier process, which may have had a longer number, is used again.
func TestLockFileOfEarlierProcess(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "counters")
	testfiles.Write(t, path+".lock", "1234567890123\n")
	for range 2 {
		f, _, err := open(t, path)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path + ".lock"); err != nil ||
			strings.TrimSpace(string(got)) != fmt.Sprint(os.Getpid()) {
			t.Errorf("%q, %v", got, err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
