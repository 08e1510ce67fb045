// Packager makes a package for Debian or Red Hat from the section nfpms of .goreleaser.yaml. The package has the files
// of that of a release, without goreleaser, which takes many minutes to build, or nfpm, whose libraries take longer to
// compile than the rest of the package.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
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
	encode, ok := map[string]func(*contents) ([]byte, error){"deb": (*contents).deb, "rpm": (*contents).rpm}[r.format]
	if !ok {
		return "", fmt.Errorf("format %q is not deb or rpm", r.format)
	}
	text, err := os.ReadFile(config)
	if err != nil {
		return "", err
	}
	c, err := r.contents(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", config, err)
	}
	data, err := encode(c)
	if err != nil {
		return "", err
	}
	name := func(version string) string {
		return filepath.Join(to, fmt.Sprintf("%s_%s_linux_%s.%s", c.Name, version, r.arch, r.format))
	}
	old, err := filepath.Glob(name("*"))
	for _, file := range old {
		err = errors.Join(err, os.Remove(file))
	}
	file := name(packageVersion(r.version, r.time))
	return file, errors.Join(err, os.WriteFile(file, data, 0o644))
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
