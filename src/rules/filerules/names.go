package filerules

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"ratelimit/src/rules"
)

// warnings names the ignored files that may have been meant as rules: envoyproxy/ratelimit reads every file.
func (s *scan) warnings() rules.Problems {
	const most = 5
	names := slices.DeleteFunc(slices.Clone(s.ignored), holdsNoRules)
	if len(names) == 0 {
		return nil
	}
	list := strings.Join(names[:min(len(names), most)], ", ")
	if len(names) > most {
		list += fmt.Sprintf(" and %d more", len(names)-most)
	}
	return rules.Problems{{
		Pos:  rules.Pos{File: s.root},
		What: "only *.yaml, *.yml, *.ini and *.json files, and files without a suffix that have a `domain`, are read, which leaves out " + list,
		Fix:  "rename what holds rules, move the rest elsewhere",
	}}
}

// skipped returns whether a file, directory or link with that name is never read.
func skipped(name string, ignoreDotFiles bool) bool {
	return strings.HasPrefix(name, "..") || // Kubernetes: ..data, ..2026_10_01_12_00_00.123
		strings.HasPrefix(name, ".#") || // Emacs: a lock, which is a link that leads nowhere
		strings.HasSuffix(name, "~") ||
		name == "lost+found" || // for root only, on every ext4 volume
		ignoreDotFiles && strings.HasPrefix(name, ".")
}

// mayHoldRules returns whether a file without a suffix may hold rules, as envoyproxy/ratelimit allows.
func mayHoldRules(name string) bool { return !strings.Contains(name, ".") && !holdsNoRules(name) }

func isRuleFile(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".ini", ".json"}, strings.ToLower(filepath.Ext(name)))
}

// holdsNoRules returns whether a file is of a kind that is often beside rules.
func holdsNoRules(name string) bool {
	others := []string{".md", ".txt", ".bak", ".orig", ".old", ".tmp", ".swp", ".swo"}
	return slices.Contains(others, strings.ToLower(filepath.Ext(name))) ||
		strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") ||
		strings.HasPrefix(name, "README") || strings.HasPrefix(name, "LICENSE")
}

// howToFix returns what to do about err.
func howToFix(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return "let the user of this process read it (chmod a+r a file, a+rx the directories above it)"
	}
	return "fix the path, or the disk"
}

// kindOf names what is not a directory, for messages.
func kindOf(m fs.FileMode) string {
	switch {
	case m&fs.ModeNamedPipe != 0:
		return "a named pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	case m.IsRegular():
		return "a file"
	}
	return "something special"
}
