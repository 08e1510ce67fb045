package docker

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// standIn is how an image is made from local files that takes the place of a base image.
type standIn struct {
	prefix string // the start of the image's name.
	from   string // says what it is made of.
	fill   func(t *testing.T, r *root)
	config []string // the instructions of the real image's Dockerfile.
}

var standIns = []standIn{
	{
		prefix: "golang:", from: "the Go that go.mod names, sh and ln of this machine, and the modules of go.mod as a " +
			"module proxy, compiled packages", fill: fillGo,
		config: []string{"ENV PATH=/usr/local/go/bin:/usr/bin:/bin GOPATH=/go GOTOOLCHAIN=local GOPROXY=file:///proxy " +
			"GOCACHE=/gocache", "WORKDIR /go"},
	},
	{
		prefix: "gcr.io/distroless/static-", from: "users, time zones and certificates of this machine", fill: fillDistroless,
		config: []string{
			"ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "USER nonroot",
			"WORKDIR /home/nonroot",
		},
	},
	{
		prefix: "envoyproxy/envoy:distroless-",
		from:   "Envoy " + harness.EnvoyVersion + " from PyPI, libraries of this machine",
		fill: func(t *testing.T, r *root) {
			fillDistroless(t, r)
			r.program(t, harness.Envoy(t), "/usr/local/bin/envoy")
		},
		config: []string{"USER nonroot", `ENTRYPOINT ["/usr/local/bin/envoy"]`, `CMD ["-c", "/etc/envoy/envoy.yaml"]`},
	},
	{
		prefix: "redis:", from: "redis-server of this machine",
		fill: fillPrograms("sh redis-server redis-cli", "dash redis-server redis-tools"),
		// The real image accepts connections from other containers, too.
		config: []string{"USER 65532", "WORKDIR /tmp", `ENTRYPOINT ["sh", "-c", "exec \"$@\" --protected-mode no", "sh"]`},
	},
	{prefix: "debian:12", from: "packages of Debian, by mmdebstrap", fill: fillDebian, config: []string{`CMD ["bash"]`}},
	{
		prefix: "memcached:", from: "memcached of this machine", fill: fillPrograms("memcached", "memcached"),
		config: []string{"USER 65532"},
	},
	{
		prefix: "prom/statsd-exporter:", from: "the same release, as a Go module",
		fill: func(t *testing.T, r *root) {
			fillDistroless(t, r)
			r.program(t, harness.GoProgram(t, "github.com/prometheus/statsd_exporter", "v0.28.0"), "/bin/statsd_exporter")
		},
		config: []string{"USER 65534", `ENTRYPOINT ["/bin/statsd_exporter"]`},
	},
}

// standInNames returns the names of all images in the Dockerfiles and in the compose files, but for the service's own.
func standInNames(t *testing.T) (names []string) {
	t.Helper()
	for _, name := range []string{"Dockerfile", ciFile, "docker-compose.yml", "docker-compose-example.yml"} {
		text := testfiles.Read(t, filepath.Join(repository, name))
		for _, m := range regexp.MustCompile(`(?m)^(?:FROM(?: --platform=\S+)?| +image:) (\S+)`).FindAllStringSubmatch(
			string(text), -1) {
			if m[1] != "ratelimit:local" && m[1] != "${RATELIMIT}" && !slices.Contains(names, m[1]) {
				names = append(names, m[1])
			}
		}
	}
	return names
}

func standInFor(t *testing.T, name string) standIn {
	t.Helper()
	i := slices.IndexFunc(standIns, func(s standIn) bool { return strings.HasPrefix(name, s.prefix) })
	if i < 0 {
		t.Fatalf("no stand-in is known for the image %s: add one to standIns", name)
	}
	return standIns[i]
}

// makeStandIns writes a Dockerfile of each stand-in, and its files, into dir, where buildStandIn finds them.
func makeStandIns(t *testing.T, dir string) {
	t.Setenv("CI", "true") // A program that is missing fails the test.
	for _, name := range standInNames(t) {
		func() {
			s, dir := standInFor(t, name), contextOf(dir, name)
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			lines := append([]string{"FROM scratch", "ADD root.tar /"}, s.config...)
			testfiles.Write(t, filepath.Join(dir, "Dockerfile"), strings.Join(lines, "\n")+"\n")
			file, err := os.Create(filepath.Join(dir, "root.tar"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = file.Close() }() // Close of the tar file has returned all errors.
			r := &root{tar: tar.NewWriter(file), has: make(map[string]bool)}
			for _, d := range []string{"/tmp", "/etc", "/root"} {
				r.dir(t, d, map[bool]int64{true: 0o1777, false: 0o755}[d == "/tmp"])
			}
			s.fill(t, r)
			if err := r.tar.Close(); err != nil {
				t.Fatal(err)
			}
		}()
	}
}

// contextOf returns the directory with the Dockerfile of a stand-in.
func contextOf(dir, name string) string {
	return filepath.Join(dir, strings.NewReplacer("/", "_", ":", "_").Replace(name))
}

// buildStandIn gives the engine a stand-in under the name of the real image, for one architecture.
func (e *engine) buildStandIn(t *testing.T, name, arch string) {
	t.Helper()
	e.run(t, "build", "--platform", "linux/"+arch, "-t", name, contextOf(e.standIns, name))
}

// root is the file system of an image.
type root struct {
	tar *tar.Writer
	has map[string]bool // the paths that are written.
}

func (r *root) write(t *testing.T, h *tar.Header, content io.Reader) {
	t.Helper()
	if r.has[h.Name] {
		return
	}
	r.has[h.Name] = true
	h.Name = strings.TrimPrefix(h.Name, "/")
	if err := r.tar.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if content != nil {
		if _, err := io.Copy(r.tar, content); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *root) dir(t *testing.T, path string, mode int64) {
	t.Helper()
	r.write(t, &tar.Header{Typeflag: tar.TypeDir, Name: path, Mode: mode}, nil)
}

func (r *root) text(t *testing.T, path, text string) {
	t.Helper()
	r.write(t, &tar.Header{Typeflag: tar.TypeReg, Name: path, Mode: 0o644, Size: int64(len(text))},
		strings.NewReader(text))
}

// file writes the file that source leads to.
func (r *root) file(t *testing.T, source, path string) {
	t.Helper()
	f, err := os.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // It is only read.
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	r.write(t, &tar.Header{
		Typeflag: tar.TypeReg, Name: path, Mode: int64(info.Mode().Perm() | 0o444), Size: info.Size(),
		ModTime: info.ModTime(),
	}, f)
}

// tree writes the files below source, but for the directories skip at its top.
func (r *root) tree(t *testing.T, source, path string, skip ...string) {
	t.Helper()
	err := filepath.WalkDir(source, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(source, name)
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(skip, rel):
			return filepath.SkipDir
		case d.IsDir():
			r.dir(t, filepath.Join(path, rel), 0o755)
		default:
			if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() { // Links are followed; some lead nowhere.
				r.file(t, name, filepath.Join(path, rel))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// program writes a program, and the libraries that it loads.
func (r *root) program(t *testing.T, source, path string) {
	t.Helper()
	r.file(t, source, path)
	out, err := exec.Command("ldd", source).Output()
	if err != nil { // It is static.
		return
	}
	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1) {
		r.file(t, m[1], m[1])
	}
}

// fillPrograms fills an image with programs of this machine. packages are Debian's.
func fillPrograms(names, packages string) func(t *testing.T, r *root) {
	return func(t *testing.T, r *root) {
		for name := range strings.FieldsSeq(names) {
			r.program(t, harness.Program(t, name, packages), "/usr/bin/"+name)
		}
		r.text(t, "/etc/passwd", "root:x:0:0::/root:\nnobody:x:65534:65534::/:\n")
	}
}

// fillDebian leaves out devices: containers have their own.
func fillDebian(t *testing.T, r *root) {
	t.Helper()
	f, err := os.Open(harness.Debian(t, "apt", "--variant=apt"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }() // It is only read.
	for archive := tar.NewReader(f); ; {
		h, err := archive.Next()
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Name = filepath.Join("/", h.Name); h.Name != "/" && !strings.HasPrefix(h.Name, "/dev/") {
			r.write(t, h, archive)
		}
	}
}

func fillDistroless(t *testing.T, r *root) {
	t.Helper()
	r.text(t, "/etc/passwd", "root:x:0:0:root:/root:/sbin/nologin\nnobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")
	r.text(t, "/etc/group", "root:x:0:\nnobody:x:65534:\nnonroot:x:65532:\n")
	r.write(t, &tar.Header{Typeflag: tar.TypeDir, Name: "/home/nonroot", Mode: 0o700, Uid: 65532, Gid: 65532}, nil)
	for _, name := range []string{"/etc/ssl/certs/ca-certificates.crt", "/usr/share/zoneinfo"} {
		if _, err := os.Stat(name); err == nil {
			r.tree(t, name, name, "posix", "right")
		}
	}
}

// fillGo has no downloaded modules but a module proxy, so that the build downloads and verifies them as it does from
// the real one.
func fillGo(t *testing.T, r *root) {
	goCommand := func(program string, args []string, env ...string) string {
		cmd := exec.Command(program, args...)
		cmd.Dir, cmd.Env = repository, append(os.Environ(), env...)
		return output(t, cmd)
	}
	goroot := goCommand("go", []string{"env", "GOROOT"}, "GOTOOLCHAIN=auto")
	r.tree(t, goroot, "/usr/local/go", "test", "doc", "api", "misc")
	r.program(t, harness.Program(t, "sh", "dash"), "/bin/sh")
	r.program(t, harness.Program(t, "ln", "coreutils"), "/bin/ln")
	r.text(t, "/etc/passwd", "root:x:0:0::/root:/bin/sh\n")

	program, download, modules := filepath.Join(goroot, "bin", "go"), []string{"mod", "download"}, t.TempDir()
	goCommand(program, download, "GOTOOLCHAIN=local") // into the cache of this machine
	proxy := "GOPROXY=file://" + filepath.Join(goCommand(program, []string{"env", "GOMODCACHE"}), "cache", "download")
	// only the modules of go.mod
	goCommand(program, download, "GOTOOLCHAIN=local", "GOMODCACHE="+modules, proxy, "GOFLAGS=-modcacherw")
	r.tree(t, filepath.Join(modules, "cache", "download"), "/proxy", "sumdb")

	// The engine forgets what it has compiled, so the packages are compiled here, once for all runs.
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	compiled := filepath.Join(cache, "ratelimit-test", "docker-go-build")
	for _, arch := range []string{"amd64", "arm64"} {
		t.Logf("compiling for %s into %s", arch, compiled)
		goCommand(program, []string{
			"build", "-trimpath", "-pgo=src/cmd/ratelimit/calls.pgo", "-o",
			filepath.Join(t.TempDir(), "ratelimit"), "./src/cmd/ratelimit",
		},
			"GOTOOLCHAIN=local", "GOCACHE="+compiled, "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	}
	r.tree(t, compiled, "/gocache", "trim.txt")
}
