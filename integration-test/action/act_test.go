package action

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/testbed/harness"
)

const (
	actVersion        = "v0.2.89"
	actionlintVersion = "v1.7.12"
)

// onlyInFull skips a test that make action-check runs. There, a missing program is a failure.
func onlyInFull(t *testing.T) {
	t.Helper()
	if !*full {
		t.Skip("make action-check runs this")
	}
	t.Setenv("CI", "true")
}

func TestWorkflowsLint(t *testing.T) {
	onlyInFull(t)
	lint := harness.GoProgram(t, "github.com/rhysd/actionlint/cmd/actionlint", actionlintVersion)
	files, err := filepath.Glob("../../.github/workflows/*.y*ml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	for _, file := range append(files, "../../examples/rules-repo/.github/workflows/rate-limits.yaml") {
		if r := call(t, ".", nil, lint, file); r.code != 0 {
			t.Errorf("actionlint %s: exit %d\n%s", file, r.code, r.out)
		}
	}
}

// TestAct runs the workflow of the example with act, with the action of this working directory.
func TestAct(t *testing.T) {
	onlyInFull(t)
	ratelimit, act := program(t), harness.GoProgram(t, "github.com/nektos/act", actVersion)
	for _, tt := range []struct {
		what, limit string
		code        int
		want        []string
	}{
		{"tighter", fourAMinute, 0, []string{
			"::set-output:: changed=true", "::set-output:: result=passed",
			"ratelimit check next", "Job succeeded",
		}},
		{
			"a failed test", threeAMinute, 1,
			[]string{"a user has at least 4 requests a minute", "::set-output:: result=failed", "Job failed"},
		},
		{"a mistake", mistake, 1, []string{"unknown key \"rate_limt\"; did you mean `rate_limit`?", "Job failed"}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			dir := newRepository(t, map[string]string{"rules/shop.yaml": shop(tt.limit)})
			const workflow = ".github/workflows/rate-limits.yaml"
			// There is no release to download yet, and no pull request to comment on.
			text := strings.ReplaceAll(read(t, filepath.Join(dir, workflow)), "          rules: ",
				"          binary: "+ratelimit+"\n          comment: \"false\"\n          rules: ")
			event := `{"number": 7, "pull_request": {"number": 7, "head": {"ref": "change"}, "base": {"ref": "main"}}}`
			home := t.TempDir()
			write(t, dir, map[string]string{workflow: text})
			write(t, home, map[string]string{"event.json": event})
			r := call(t, dir, map[string]string{"HOME": home, "XDG_CACHE_HOME": home, "TMPDIR": os.TempDir()}, act,
				"pull_request", "-W", workflow,
				"-P", "ubuntu-latest=-self-hosted", "--local-repository", "OWNER/ratelimit@v1.0.0="+path(t, "."), "-e",
				filepath.Join(home, "event.json"), "--no-cache-server")
			if r.code != tt.code {
				t.Errorf("exit %d, want %d", r.code, tt.code)
			}
			if expect(t, r.out, tt.want...); t.Failed() {
				t.Log(r.out)
			} else {
				t.Logf("act: %s: as expected", tt.what)
			}
		})
	}
}
