// Packager makes a package for Debian or Red Hat from the section nfpms of .goreleaser.yaml. The package is the one of
// a release, without goreleaser, which takes many minutes to build.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
	"time"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb"
	_ "github.com/goreleaser/nfpm/v2/rpm"
	"go.yaml.in/yaml/v3"
)

// request is a package to make.
type request struct {
	format  string // deb or rpm.
	arch    string // as in GOARCH.
	version string // as `git describe` prints it.
	time    time.Time
	binary  string
}

func main() {
	var r request
	seconds := flag.Int64("time", 0, "the time of all files, in seconds since 1970")
	to := flag.String("to", "bin", "the directory for the package")
	flag.StringVar(&r.format, "format", "deb", "deb or rpm")
	flag.StringVar(&r.arch, "arch", "amd64", "the architecture of the binary, as in GOARCH")
	flag.StringVar(&r.version, "version", "", "the version, as git describe prints it")
	flag.StringVar(&r.binary, "binary", "bin/ratelimit", "the binary")
	flag.Parse()
	r.time = time.Unix(*seconds, 0).UTC()
	file, err := r.write(".goreleaser.yaml", *to)
	if err != nil {
		fmt.Fprintln(os.Stderr, "packager:", err)
		os.Exit(1)
	}
	fmt.Println(file)
}

// write writes the package into a directory, in place of those of its kind from other versions, and returns its path.
func (r request) write(config, to string) (string, error) {
	text, err := os.ReadFile(config)
	if err != nil {
		return "", err
	}
	info, err := r.info(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", config, err)
	}
	packager, err := nfpm.Get(r.format)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	if err := packager.Package(info, &b); err != nil {
		return "", err
	}
	name := func(version string) string {
		return filepath.Join(to, fmt.Sprintf("%s_%s_linux_%s.%s", info.Name, version, r.arch, r.format))
	}
	old, err := filepath.Glob(name("*"))
	for _, file := range old {
		err = errors.Join(err, os.Remove(file))
	}
	file := name(packageVersion(r.version, r.time))
	return file, errors.Join(err, os.WriteFile(file, b.Bytes(), 0o644))
}

// info returns what nfpm needs, from the text of .goreleaser.yaml. That has nfpm's own keys, but for the name, the
// binary, and templates.
func (r request) info(text []byte) (*nfpm.Info, error) {
	var release struct {
		NFPMs []map[string]any `yaml:"nfpms"`
	}
	if err := yaml.Unmarshal(text, &release); err != nil {
		return nil, err
	}
	if len(release.NFPMs) != 1 {
		return nil, fmt.Errorf("nfpms has %d items, want 1", len(release.NFPMs))
	}
	p := release.NFPMs[0]
	name, _ := p["package_name"].(string)
	bindir, _ := p["bindir"].(string)
	contents, _ := p["contents"].([]any)
	p["contents"] = append(contents, map[string]any{
		"src": r.binary, "dst": path.Join(bindir, name), "file_info": map[string]any{"mode": 0o755},
	})
	p["name"], p["arch"], p["platform"], p["version"] = name, r.arch, "linux", packageVersion(r.version, r.time)
	for _, key := range []string{"package_name", "bindir", "formats"} {
		delete(p, key)
	}
	translated, err := yaml.Marshal(p)
	if err != nil {
		return nil, err
	}
	if translated, err = r.expand(translated); err != nil {
		return nil, err
	}
	parsed, err := nfpm.Parse(bytes.NewReader(translated))
	if err != nil {
		return nil, err
	}
	info, err := parsed.Get(r.format)
	if err != nil {
		return nil, err
	}
	info = nfpm.WithDefaults(info)
	return info, nfpm.PrepareForPackager(info, r.format)
}

// expand replaces goreleaser's templates.
func (r request) expand(text []byte) ([]byte, error) {
	t, err := template.New("nfpms").Funcs(template.FuncMap{"envOrDefault": func(name, fallback string) string {
		if value, ok := os.LookupEnv(name); ok {
			return value
		}
		return fallback
	}}).Parse(string(text))
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, map[string]string{"CommitDate": r.time.Format(time.RFC3339)})
	return b.Bytes(), err
}

// described matches what `git describe` prints after a tag such as v1.2.3 or v1.2.3-rc.1.
var described = regexp.MustCompile(`^v?(\d+\.\d+\.\d+)(?:-([a-z]+[0-9A-Za-z.]*?))??((?:-\d+-g[0-9a-f]+)?(?:-dirty)?)$`)

// packageVersion turns what `git describe` prints into a version that package managers order: v1.2.3 is 1.2.3, and
// v1.2.3-4-gabcdef is 1.2.3+4.gabcdef, which is newer. A commit without a tag before it is older than every release.
func packageVersion(description string, committed time.Time) string {
	dotted := func(text string) string { return strings.ReplaceAll(strings.Trim(text, "-"), "-", ".") }
	m := described.FindStringSubmatch(description)
	switch {
	case m == nil:
		return "0.0.0+" + committed.Format("20060102150405") + "." + dotted(description)
	case m[2] != "": // It precedes m[1].
		return m[1] + "-" + dotted(m[2]+m[3])
	case m[3] != "":
		return m[1] + "+" + dotted(m[3])
	}
	return m[1]
}
