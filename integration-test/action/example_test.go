package action

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// ratelimitCI returns a directory for the PATH with the commands that the image of deploy/ci has.
func ratelimitCI(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, target := range map[string]string{"ratelimit": program(t), "ratelimit-ci": path(t, "deploy/ci/check.sh")} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir + ":" + os.Getenv("PATH")
}

// TestGitLabJob runs the script of the example's job.
func TestGitLabJob(t *testing.T) {
	t.Parallel()
	var jobs map[string]struct {
		Script    []string
		Variables map[string]string
		Artifacts struct{ Paths []string }
	}
	readYAML(t, "examples/rules-repo/.gitlab-ci.yml", &jobs)
	for limit, want := range map[string]struct {
		code int
		out  string
	}{
		fourAMinute: {0, "1 rule tightened"},
		mistake:     {1, "error: rules/shop.yaml:4:5: unknown key"},
	} {
		dir := newRepository(t, map[string]string{"rules/shop.yaml": shop(limit)})
		env := maps.Clone(jobs["rate limits"].Variables)
		env["PATH"], env["CI_MERGE_REQUEST_DIFF_BASE_SHA"] = ratelimitCI(t), git(t, dir, "rev-parse", "origin/main")
		r := call(t, dir, env, "bash", "-eo", "pipefail", "-c", strings.Join(jobs["rate limits"].Script, "\n"))
		if expect(t, r.out, want.out); r.code != want.code {
			t.Errorf("%s: exit %d\n%s", limit, r.code, r.out)
		}
		if r.code == 0 {
			expect(t, read(t, filepath.Join(dir, jobs["rate limits"].Artifacts.Paths[0])),
				"<!-- ratelimit diff rules -->\n### Rate limits: 1 rule tightened")
		}
	}
}

// The hook lets good rules pass, and refuses a commit of bad ones.
func TestHook(t *testing.T) {
	t.Parallel()
	env := map[string]string{"PATH": ratelimitCI(t)}
	for limit, want := range map[string]string{
		fourAMinute: "", threeAMinute: "--- FAIL: a user has at least 4",
		mistake: "unknown key",
	} {
		dir := newRepository(t, nil)
		git(t, dir, "config", "core.hooksPath", "hooks")
		write(t, dir, map[string]string{"rules/shop.yaml": shop(limit)})
		r := call(t, dir, env, "git", "commit", "-q", "-a", "-m", "change")
		if expect(t, r.out, want); (r.code == 0) != (want == "") {
			t.Errorf("%s: exit %d\n%s", limit, r.code, r.out)
		}
	}
}

// README.md of the example names each of its files, and CODEOWNERS only those that exist.
func TestExampleFiles(t *testing.T) {
	t.Parallel()
	const root = "examples/rules-repo/"
	readme := read(t, path(t, root+"README.md"))
	err := filepath.WalkDir(path(t, root), func(name string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err = filepath.Rel(path(t, root), name)
		if first, _, _ := strings.Cut(name, "/"); !strings.Contains(readme, "`"+name+"`") &&
			!strings.Contains(readme, "`"+first+"/`") && name != "README.md" {
			t.Errorf("README.md of the example does not have %s", name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(read(t, path(t, root+"CODEOWNERS"))) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] == "#" || words[0] == "*" {
			continue
		}
		if _, err := os.Stat(path(t, root+words[0])); err != nil ||
			slices.ContainsFunc(words[1:], func(owner string) bool { return owner[0] != '@' }) {
			t.Errorf("CODEOWNERS: %s: %v", line, err)
		}
	}
}

// The image has the script under the name that the example calls, and what the script needs.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	expect(t, read(t, path(t, "deploy/ci/Dockerfile")),
		" git ", "COPY --from=ratelimit /bin/ratelimit /usr/local/bin/ratelimit\n",
		"COPY check.sh /usr/local/bin/ratelimit-ci\n", "CMD [\"ratelimit-ci\"]\n")
}
