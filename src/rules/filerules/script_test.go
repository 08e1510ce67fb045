//go:build unix

package filerules

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// play runs script in the directory dir, line by line. Paths are
// below dir; "%" in a link's target is dir.
//
//	write F DOMAIN      an in-place write of a rule file, as with cp; DOMAIN<FILE has values_from: FILE
//	lines F WORDS       a new file renamed over F, with a line for each word; compressed if F ends in .gz
//	put F DOMAIN        a new file renamed over F, as editors save
//	text F WORDS        an in-place write of just that
//	size F BYTES        a file of so many zeros
//	link L TARGET       a new link renamed over L
//	mkdir D             with its parents
//	fifo F
//	chmod F MODE
//	mv A B
//	rm F                with all that is in it
//	configmap D VERSION F=DOMAIN...   what the kubelet does, in its order; F.txt=WORD,WORD is written as by lines
func play(t *testing.T, dir, script string) {
	t.Helper()
	for line := range strings.Lines(script) {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := perform(dir, words[0], words[1:]); err != nil {
			t.Fatalf("%s: %v", strings.TrimSpace(line), err)
		}
	}
}

func perform(dir, verb string, args []string) error {
	path := filepath.Join(dir, args[0])
	switch verb {
	case "write":
		return os.WriteFile(path, rulesOf(args[1]), 0o644)
	case "put":
		fresh := path + ".new"
		if err := os.WriteFile(fresh, rulesOf(args[1]), 0o644); err != nil {
			return err
		}
		return os.Rename(fresh, path)
	case "lines":
		fresh := path + "..new" // Half of a file of lines is a good file, too.
		if err := os.WriteFile(fresh, linesOf(args[0], args[1:]), 0o644); err != nil {
			return err
		}
		return os.Rename(fresh, path)
	case "text":
		return os.WriteFile(path, []byte(strings.Join(args[1:], " ")), 0o644)
	case "size":
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			return err
		}
		n, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return err
		}
		return os.Truncate(path, n)
	case "link":
		fresh := path + "..new" // no name that matters
		if err := os.Symlink(strings.ReplaceAll(args[1], "%", dir), fresh); err != nil {
			return err
		}
		return os.Rename(fresh, path)
	case "mkdir":
		return os.MkdirAll(path, 0o755)
	case "fifo":
		return syscall.Mkfifo(path, 0o644)
	case "chmod":
		mode, err := strconv.ParseUint(args[1], 8, 32)
		if err != nil {
			return err
		}
		return os.Chmod(path, os.FileMode(mode))
	case "mv":
		return os.Rename(path, filepath.Join(dir, args[1]))
	case "rm":
		return os.RemoveAll(path)
	case "configmap":
		return configMap(path, args[1], args[2:])
	}
	return fmt.Errorf("no such verb")
}

// configMap publishes files as a volume of Kubernetes does: a directory with
// the new files, the link ..data renamed to lead there, links to what is in it
// by the names that users see, and then the old directory is removed.
func configMap(dir, version string, files []string) error {
	fresh := "..2026_10_01_" + version
	seen := make(map[string]bool)
	for _, f := range files {
		name, domain, _ := strings.Cut(f, "=")
		path := filepath.Join(dir, fresh, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		content := rulesOf(domain)
		if strings.Contains(name, ".txt") {
			content = linesOf(name, strings.Split(domain, ","))
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			return err
		}
		top, _, _ := strings.Cut(name, "/")
		seen[top] = true
	}
	old, _ := os.Readlink(filepath.Join(dir, "..data")) // none at first
	if err := os.Symlink(fresh, filepath.Join(dir, "..data_tmp")); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
		return err
	}
	for top := range seen {
		err := os.Symlink(filepath.Join("..data", top), filepath.Join(dir, top))
		if err != nil && !os.IsExist(err) {
			return err
		}
	}
	links, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, l := range links {
		if !strings.HasPrefix(l.Name(), "..") && !seen[l.Name()] {
			if err := os.Remove(filepath.Join(dir, l.Name())); err != nil {
				return err
			}
		}
	}
	if old == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(dir, old))
}

// linesOf returns a line for each word, compressed if the name ends in .gz.
func linesOf(name string, words []string) []byte {
	text := []byte(strings.Join(words, "\n") + "\n")
	if !strings.HasSuffix(name, ".gz") {
		return text
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write(text) // to memory
	_ = w.Close()
	return b.Bytes()
}

// rulesOf returns a rule file.
func rulesOf(domain string) []byte {
	if domain, file, has := strings.Cut(domain, "<"); has {
		return fmt.Appendf(nil, "domain: %s\ndescriptors:\n  - {key: k, values_from: %s, rate_limit: {unit: second, "+
			"requests_per_unit: 1}}\n", domain, file)
	}
	return fmt.Appendf(nil, "domain: %s\ndescriptors:\n  - key: k\n    rate_limit: {unit: second, requests_per_unit: 1}\n",
		domain)
}

// notRoot skips a test of permissions, which do not bind root.
func notRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		t.Skip("root may read everything; run this test as another user")
	}
}
