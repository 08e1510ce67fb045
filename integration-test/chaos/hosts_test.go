package chaos

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// storeHost is a name that only the file of a trial knows.
const storeHost = "store.chaos.test"

// ownHosts is a command that runs what follows it with the given file as its
// /etc/hosts: in a mount namespace of its own, for which one has to be root, or
// allowed to be root of a user namespace.
func ownHosts(file string) ([]string, error) {
	flags, err := namespaces()
	if err != nil {
		return nil, err
	}
	return []string{"/usr/bin/env", "unshare", flags, "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, file}, nil
}

// namespaces are the flags of unshare that work here.
var namespaces = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "chaos")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	file := filepath.Join(dir, "hosts")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		return "", err
	}
	var out []byte
	for _, flags := range []string{"-m", "-rm"} {
		if out, err = exec.Command("unshare", flags, "mount", "--bind", file, "/etc/hosts").CombinedOutput(); err == nil {
			return flags, nil
		}
	}
	return "", fmt.Errorf("a program cannot have its own /etc/hosts here: %w: %s", err, out)
})

// putHost says in file what storeHost means. A program that reads the file keeps
// what it says for some seconds.
func putHost(t *testing.T, file, ip string) {
	t.Helper()
	// In place: what is mounted is the file, not its name.
	if err := os.WriteFile(file, []byte(ip+" "+storeHost+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}
