package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"ratelimit/testbed/testfiles"
)

// instruction is one of a Dockerfile, with its continued lines joined.
type instruction struct {
	line      int
	name, arg string // "COPY", "go.mod go.sum ./"
}

// stage is a FROM and what follows it.
type stage struct {
	base, name   string
	instructions []instruction
}

// all returns the arguments of every instruction of that name.
func (s stage) all(name string) []string {
	var args []string
	for _, i := range s.instructions {
		if i.name == name {
			args = append(args, i.arg)
		}
	}
	return args
}

// `make image` names its image ratelimit:latest, too, which the README runs, unless IMAGE names another one.
func TestImageTags(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ variable, want string }{
		{"VERSION=1.2.3", "-t 'ratelimit:1.2.3' -t ratelimit:latest -f"},
		{"IMAGE=registry.example:5000/limits:7", "-t 'registry.example:5000/limits:7'  -f"},
	} {
		cmd := exec.CommandContext(t.Context(), "make", "-n", "image", tt.variable)
		cmd.Dir = repository
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "docker build "+tt.want) {
			t.Errorf("make image %s: %v, no %q in\n%s", tt.variable, err, tt.want, out)
		}
	}
}

// parseDockerfile knows as much of the format as this repository's file uses:
// instructions, comments, lines continued with a backslash.
func parseDockerfile(text string) ([]stage, error) {
	var stages []stage
	var open *instruction // continued on the next line
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		part, continued := strings.CutSuffix(line, `\`)
		if open == nil {
			name, arg, _ := strings.Cut(part, " ")
			open = &instruction{line: n + 1, name: name, arg: arg}
		} else {
			open.arg += part
		}
		if continued {
			continue
		}
		i := *open
		open = nil
		if i.name == "FROM" {
			words := slices.DeleteFunc(strings.Fields(i.arg), isFlag)
			s := stage{base: words[0]}
			if len(words) == 3 && strings.EqualFold(words[1], "AS") {
				s.name = words[2]
			}
			stages = append(stages, s)
			continue
		}
		if !slices.Contains([]string{"ARG", "COPY", "ENTRYPOINT", "EXPOSE", "HEALTHCHECK", "RUN", "USER", "WORKDIR"},
			i.name) {
			return nil, fmt.Errorf("line %d: unknown instruction %q", i.line, i.name)
		}
		if len(stages) == 0 {
			return nil, fmt.Errorf("line %d: %s before the first FROM", i.line, i.name)
		}
		last := &stages[len(stages)-1]
		last.instructions = append(last.instructions, i)
	}
	if open != nil {
		return nil, fmt.Errorf("line %d: continued after the last line", open.line)
	}
	return stages, nil
}

func isFlag(word string) bool { return strings.HasPrefix(word, "--") }

func readDockerfile(t *testing.T) []stage {
	t.Helper()
	stages, err := parseDockerfile(read(t, "Dockerfile"))
	if err != nil {
		t.Fatalf("Dockerfile: %v", err)
	}
	if len(stages) != 2 {
		t.Fatalf("%d stages, want one that builds and one that is shipped", len(stages))
	}
	return stages
}

// read returns the content of one of the repository's files.
func read(t *testing.T, path string) string {
	t.Helper()
	text := testfiles.Read(t, filepath.Join(repository, path))
	return string(text)
}

// The image is small, pinned, and runs as an unprivileged user.
func TestDockerfileShips(t *testing.T) {
	shipped := readDockerfile(t)[1]
	if want := regexp.MustCompile(
		`^gcr\.io/distroless/static-debian\d+:nonroot(@sha256:[0-9a-f]{64})?$`); !want.MatchString(shipped.base) {
		t.Errorf("FROM %s, want %s", shipped.base, want)
	}
	want := map[string][]string{
		"USER":       {"65532:65532"},
		"EXPOSE":     {"8080 8081 6070 8321"},
		"ENTRYPOINT": {`["/bin/ratelimit"]`},
		"COPY":       {"--from=build /out/ /bin/"},
		"RUN":        nil, // there is nothing to run it with

		"HEALTHCHECK": {`--interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["/bin/ratelimit", "health"]`},
	}
	for name, args := range want {
		if got := shipped.all(name); !slices.Equal(got, args) {
			t.Errorf("%s %q, want %q", name, got, args)
		}
	}
}

// goVersions returns the oldest Go that a go.mod accepts ("1.26.0"), and the one that it asks for ("1.27.3").
func goVersions(t *testing.T, path string) (oldest, toolchain string) {
	t.Helper()
	found := regexp.MustCompile(`(?m)^go (\d+\.\d+\.\d+)\n\ntoolchain go(\d+\.\d+\.\d+)$`).FindStringSubmatch(read(t,
		path))
	if found == nil {
		t.Fatalf("%s: no lines for go and toolchain", path)
	}
	return found[1], found[2]
}

// All modules, and the documents, name the same versions of Go.
func TestGoVersionsAgree(t *testing.T) {
	t.Parallel()
	oldest, toolchain := goVersions(t, "go.mod")
	for _, dir := range []string{
		"examples/xds-sotw-config-server", "integration-test/helm/apiserver",
		"integration-test/kubernetes", "tools", "tools/packager",
	} {
		if o, c := goVersions(t, dir+"/go.mod"); o != oldest || c != toolchain {
			t.Errorf("%s/go.mod: go %s, toolchain go%s; want %s and %s as in go.mod", dir, o, c, oldest, toolchain)
		}
	}
	minor := "Go " + oldest[:strings.LastIndexByte(oldest, '.')]
	for path, want := range map[string][]string{
		"README.md": {minor}, "CONTRIBUTING.md": {minor}, "docs/installing.md": {minor, "Go " + toolchain},
	} {
		for _, version := range want {
			if !strings.Contains(read(t, path), version) {
				t.Errorf("%s does not name %s", path, version)
			}
		}
	}
}

// The binary is built for the platform asked for, static, and says which
// version it is.
func TestDockerfileBuilds(t *testing.T) {
	build := readDockerfile(t)[0]
	if build.name != "build" {
		t.Errorf("first stage named %q, want build", build.name)
	}
	// The same Go as go.mod names as toolchain, less the patch release.
	_, toolchain := goVersions(t, "go.mod")
	if want := "golang:" + toolchain[:strings.LastIndexByte(toolchain, '.')]; build.base != want {
		t.Errorf("FROM %s, want %s as in go.mod", build.base, want)
	}

	runs := build.all("RUN")
	if len(runs) != 2 || runs[0] != "go mod download" {
		t.Fatalf("RUN %q, want the modules in a layer of their own before the build", runs)
	}
	wanted := []string{
		"CGO_ENABLED=0", "GOOS=$TARGETOS", "GOARCH=$TARGETARCH", "-trimpath",
		"-X main.version=$VERSION", "-X main.commit=$COMMIT",
		"-o /out/ratelimit ./src/cmd/ratelimit",
		"ln -s ratelimit /out/ratelimit_client", "ln -s ratelimit /out/ratelimit_config_check",
	}
	for _, want := range wanted {
		if !strings.Contains(runs[1], want) {
			t.Errorf("RUN %s\nwithout %q", runs[1], want)
		}
	}
	// A variable that no ARG declares is empty, without an error.
	for _, v := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(runs[1], -1) {
		declared := slices.ContainsFunc(build.all("ARG"), func(arg string) bool {
			name, _, _ := strings.Cut(arg, "=")
			return name == v[1]
		})
		if !declared {
			t.Errorf("$%s without ARG %s", v[1], v[1])
		}
	}
}

// The build stage does what it says: run here instead of in a container, with
// nothing but what COPY names, it makes a binary that knows its version and
// answers to all three names.
func TestDockerfileBuildRuns(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: not building without cgo")
	}
	build := readDockerfile(t)[0]
	context := t.TempDir()
	for _, source := range copied(build) {
		if err := copyTo(context, source); err != nil {
			t.Fatal(err)
		}
	}
	runs := build.all("RUN")
	command := runs[len(runs)-1]
	for isFlag(command) { // --mount is for docker
		_, command, _ = strings.Cut(command, " ")
		command = strings.TrimSpace(command)
	}
	out := t.TempDir()
	sh := exec.Command("sh", "-c", strings.ReplaceAll(command, "/out/", out+"/"))
	sh.Dir = context
	sh.Env = append(os.Environ(), "TARGETOS="+runtime.GOOS, "TARGETARCH="+runtime.GOARCH, "VERSION=1.2.3-test",
		"COMMIT=c0ffee")
	if text, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", sh, err, text)
	}

	tests := []struct {
		command []string
		want    string // somewhere in what it prints
	}{
		{[]string{"ratelimit", "version"}, "1.2.3-test"},
		{[]string{"ratelimit", "version"}, "c0ffee"},
		{[]string{"ratelimit_client", "--help"}, "-domain"},
		{[]string{"ratelimit_config_check", "-config_dir", repository + "/examples/ratelimit/config"}, ""},
	}
	for _, test := range tests {
		text, err := exec.Command(filepath.Join(out, test.command[0]), test.command[1:]...).CombinedOutput()
		if err != nil || !strings.Contains(string(text), test.want) {
			t.Errorf("%q: %v, want %q in\n%s", test.command, err, test.want, text)
		}
	}
}

// copied returns what the stage copies from the repository.
func copied(s stage) []string {
	var sources []string
	for _, arg := range s.all("COPY") {
		words := strings.Fields(arg)
		if !isFlag(words[0]) { // --from=another stage
			sources = append(sources, words[:len(words)-1]...)
		}
	}
	return sources
}

// copyTo copies one of the repository's files or directories.
func copyTo(dir, name string) error {
	from, to := filepath.Join(repository, name), filepath.Join(dir, name)
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return os.CopyFS(to, os.DirFS(from))
	}
	text, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, text, 0o644)
}

// Whatever COPY names is in the repository, and .dockerignore lets it through.
func TestDockerfileCopies(t *testing.T) {
	sources := copied(readDockerfile(t)[0])
	if len(sources) == 0 {
		t.Error("nothing is copied")
	}
	for _, source := range sources {
		if _, err := os.Stat(filepath.Join(repository, source)); err != nil {
			t.Errorf("COPY %s: %v", source, err)
		}
		if ignored(read(t, ".dockerignore"), source) {
			t.Errorf("COPY %s: .dockerignore leaves it out", source)
		}
	}
	for _, secret := range []string{".git", ".env", "docker-compose.yml"} {
		if !ignored(read(t, ".dockerignore"), secret) {
			t.Errorf(".dockerignore lets %s through", secret)
		}
	}
}

// ignored tells if .dockerignore leaves out a name at the top of the
// repository. The last pattern that matches decides.
func ignored(dockerignore, name string) bool {
	out := false
	for line := range strings.Lines(dockerignore) {
		pattern, back := strings.CutPrefix(strings.TrimSpace(line), "!")
		if ok, err := filepath.Match(pattern, name); err == nil && ok {
			out = !back
		}
	}
	return out
}
