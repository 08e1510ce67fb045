package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/testfiles"
)

// packaged are files of both packages, with their permissions. All belong to root.
var packaged = map[string]string{
	"/usr/bin/ratelimit":                                  "-rwxr-xr-x",
	"/usr/bin/ratelimit_client":                           "l---------",
	"/usr/bin/ratelimit_config_check":                     "l---------",
	"/usr/lib/systemd/system/ratelimit.service":           "-rw-r--r--",
	"/etc/ratelimit":                                      "drwxr-xr-x",
	"/etc/ratelimit/environment":                          "-rw-------",
	"/etc/ratelimit/rules":                                "drwxr-xr-x",
	"/etc/ratelimit/rules/example.yaml":                   "-rw-r--r--",
	"/usr/share/man/man1/ratelimit.1.gz":                  "-rw-r--r--",
	"/usr/share/man/man1/ratelimit-serve.1.gz":            "-rw-r--r--",
	"/usr/share/bash-completion/completions/ratelimit":    "-rw-r--r--",
	"/usr/share/fish/vendor_completions.d/ratelimit.fish": "-rw-r--r--",
	"/usr/share/doc/ratelimit/copyright":                  "-rw-r--r--",
}

// settingsFiles are the files that an upgrade leaves as the operator changed them.
var settingsFiles = []string{"/etc/ratelimit/environment", "/etc/ratelimit/rules/example.yaml"}

// checkPackaged compares lines of permissions, owner and path with packaged.
func checkPackaged(t *testing.T, listing, owner string) {
	t.Helper()
	got := make(map[string]string)
	for line := range strings.Lines(listing) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		if fields[1] != owner {
			t.Errorf("%s belongs to %s", fields[2], fields[1])
		}
		if strings.HasPrefix(fields[0], "-") && fields[0][5] == 'w' ||
			strings.HasPrefix(fields[0], "-") && fields[0][8] == 'w' {
			t.Errorf("%s may be written by others: %s", fields[2], fields[0])
		}
		got[strings.TrimSuffix(fields[2], "/")] = fields[0]
	}
	for name, mode := range packaged {
		if got[name] != mode {
			t.Errorf("%s: permissions %q, want %s", name, got[name], mode)
		}
	}
}

func (m made) testDeb(t *testing.T) {
	for arch, file := range map[string]string{"amd64": m.file("linux_amd64.deb"), "arm64": m.file("linux_arm64.deb")} {
		checkDeb(t, file, strings.TrimPrefix(m.tag, "v"), arch)
	}
}

// checkDeb looks into a package of Debian.
func checkDeb(t *testing.T, file, version, arch string) {
	t.Helper()
	dpkg := harness.Program(t, "dpkg-deb", "dpkg")
	var listing strings.Builder
	for line := range strings.Lines(run(t, ".", nil, dpkg, "--contents", file)) {
		fields := strings.Fields(line) // permissions, owner/group, size, date, time, ./path
		listing.WriteString(fields[0] + " " + fields[1] + " " + strings.TrimPrefix(fields[5], ".") + "\n")
	}
	checkPackaged(t, listing.String()+"-rw-r--r-- root/root /usr/share/zsh/vendor-completions/_ratelimit\n", "root/root")
	for field, want := range map[string]string{
		"Package": "ratelimit", "Version": version, "Architecture": arch, "Section": "net", "Priority": "optional",
	} {
		if got := strings.TrimSpace(run(t, ".", nil, dpkg, "--field", file, field)); got != want {
			t.Errorf("%s: %s is %q, want %q", file, field, got, want)
		}
	}
	if got := strings.Fields(run(t, ".", nil, dpkg, "--info", file, "conffiles")); !slices.Equal(got, settingsFiles) {
		t.Errorf("%s: conffiles are %q, want %q", file, got, settingsFiles)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		if got := run(t, ".", nil, dpkg, "--info", file, script); got != read(t, "deploy/systemd/deb/"+script) {
			t.Errorf("%s: %s is\n%s", file, script, got)
		}
	}
}

func (m made) testRPM(t *testing.T) {
	for arch, file := range map[string]string{"x86_64": m.file("linux_amd64.rpm"), "aarch64": m.file("linux_arm64.rpm")} {
		checkRPM(t, file, strings.TrimPrefix(m.tag, "v"), arch)
	}
}

// checkRPM looks into a package of Red Hat.
func checkRPM(t *testing.T, file, version, arch string) {
	t.Helper()
	rpm, database := harness.Program(t, "rpm", "rpm"), t.TempDir()
	query := func(args ...string) string {
		return run(t, ".", nil, rpm, append([]string{"--dbpath", database, "--query", "--package", file}, args...)...)
	}
	checkPackaged(t, query("--queryformat", `[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES}\n]`),
		"root/root")
	if got, want := query("--queryformat", "%{NAME} %{VERSION} %{ARCH}"), "ratelimit "+version+" "+arch; got != want {
		t.Errorf("%s: %s, want %s", file, got, want)
	}
	if got := strings.Fields(query("--configfiles")); !slices.Equal(got, settingsFiles) {
		t.Errorf("%s: config files are %q, want %q", file, got, settingsFiles)
	}
	scripts := query("--scripts")
	for _, script := range []string{"post", "preun", "postun"} {
		if !strings.Contains(scripts, strings.TrimSpace(read(t, "deploy/systemd/rpm/"+script))) {
			t.Errorf("%s: %s is not in\n%s", file, script, scripts)
		}
	}
}

// testPages formats each manual page with man and mandoc, which complain of mistakes.
func (m made) testPages(t *testing.T) {
	man, mandoc := harness.Program(t, "man", "man-db"), harness.Program(t, "mandoc", "mandoc")
	dir := t.TempDir()
	count := 0
	for name, page := range unpack(t, m.file("linux_amd64.tar.gz")) {
		if !strings.HasPrefix(name, "man/") {
			continue
		}
		count++
		file := filepath.Join(dir, filepath.Base(name))
		testfiles.Write(t, file, page)
		cmd := exec.CommandContext(t.Context(), man, "--warnings", "--local-file", file)
		cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "MANWIDTH=80", "MAN_KEEP_STDERR=1")
		var warnings strings.Builder
		cmd.Stderr = &warnings
		if out, err := cmd.Output(); err != nil || warnings.Len() > 0 || !strings.Contains(string(out), "EXIT STATUS") {
			t.Errorf("%s: %v, %s\n%s", name, err, warnings.String(), out)
		}
		// No page has a date, since the same commit makes the same bytes.
		for line := range strings.Lines(run(t, ".", nil, "sh", "-c", `"$1" -T lint -W warning "$2" || true`, "sh", mandoc,
			file)) {
			if !strings.Contains(line, "missing date") {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
	if count < 15 {
		t.Errorf("%d pages", count)
	}
}

// testCompletions completes `ratelimit che` in each shell.
func (m made) testCompletions(t *testing.T) {
	files := unpack(t, m.file("linux_amd64.tar.gz"))
	dir := t.TempDir()
	for name, to := range map[string]string{
		"ratelimit": "ratelimit", "completions/ratelimit.bash": "bash", "completions/ratelimit.zsh": "_ratelimit",
		"completions/ratelimit.fish": "fish",
	} {
		if err := os.WriteFile(filepath.Join(dir, to), files[name], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	env := []string{
		"PATH=" + dir + string(os.PathListSeparator) + os.Getenv("PATH"), "HOME=" + dir,
		"XDG_CONFIG_HOME=" + dir,
	}
	for shell, script := range map[string]string{
		"bash": `source ./bash; COMP_WORDS=(ratelimit che); COMP_CWORD=1; COMP_LINE="ratelimit che"; COMP_POINT=13
			compopt() { :; }; _get_comp_words_by_ref() { words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; cur=che; prev=ratelimit; }
			__start_ratelimit; echo "${COMPREPLY[@]}"`,
		// The completion function runs without a terminal: _describe, which would show the choices, prints them.
		"zsh": `compdef() { :; }; source ./_ratelimit; _describe() { shift; print -l -- ${(P)${@[-1]}}; }
			words=(ratelimit che); CURRENT=2; _ratelimit`,
		"fish": `source ./fish; complete --do-complete "ratelimit che"`,
	} {
		program := harness.Program(t, shell, shell)
		args := map[string][]string{"bash": {"--norc"}, "zsh": {"-f"}, "fish": {"--no-config"}}[shell]
		if out := run(t, dir, env, program, append(args, "-c", script)...); !strings.HasPrefix(strings.TrimSpace(out),
			"check") {
			t.Errorf("%s completes `ratelimit che` to %q", shell, out)
		}
	}
}

// TestWorkflow checks the workflow of releases with actionlint.
func TestWorkflow(t *testing.T) {
	needFull(t)
	actionlint := harness.GoProgram(t, "github.com/rhysd/actionlint/cmd/actionlint", actionlintVersion)
	run(t, repository, nil, actionlint, ".github/workflows/release.yml")
}
