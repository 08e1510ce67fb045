package release

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"debug/macho"
	"debug/pe"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// made is a release that goreleaser made of a copy of the repository.
type made struct {
	clone string // the copy, with a tag.
	dist  string // the files of the release.
	tag   string
}

// file returns the path of a file of the release by the end of its name, such as linux_amd64.deb.
func (m made) file(end string) string {
	return filepath.Join(m.dist, "ratelimit_"+strings.TrimPrefix(m.tag, "v")+"_"+end)
}

// cloneRepository copies the last commit of the repository, without its tags.
func cloneRepository(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ratelimit")
	run(t, repository, nil, "git", "clone", "--quiet", "--no-tags", ".", dir)
	// The page of a release would be there.
	run(t, dir, nil, "git", "remote", "set-url", "origin", "https://github.com/ratelimit/ratelimit")
	return dir
}

// makeRelease tags the clone and makes a release of it. It skips what needs GitHub: publishing, and signing with the
// workflow's identity.
func makeRelease(t *testing.T, clone, tag, config string, skip ...string) made {
	t.Helper()
	program := harness.GoProgram(t, "github.com/goreleaser/goreleaser/v2", goreleaserVersion)
	syft := harness.GoProgram(t, "github.com/anchore/syft/cmd/syft", syftVersion)
	programs := t.TempDir()
	if err := os.Symlink(syft, filepath.Join(programs, "syft")); err != nil {
		t.Fatal(err)
	}
	run(t, clone, nil, "git", "tag", tag)
	t.Logf("making %s; this takes minutes", tag)
	env := []string{
		"PATH=" + programs + string(os.PathListSeparator) + os.Getenv("PATH"),
		"GITHUB_REPOSITORY=ratelimit/ratelimit",
	}
	run(t, clone, env, program, "check", "--config", config)
	args := []string{
		"release", "--clean", "--config", config,
		"--skip=" + strings.Join(append(skip, "publish", "sign"), ","),
	}
	run(t, clone, env, program, args...)
	return made{clone, filepath.Join(clone, "dist"), tag}
}

// A release has all files, and each of them is what it says.
func TestRelease(t *testing.T) {
	needFull(t)
	m := makeRelease(t, cloneRepository(t), "v1.0.0", ".goreleaser.yaml")
	t.Run("archives", m.testArchives)
	t.Run("checksums", m.testChecksums)
	t.Run("reproducible", m.testReproducible)
	t.Run("deb", m.testDeb)
	t.Run("rpm", m.testRPM)
	t.Run("pages", m.testPages)
	t.Run("completions", m.testCompletions)
	t.Run("debian", m.testDebian)
}

// platforms are those of archives, each with the check of its binary's header.
var platforms = map[string]func(io.ReaderAt) error{
	"linux_amd64.tar.gz":  func(r io.ReaderAt) error { return elfIs(r, elf.EM_X86_64) },
	"linux_arm64.tar.gz":  func(r io.ReaderAt) error { return elfIs(r, elf.EM_AARCH64) },
	"darwin_amd64.tar.gz": func(r io.ReaderAt) error { return machoIs(r, macho.CpuAmd64) },
	"darwin_arm64.tar.gz": func(r io.ReaderAt) error { return machoIs(r, macho.CpuArm64) },
	"windows_amd64.zip":   func(r io.ReaderAt) error { return peIs(r, pe.IMAGE_FILE_MACHINE_AMD64) },
	"windows_arm64.zip":   func(r io.ReaderAt) error { return peIs(r, pe.IMAGE_FILE_MACHINE_ARM64) },
}

func elfIs(r io.ReaderAt, want elf.Machine) error {
	f, err := elf.NewFile(r)
	if err == nil && (f.Machine != want || f.Section(".interp") != nil) {
		err = fmt.Errorf("machine %v, interpreter %v; want a static binary for %v", f.Machine, f.Section(".interp"), want)
	}
	return err
}

func machoIs(r io.ReaderAt, want macho.Cpu) error {
	f, err := macho.NewFile(r)
	if err == nil && (f.Cpu != want || f.Type != macho.TypeExec) {
		err = fmt.Errorf("CPU %v, type %v; want a program for %v", f.Cpu, f.Type, want)
	}
	return err
}

func peIs(r io.ReaderAt, want uint16) error {
	f, err := pe.NewFile(r)
	if err == nil && f.Machine != want {
		err = fmt.Errorf("machine %#x, want %#x", f.Machine, want)
	}
	return err
}

func (m made) testArchives(t *testing.T) {
	for end, isHeader := range platforms {
		files := unpack(t, m.file(end))
		binary := "ratelimit"
		if strings.HasPrefix(end, "windows") {
			binary += ".exe"
		}
		if err := isHeader(bytes.NewReader(files[binary])); err != nil {
			t.Errorf("%s: %s: %v", end, binary, err)
		}
		for _, name := range []string{
			"LICENSE", "README.md", "CHANGELOG.md", "completions/ratelimit.bash", "completions/ratelimit.zsh",
			"completions/ratelimit.fish",
			"man/ratelimit.1.gz", "man/ratelimit-serve.1.gz", "examples/example.yaml",
		} {
			if len(files[name]) == 0 {
				t.Errorf("%s: no %s", end, name)
			}
		}
		m.testSBOM(t, end, files[binary])
	}
}

// testSBOM compares the SBOM of an archive with the modules that Go recorded in its binary.
func (m made) testSBOM(t *testing.T, end string, binary []byte) {
	t.Helper()
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		t.Errorf("%s: %v", end, err)
		return
	}
	text, err := os.ReadFile(m.file(end) + ".sbom.json")
	if err != nil {
		t.Error(err)
		return
	}
	var sbom struct {
		SpdxVersion string
		Packages    []struct{ Name, VersionInfo string }
	}
	if err := json.Unmarshal(text, &sbom); err != nil || !strings.HasPrefix(sbom.SpdxVersion, "SPDX-") {
		t.Errorf("%s: the SBOM is no SPDX: %v, version %q", end, err, sbom.SpdxVersion)
		return
	}
	listed := make(map[string]bool)
	for _, p := range sbom.Packages {
		listed[p.Name+" "+p.VersionInfo] = true
	}
	for _, dep := range info.Deps {
		if !listed[dep.Path+" "+dep.Version] {
			t.Errorf("%s: the SBOM does not name %s %s", end, dep.Path, dep.Version)
		}
	}
	if len(info.Deps) < 20 {
		t.Errorf("%s: the binary names only %d modules", end, len(info.Deps))
	}
}

// testChecksums compares checksums.txt with the files. It names all archives, packages and SBOMs.
func (m made) testChecksums(t *testing.T) {
	text := testfiles.Read(t, filepath.Join(m.dist, "checksums.txt"))
	var names []string
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		data, err := os.ReadFile(filepath.Join(m.dist, name))
		if got := sha256.Sum256(data); err != nil || hex.EncodeToString(got[:]) != sum {
			t.Errorf("%s: %v, SHA-256 %x, checksums.txt says %s", name, err, got, sum)
		}
		names = append(names, filepath.Join(m.dist, name))
	}
	var want []string
	for end := range platforms {
		want = append(want, m.file(end), m.file(end)+".sbom.json")
	}
	for _, end := range []string{"linux_amd64.deb", "linux_arm64.deb", "linux_amd64.rpm", "linux_arm64.rpm"} {
		want = append(want, m.file(end))
	}
	slices.Sort(names)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("checksums.txt names\n%s\nwant\n%s", strings.Join(names, "\n"), strings.Join(want, "\n"))
	}
}

// testReproducible builds the tag with make, in another folder. The result is the binary of the release.
func (m made) testReproducible(t *testing.T) {
	other := filepath.Join(t.TempDir(), "elsewhere")
	run(t, m.clone, nil, "git", "clone", "--quiet", ".", other)
	run(t, other, nil, "make", "build", "VERSION="+m.tag)
	built := testfiles.Read(t, filepath.Join(other, "bin/ratelimit"))
	if released := unpack(t, m.file("linux_amd64.tar.gz"))["ratelimit"]; !bytes.Equal(built, released) {
		t.Errorf("make build makes %d bytes, the release has %d, and they differ", len(built), len(released))
	}
	if out := run(t, other, nil, "bin/ratelimit", "--version"); !strings.HasPrefix(out, "ratelimit "+m.tag+" (commit ") {
		t.Errorf("--version prints %s", out)
	}
}

// unpack returns the files of an archive by their names without the first folder.
func unpack(t *testing.T, name string) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	add := func(name string, r io.Reader) error {
		data, err := io.ReadAll(r)
		_, name, _ = strings.Cut(path.Clean(name), "/")
		files[name] = data
		return err
	}
	unpackOne := unpackTar
	if strings.HasSuffix(name, ".zip") {
		unpackOne = unpackZip
	}
	if err := unpackOne(name, add); err != nil {
		t.Errorf("%s: %v", name, err)
	}
	return files
}

func unpackZip(name string, add func(string, io.Reader) error) error {
	z, err := zip.OpenReader(name)
	if err != nil {
		return err
	}
	for _, f := range z.File {
		r, err := f.Open()
		if err == nil {
			err = add(f.Name, r)
		}
		if err != nil {
			return err
		}
	}
	return z.Close()
}

func unpackTar(name string, add func(string, io.Reader) error) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // It is only read.
	r, err := gzip.NewReader(f)
	if err != nil {
		return err
	}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err == nil && h.Typeflag == tar.TypeReg:
			err = add(h.Name, tr)
		}
		if err != nil {
			return err
		}
	}
}
