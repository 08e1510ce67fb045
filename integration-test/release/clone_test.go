package release

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// copyRepository copies the files of the repository, new and changed ones included, without its history.
func copyRepository(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: not building packages")
	}
	harness.Program(t, "git", "git")
	dir := t.TempDir()
	for name := range strings.SplitSeq(strings.TrimSuffix(run(t, repository, nil, "git", "ls-files", "-z", "--cached",
		"--others", "--exclude-standard"), "\x00"), "\x00") {
		text, err := os.ReadFile(filepath.Join(repository, name))
		if errors.Is(err, fs.ErrNotExist) { // It is deleted, and not yet committed.
			continue
		}
		info, err2 := os.Stat(filepath.Join(repository, name))
		to := filepath.Join(dir, name)
		if err = errors.Join(err, err2, os.MkdirAll(filepath.Dir(to), 0o755)); err == nil {
			err = os.WriteFile(to, text, info.Mode().Perm())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// makeIn runs make in a copy of the repository as version 1.2.3 of the service.
func makeIn(t *testing.T, dir string, args ...string) string {
	t.Helper()
	start := time.Now()
	out := run(t, dir, nil, "make", append(args, "VERSION=v1.2.3", "COMMIT=c0ffee")...)
	t.Logf("make %s: %v", strings.Join(args, " "), time.Since(start).Round(100*time.Millisecond))
	return out
}

// The packages that `make deb` and `make rpm` make of a clone have the files, fields and scripts of a release, and the
// service in them does what docs/installing.md says.
func TestPackagesOfClone(t *testing.T) {
	t.Parallel()
	dir := copyRepository(t)
	out := makeIn(t, dir, "deb", "rpm")
	file := func(format string) string {
		name := fmt.Sprintf("bin/ratelimit_1.2.3_linux_%s.%s", runtime.GOARCH, format)
		if !strings.Contains(out, name+"\n") {
			t.Errorf("make does not print %s but\n%s", name, out)
		}
		return filepath.Join(dir, name)
	}
	t.Run("deb", func(t *testing.T) {
		checkDeb(t, file("deb"), "1.2.3", runtime.GOARCH)
		root := t.TempDir()
		run(t, ".", nil, "dpkg-deb", "--extract", file("deb"), root)
		checkUnpacked(t, root)
	})
	t.Run("rpm", func(t *testing.T) {
		checkRPM(t, file("rpm"), "1.2.3", map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH])
		harness.Program(t, "cpio", "cpio")
		root := t.TempDir()
		run(t, root, nil, "sh", "-c", // Paths in the package are absolute.
			`rpm2cpio "$0" | cpio --extract --make-directories --no-absolute-filenames --quiet`, file("rpm"))
		checkUnpacked(t, root)
	})
}

// checkUnpacked runs the service that a package has, with its rules and settings.
func checkUnpacked(t *testing.T, root string) {
	t.Helper()
	binary := filepath.Join(root, "usr/bin/ratelimit")
	if out := run(t, ".", nil, binary, "--version"); !strings.HasPrefix(out, "ratelimit v1.2.3 (commit c0ffee, ") {
		t.Errorf("--version prints %s", out)
	}
	text := testfiles.Read(t, filepath.Join(root, "etc/ratelimit/environment"))
	var env []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			env = append(env, strings.Replace(line, "=/var/lib/ratelimit/", "="+t.TempDir()+"/", 1))
		}
	}
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	p := &harness.Process{
		Path: binary, Args: []string{"serve", "--config", filepath.Join(root, "etc/ratelimit/rules")},
		Env: append(env, "LOG_LEVEL=info", "PORT=0", "DEBUG_PORT=0", fmt.Sprintf("GRPC_PORT=%d", port)),
		Log: filepath.Join(t.TempDir(), "log"),
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if p.Stop(); t.Failed() {
			p.ShowLog(t, "the service of the package")
		}
	}()
	harness.Await(t, harness.Deadline, "the sixth login is refused", func() error {
		out, _ := exec.CommandContext(t.Context(), binary, "client", "-dial_string", fmt.Sprintf("127.0.0.1:%d", port),
			"-domain", "example", "-descriptors", "login=192.0.2.7", "--repeat", "6").CombinedOutput() // A refusal is an error.
		if !strings.Contains(string(out), "OVER_LIMIT") {
			return errors.New(string(out))
		}
		return nil
	})
}

// `make image` builds from this machine's files what the last stage of the Dockerfile says, on nothing. The binary
// needs no other file: it runs with these as its whole system. `make docker-check` runs the image.
func TestImageOfClone(t *testing.T) {
	t.Parallel()
	dir := copyRepository(t)
	if out := makeIn(t, dir, "image", "DOCKER=echo", "IMAGE=name:tag"); !strings.Contains(out,
		"build -t name:tag -f bin/image.Dockerfile bin/image") {
		t.Errorf("make image prints\n%s", out)
	}
	text := testfiles.Read(t, filepath.Join(dir, "bin/image.Dockerfile"))
	dockerfile := read(t, "Dockerfile")
	_, last, _ := strings.Cut(dockerfile[strings.LastIndex(dockerfile, "\nFROM ")+1:], "\n")
	_, last, _ = strings.Cut(last, "\n")
	if want := "FROM scratch\nCOPY . /\n" + last; string(text) != want {
		t.Errorf("bin/image.Dockerfile is\n%s\nwant\n%s", text, want)
	}
	image := filepath.Join(dir, "bin/image")
	if certificates, err := os.ReadFile(filepath.Join(image, "etc/ssl/certs/ca-certificates.crt")); err != nil ||
		strings.Count(string(certificates), "BEGIN CERTIFICATE") < 20 {
		t.Errorf("certificate authorities: %v, %d bytes", err, len(certificates))
	}
	if os.Geteuid() != 0 {
		t.Log("the binary is not run: that needs root")
		return
	}
	err := os.CopyFS(filepath.Join(image, "rules"), os.DirFS(filepath.Join(dir, "examples/ratelimit/config")))
	if err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"ratelimit": {"check", "/rules"}, "ratelimit_config_check": {"-config_dir", "/rules"},
	} {
		out := run(t, ".", nil, "chroot", append([]string{image, "/bin/" + name}, args...)...)
		if !strings.Contains(out, "ok: ") {
			t.Errorf("%s prints %s", name, out)
		}
	}
}

// Without certificate authorities the image could not verify a server, so `make image` says what to set.
func TestImageWithoutCertificates(t *testing.T) {
	t.Parallel()
	out := run(t, copyRepository(t), nil, "sh", "-c", "make image CA_CERTIFICATES= || true")
	if !strings.Contains(out, "set CA_CERTIFICATES to a file in PEM") {
		t.Errorf("it prints %s", out)
	}
}
