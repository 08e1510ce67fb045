package release

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// maxChangelog is the largest size of CHANGELOG.md in bytes, as of the pages under docs.
const maxChangelog = 25 << 10

// kinds are the headings of Keep a Changelog, in its order.
var kinds = []string{"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}

var versionHeading = regexp.MustCompile(`^## \[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)$`)

// changelogProblems returns what is wrong with the form of a changelog, as line: text.
func changelogProblems(text string) (problems []string) {
	var versions [][3]int
	var dates []string
	kind, lastKind := "", -1
	for i, line := range strings.Split(text, "\n") {
		complain := func(format string, args ...any) {
			problems = append(problems, fmt.Sprintf("%d: ", i+1)+fmt.Sprintf(format, args...))
		}
		switch {
		case i == 0 && line != "# Changelog":
			complain("the title is not # Changelog")
		case line == "## [Unreleased]":
			if versions != nil {
				complain("[Unreleased] comes first")
			}
			kind, lastKind = "", -1
		case strings.HasPrefix(line, "## "):
			m := versionHeading.FindStringSubmatch(line)
			if m == nil {
				complain("%q is not ## [1.2.3] - 2026-01-31", line)
				continue
			}
			var v [3]int
			_, _ = fmt.Sscan(m[1]+" "+m[2]+" "+m[3], &v[0], &v[1], &v[2]) // The pattern allows only digits.
			if n := len(versions); n > 0 && (slices.Compare(v[:], versions[n-1][:]) >= 0 || m[4] > dates[n-1]) {
				complain("%s is not older than the version above it", m[0])
			}
			versions, dates, kind, lastKind = append(versions, v), append(dates, m[4]), "", -1
		case strings.HasPrefix(line, "### "):
			kind = strings.TrimPrefix(line, "### ")
			at := slices.Index(kinds, kind)
			if at <= lastKind {
				complain("%q is not one of %s, once and in this order", line, strings.Join(kinds, ", "))
			}
			lastKind = at
		case strings.HasPrefix(line, "- ") && kind == "":
			complain("%q is under no heading such as ### Added", line)
		}
	}
	if len(versions) == 0 {
		problems = append(problems, "there is no version")
	}
	if !strings.Contains(text, "\n## [Unreleased]\n") {
		problems = append(problems, "there is no ## [Unreleased]")
	}
	return problems
}

func TestChangelog(t *testing.T) {
	t.Parallel()
	text := read(t, "CHANGELOG.md")
	for _, p := range changelogProblems(text) {
		t.Errorf("CHANGELOG.md:%s", p)
	}
	if len(text) > maxChangelog {
		t.Errorf("CHANGELOG.md has %d bytes; at most %d", len(text), maxChangelog)
	}
}

func TestChangelogProblems(t *testing.T) {
	t.Parallel()
	const head = "# Changelog\n\n## [Unreleased]\n\n"
	for _, tt := range []struct{ text, want string }{
		{head + "## [1.0.1] - 2026-02-01\n\n### Fixed\n\n- a\n\n## [1.0.0] - 2026-01-01\n\n### Added\n\n- a\n### " +
			"Security\n- b\n", ""},
		{head + "### Added\n- a\n## [1.0.0] - 2026-01-01\n", ""},
		{"# Changes\n\n## [Unreleased]\n## [1.0.0] - 2026-01-01\n", "1: the title"},
		{"# Changelog\n## [1.0.0] - 2026-01-01\n", "no ## [Unreleased]"},
		{"# Changelog\n## [1.0.0] - 2026-01-01\n## [Unreleased]\n", "3: [Unreleased] comes first"},
		{head + "- a\n## [1.0.0] - 2026-01-01\n", `5: "- a" is under no heading`},
		{head, "there is no version"},
		{head + "## 1.0.0\n", `5: "## 1.0.0" is not`},
		{head + "## [1.0.0] - 2026-01-01\n### Fixed\n### Added\n", `7: "### Added" is not one of`},
		{head + "## [1.0.0] - 2026-01-01\n### Added\n### Added\n", `7: "### Added" is not one of`},
		{head + "## [1.0.0] - 2026-01-01\n### New\n", `6: "### New" is not one of`},
		{head + "## [1.9.0] - 2026-02-01\n## [1.10.0] - 2026-01-01\n", "6: ## [1.10.0] - 2026-01-01 is not older"},
		{head + "## [1.1.0] - 2026-01-01\n## [1.0.0] - 2026-01-02\n", "6: ## [1.0.0] - 2026-01-02 is not older"},
	} {
		got := strings.Join(changelogProblems(tt.text), "\n")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("got %q, want %q for\n%s", got, tt.want, tt.text)
		}
	}
}

// The page of a release is the part of the changelog about it.
func TestReleaseNotes(t *testing.T) {
	t.Parallel()
	notes := run(t, repository, nil, "make", "-s", "release-notes", "VERSION=v1.0.0")
	if !strings.Contains(notes, "### Added\n") || strings.Contains(notes, "\n## ") || len(notes) < 1000 {
		t.Errorf("got %s", notes)
	}
}
