package release

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/settings"
)

// The versions of the programs that make a release. .github/workflows/release.yml names the first, too.
const (
	goreleaserVersion = "v2.16.0"
	syftVersion       = "v1.57.1"
	actionlintVersion = "v1.7.12"
)

// A release builds with the flags of `make build`, and the workflow with the version of goreleaser that is tested here.
func TestReleaseBuildsAsMakeDoes(t *testing.T) {
	t.Parallel()
	var config struct {
		Builds []struct {
			Env, Goos, Goarch, Flags, Ldflags []string
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, ".goreleaser.yaml")), &config); err != nil {
		t.Fatal(err)
	}
	b := config.Builds[0]
	if !slices.Equal(b.Goos, []string{"linux", "darwin", "windows"}) ||
		!slices.Equal(b.Goarch, []string{"amd64", "arm64"}) {
		t.Errorf("builds for %q and %q", b.Goos, b.Goarch)
	}
	makefile := read(t, "Makefile")
	if build := "\n\t" + strings.Join(b.Env, " ") + " go build " + strings.Join(b.Flags,
		" ") + " -ldflags"; !strings.Contains(makefile, build) {
		t.Errorf("the Makefile has no line that starts with %q", build)
	}
	flags := strings.NewReplacer("v{{ .Version }}", "$(VERSION)", "{{ slice .FullCommit 0 12 }}",
		"$(COMMIT)").Replace(b.Ldflags[0])
	if !strings.Contains(makefile, "\nLDFLAGS := "+flags+"\n") {
		t.Errorf("the Makefile does not set LDFLAGS to %s", flags)
	}
	if want := "version: " + goreleaserVersion + " "; !strings.Contains(read(t, ".github/workflows/release.yml"), want) {
		t.Errorf("release.yml does not name %s", want)
	}
}

// The packages hold each file that the README links to, at the same place beside it.
func TestPackagedLinks(t *testing.T) {
	t.Parallel()
	var config struct {
		Nfpms []struct {
			Contents []struct{ Src, Dst string }
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, ".goreleaser.yaml")), &config); err != nil {
		t.Fatal(err)
	}
	packaged := make(map[string]bool)
	for _, c := range config.Nfpms[0].Contents {
		dst, isDoc := strings.CutPrefix(c.Dst, "/usr/share/doc/ratelimit/")
		names, err := filepath.Glob(filepath.Join(repository, c.Src))
		if !isDoc || err != nil {
			continue
		}
		for _, name := range names {
			if strings.HasSuffix(c.Dst, "/") {
				packaged[dst+filepath.Base(name)] = true
			} else {
				packaged[dst] = true
			}
		}
	}
	links := regexp.MustCompile(`(?:\]\(|src=")([^)#":]+)[)#"]`).FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(links) < 20 {
		t.Fatalf("README.md has %d links", len(links))
	}
	for _, link := range links {
		if !packaged[link[1]] {
			t.Errorf("the packages lack %s, to which the README links", link[1])
		}
	}
}

// The settings and rules of the packages are valid, and name what exists.
func TestPackagedFiles(t *testing.T) {
	t.Parallel()
	var environ []string
	for line := range strings.Lines(read(t, "deploy/systemd/environment")) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			environ = append(environ, line)
		}
	}
	env := settings.NewEnvironment(environ)
	s, warnings, err := settings.Read(env)
	if warnings = append(warnings, env.Unknown(settings.Table())...); err != nil || len(warnings) > 0 {
		t.Fatalf("environment: %v, %q", err, warnings)
	}
	for _, v := range settings.Table() {
		loopback := v.Name + "=127.0.0.1"
		if v.Name == "PROMETHEUS_ADDR" {
			loopback += v.Default
		}
		opens := v.Default == "0.0.0.0" || strings.HasPrefix(v.Default, ":")
		if opens && !slices.Contains(environ, loopback) {
			t.Errorf("environment: %s is open to all hosts", v.Name)
		}
	}
	if !strings.HasPrefix(s.MemorySnapshot, "/var/lib/ratelimit/") {
		t.Errorf("environment: counters are in %s, which is not the state directory of the unit", s.MemorySnapshot)
	}
	file := filerules.File{Name: "example.yaml", Data: []byte(read(t, "deploy/systemd/rules/example.yaml"))}
	if _, warnings, err := filerules.Load([]filerules.File{file}, compile.Options{}); err != nil || len(warnings) > 0 {
		t.Errorf("%v, %q", err, warnings)
	}
	scripts, err := filepath.Glob(filepath.Join(repository, "deploy/systemd/*/p*"))
	if err != nil || len(scripts) != 6 {
		t.Fatalf("%v, scripts %q", err, scripts)
	}
	for _, script := range scripts {
		if out, err := exec.Command("sh", "-n", script).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
}

// The unit waits longer for the end of the service than the service waits for its callers.
func TestUnitWaitsForShutdown(t *testing.T) {
	t.Parallel()
	s, _, err := settings.Read(settings.NewEnvironment(nil))
	if err != nil {
		t.Fatal(err)
	}
	unit := read(t, "deploy/systemd/ratelimit.service")
	m := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)$`).FindStringSubmatch(unit)
	if m == nil || m[1] != "60" || (s.ShutdownDrain+s.ShutdownTimeout).Seconds() > 45 {
		t.Errorf("TimeoutStopSec is %q, the service takes up to %v", m, s.ShutdownDrain+s.ShutdownTimeout)
	}
	for _, want := range []string{
		"Type=notify", "DynamicUser=yes", "ProtectSystem=strict", "NoNewPrivileges=yes",
		"CapabilityBoundingSet=", "MemoryDenyWriteExecute=yes", "StateDirectory=ratelimit",
	} {
		if !strings.Contains(unit, "\n"+want+"\n") {
			t.Errorf("the unit has no line %s", want)
		}
	}
}
