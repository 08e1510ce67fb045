package action

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// archive returns a .tar.gz with one file.
func archive(t *testing.T, name, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	files := tar.NewWriter(zip)
	err := files.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text))})
	if err == nil {
		_, err = files.Write([]byte(text))
	}
	if err == nil {
		err = files.Close()
	}
	if err == nil {
		err = zip.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// newReleases starts a server with the release 1.2.3, whose program prints that version, and 1.2.4, whose archive is
// another one than the release says. The newest is 1.2.3.
func newReleases(t *testing.T) string {
	t.Helper()
	files := make(map[string][]byte)
	for _, version := range []string{"1.2.3", "1.2.4"} {
		directory := fmt.Sprintf("ratelimit_%s_%s_%s", version, runtime.GOOS, runtime.GOARCH)
		data := archive(t, directory+"/ratelimit", "#!/bin/sh\necho "+version+"\n")
		name, from := directory+".tar.gz", "/me/ratelimit/releases/download/v"+version+"/"
		files[from+name] = data
		files[from+"checksums.txt"] = fmt.Appendf(nil, "%x  other.tar.gz\n%x  %s\n", sha256.Sum256(nil),
			sha256.Sum256(data), name)
		if version == "1.2.4" {
			files[from+name] = archive(t, directory+"/ratelimit", "#!/bin/sh\necho something else\n")
		}
	}
	files["/me/ratelimit/releases/tag/v1.2.3"] = []byte("the page of the release")
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/me/ratelimit/releases/latest" {
			http.Redirect(w, r, "/me/ratelimit/releases/tag/v1.2.3", http.StatusFound)
		} else if data, ok := files[r.URL.Path]; ok {
			_, _ = w.Write(data) // The client sees that the answer is too short.
		} else {
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.URL + "/me/ratelimit"
}

func TestInstall(t *testing.T) {
	t.Parallel()
	program(t)
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		t.Skipf("there is no release for %s", runtime.GOARCH)
	}
	releases := newReleases(t)
	for _, tt := range []struct {
		version, want string // what the program prints, or a part of the error.
		fails         bool
	}{
		{"1.2.3", "1.2.3\n", false},
		{"v1.2.3", "1.2.3\n", false},
		{"latest", "1.2.3\n", false},
		{"1.2.4", "has the SHA-256", true},
		{"1.2.5", "::error::ratelimit is not installed: cannot download " + releases + "/releases/download/v1.2.5/", true},
		{"main", "version is 'main'; write one such as 1.2.3, or latest", true},
		{"1.2.3/../../x", "write one such as", true},
	} {
		t.Run(strings.ReplaceAll(tt.version, "/", "-"), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			r := call(t, dir, map[string]string{
				"VERSION": tt.version, "REPOSITORY": releases,
				"DIRECTORY": filepath.Join(dir, "bin"),
			}, "bash", path(t, "deploy/ci/install.sh"))
			got := r.out
			if r.code == 0 {
				got = call(t, dir, nil, strings.TrimSpace(r.out)).out
			} else if _, err := os.Stat(filepath.Join(dir, "bin")); err == nil {
				t.Error("something was installed")
			}
			if (r.code != 0) != tt.fails || !strings.Contains(got, tt.want) {
				t.Errorf("exit %d\n%s%s", r.code, r.out, got)
			}
		})
	}
}

// The action installs the version by which it is named.
func TestActionInstalls(t *testing.T) {
	t.Parallel()
	program(t)
	releases := strings.TrimSuffix(newReleases(t), "/me/ratelimit")
	var action composite
	readYAML(t, "action.yml", &action)
	for _, tt := range []struct{ ref, version, want string }{
		{"v1", "", "1.2.3\n"},
		{"v1.2.3", "", "1.2.3\n"},
		{"v1.2.4", "", "has the SHA-256"},
		{"v1.2.4", "1.2.3", "1.2.3\n"},
		{"0123456789abcdef", "", "1.2.3\n"},
	} {
		github := pullRequest(newComments(t), "me/shop")
		github["github.server_url"], github["github.action_ref"] = releases, tt.ref
		// The program of these releases finds nothing wrong.
		r, outputs := action.run(t, newRepository(t, nil), map[string]string{"version": tt.version, "base": ""}, github)
		got := r.out
		if r.code == 0 {
			got = call(t, t.TempDir(), nil, outputs["binary"]).out
		}
		if !strings.Contains(got, tt.want) {
			t.Errorf("@%s, version %q: exit %d\n%s%s", tt.ref, tt.version, r.code, r.out, got)
		}
	}
}

// The releases have the names that the action downloads: those that goreleaser gives by default, in a directory of the
// archive.
func TestReleaseNames(t *testing.T) {
	t.Parallel()
	var releases struct {
		Project  string `yaml:"project_name"`
		Checksum struct {
			Name string `yaml:"name_template"`
		}
		Archives []struct {
			Name    string `yaml:"name_template"`
			Formats []string
			Wrap    any `yaml:"wrap_in_directory"`
		}
	}
	readYAML(t, ".goreleaser.yaml", &releases)
	if len(releases.Archives) != 1 || releases.Archives[0].Name != "" || releases.Archives[0].Wrap != true ||
		releases.Archives[0].Formats[0] != "tar.gz" ||
		releases.Project != "ratelimit" || releases.Checksum.Name != "checksums.txt" {
		t.Errorf("deploy/ci/install.sh expects other names than %+v", releases)
	}
}
