package action

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const mistakeAt = "::error file=rules/shop.yaml,line=4,col=5::unknown key \"rate_limt\"; did you mean `rate_limit`?\n"

// TestCheckScript runs deploy/ci/check.sh on changes of the example.
func TestCheckScript(t *testing.T) {
	t.Parallel()
	ratelimit := program(t)
	for _, tt := range []struct {
		what    string
		changes map[string]string
		env     map[string]string
		code    int
		want    []string
	}{
		{"tighter", map[string]string{"rules/shop.yaml": shop(fourAMinute)}, nil, 0, []string{
			"== ratelimit check rules\nok: 1 file", "== ratelimit test tests\nok    tests/shop_test.yaml",
			"== ratelimit diff: rules since main\n1 rule tightened",
		}},
		{"a mistake", map[string]string{"rules/shop.yaml": shop(mistake)}, nil, 1, []string{mistakeAt}},
		{
			"a mistake, as text",
			map[string]string{"rules/shop.yaml": shop(mistake)},
			map[string]string{"FORMAT": "text"},
			1,
			[]string{"error: rules/shop.yaml:4:5: unknown key"},
		},
		{
			"a mistake that does not matter",
			map[string]string{"rules/shop.yaml": shop(mistake)},
			map[string]string{"FAIL_ON": "never"},
			0,
			[]string{mistakeAt},
		},
		{
			"a failed test",
			map[string]string{"rules/shop.yaml": shop(threeAMinute)},
			nil, 1,
			[]string{"::error file=tests/shop_test.yaml,line=5,col=9::test \"a user has at least 4 requests a minute\" failed%0A"},
		},
		{
			"tests that are not run",
			map[string]string{"rules/shop.yaml": shop(threeAMinute)},
			map[string]string{"TESTS": "none"},
			0,
			[]string{"1 rule tightened"},
		},
		{
			"a warning",
			map[string]string{"rules/shop.yaml": shop(oddValue)},
			map[string]string{"TESTS": "none"},
			0,
			[]string{"::warning file=rules/shop.yaml,line=3,col=5::the value", "ok: 1 file"},
		},
		{
			"a warning that fails",
			map[string]string{"rules/shop.yaml": shop(oddValue)},
			map[string]string{"TESTS": "none", "FAIL_ON": "warning"},
			1,
			[]string{"::warning file=", "ok: 1 file"},
		},
		{
			"replayed requests",
			map[string]string{"rules/shop.yaml": shop(fourAMinute)},
			map[string]string{"REQUESTS": "requests.jsonl"},
			0,
			[]string{"1 rule tightened"},
		},
		{"no comparison", nil, map[string]string{"BASE": ""}, 0, []string{"ok    tests/shop_test.yaml"}},
		{"no change", nil, nil, 0, []string{"== ratelimit diff: rules since main\nno change\n"}},
		{
			"the first rules of a directory",
			map[string]string{"more/a.yaml": shop(fourAMinute)},
			map[string]string{"RULES": "./more/"},
			0,
			[]string{"2 rules added\n+ added shop.user (more/a.yaml:3:5)"},
		},
		{
			"flags",
			map[string]string{"rules/more.yaml": shop(fourAMinute)},
			map[string]string{"TESTS": "none", "FLAGS": "--backend redis --merge-domain-configs"},
			1,
			[]string{"::error file=rules/shop.yaml,line=4,col=5::"},
		},
		{
			"no rules", nil,
			map[string]string{"RULES": "rulez"},
			2,
			[]string{"::error::there are no rules at rulez; set rules to their directory"},
		},
		{
			"no base", nil,
			map[string]string{"BASE": "release"},
			2,
			[]string{"::error::no common commit with release here; check out the whole history (actions/checkout: fetch-depth: 0"},
		},
		{
			"a bad fail-on", nil,
			map[string]string{"FAIL_ON": "x"},
			2,
			[]string{"::error::fail-on is x; write error, warning or never"},
		},
	} {
		t.Run(tt.what, func(t *testing.T) {
			t.Parallel()
			dir, output := newRepository(t, tt.changes), filepath.Join(t.TempDir(), "output")
			env := map[string]string{"RATELIMIT": ratelimit, "BASE": "main", "FORMAT": "github", "GITHUB_OUTPUT": output}
			for name, value := range tt.env {
				env[name] = value
			}
			r := call(t, dir, env, "bash", path(t, "deploy/ci/check.sh"))
			if r.code != tt.code {
				t.Errorf("exit %d, want %d\n%s", r.code, tt.code, r.out)
			}
			expect(t, r.out, tt.want...)
			if tt.code < 2 {
				expect(t, read(t, output), map[int]string{0: "result=passed\n", 1: "result=failed\n"}[tt.code])
			}
			if trees := git(t, dir, "worktree", "list"); strings.Contains(trees, "\n") {
				t.Errorf("worktrees are left: %s", trees)
			}
		})
	}
}

// Rules whose old version has mistakes cannot be compared, and the change that corrects them passes.
func TestCheckScriptCorrectsMistakes(t *testing.T) {
	t.Parallel()
	ratelimit := program(t)
	dir := newRepository(t, map[string]string{"rules/shop.yaml": shop(mistake)})
	git(t, dir, "update-ref", "refs/remotes/origin/main", "HEAD")
	write(t, dir, map[string]string{"rules/shop.yaml": shop(fourAMinute)})
	r := call(t, dir, map[string]string{"RATELIMIT": ratelimit, "BASE": "main"}, "bash", path(t, "deploy/ci/check.sh"))
	if expect(t, r.out, "the rules of main have mistakes: not compared"); r.code != 0 {
		t.Errorf("exit %d\n%s", r.code, r.out)
	}
	if _, err := os.Stat(filepath.Join(dir, "rate-limits.md")); err == nil {
		t.Error("there is a report")
	}
}
