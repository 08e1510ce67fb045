package filerules

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"ratelimit/src/rules"
)

// maxLinks bounds the links on the way to one file, as Linux does.
const maxLinks = 40

// resolveLinks returns these errors.
var (
	errNameMissing  = errors.New("does not exist")
	errNotDirectory = errors.New("is not a directory")
	errTooManyLinks = fmt.Errorf("more than %d links in a row", maxLinks)
	errOutsideBase  = errors.New("outside the directory of the rules")
)

// leadsNowhere returns whether err says that there is nothing at the end of a link.
func leadsNowhere(err error) bool {
	return errors.Is(err, errNameMissing) || errors.Is(err, errNotDirectory) || errors.Is(err, errTooManyLinks)
}

// resolveLinks follows path, below the directory dir, through all links, and calls watchName for each name on the way.
// Neither dir nor the returned path has links in it. Unlike filepath.EvalSymlinks it never leaves the directory of the
// rules once that is open, which it is while data files are read. An absolute link may name that directory by the path
// with links or by the one without.
//
// The error is errStopped if enterPlace returned it, one of the errors above, or that of the file system.
func (s *dirScan) resolveLinks(dir, path string) (resolved string, info fs.FileInfo, err error) {
	names := strings.Split(path, string(filepath.Separator))
	links := 0
	var link, target string // link is the last link that was followed, and target is where it leads.
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if s.openedBase != nil && dir == s.basePath {
				return "", nil, s.outsideError(link, target)
			}
			dir, info = filepath.Dir(dir), nil
			continue
		}
		next := filepath.Join(dir, name)
		if err := s.enterPlace(next, nil); err != nil {
			return "", nil, err
		}
		s.events.watchName(dir, name)
		nextInfo, nextTarget, err := s.lookUpName(next)
		if err != nil {
			return "", nil, err
		}
		if nextTarget == "" {
			dir, info = next, nextInfo
			continue
		}
		if links++; links > maxLinks {
			return "", nil, fmt.Errorf("%s: %w", rules.Shorten(next), errTooManyLinks)
		}
		link, target = next, nextTarget
		rest := target
		if filepath.IsAbs(target) {
			var inside bool
			if dir, rest, inside = s.splitAbsoluteTarget(target); !inside {
				return "", nil, s.outsideError(link, target)
			}
		}
		names, info = append(strings.Split(rest, string(filepath.Separator)), names...), nil
	}
	if info == nil {
		info, _, err = s.lookUpName(dir)
	}
	return dir, info, err
}

// resolveAbsolute is resolveLinks for an absolute path.
func (s *dirScan) resolveAbsolute(path string) (resolved string, info fs.FileInfo, err error) {
	volume := filepath.VolumeName(path) + string(filepath.Separator)
	return s.resolveLinks(volume, path[len(volume):])
}

// outsideError returns the error of a link that leads outside.
func (s *dirScan) outsideError(link, target string) error {
	return fmt.Errorf("the link %s leads to %s, %w, %s", rules.Shorten(link), rules.Shorten(target), errOutsideBase,
		s.basePath)
}

// splitAbsoluteTarget splits the absolute target of a link into the directory where it starts and the rest. inside is
// false if the target is outside the directory of the rules, once that is open.
func (s *dirScan) splitAbsoluteTarget(target string) (start, rest string, inside bool) {
	if s.openedBase == nil {
		volume := filepath.VolumeName(target) + string(filepath.Separator)
		return volume, target[len(volume):], true
	}
	for _, dir := range []string{s.basePath, s.basePathWithLinks} {
		rest, inside = strings.CutPrefix(target, strings.TrimSuffix(dir, string(filepath.Separator)))
		if inside && (rest == "" || os.IsPathSeparator(rest[0])) {
			return s.basePath, rest, true
		}
	}
	return "", "", false
}

// lookUpName describes the file, directory or link at path, which has no links on the way. target is empty unless path
// is a link.
func (s *dirScan) lookUpName(path string) (info fs.FileInfo, target string, err error) {
	lstat, readlink, name := os.Lstat, os.Readlink, path
	if s.openedBase != nil {
		lstat, readlink, name = s.openedBase.Lstat, s.openedBase.Readlink, s.pathInsideBase(path)
	}
	operation := "lstat"
	if info, err = lstat(name); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		operation = "readlink"
		target, err = readlink(name)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("%s %w", rules.Shorten(path), errNameMissing)
	case errors.Is(err, syscall.ENOTDIR):
		err = fmt.Errorf("%s %w", rules.Shorten(filepath.Dir(path)), errNotDirectory)
	case err != nil:
		err = &fs.PathError{Op: operation, Path: path, Err: errorWithoutPath(err)}
	}
	return info, filepath.FromSlash(target), err
}

// isInside returns whether path is dir, or is in it. Neither has links in it.
func isInside(path, dir string) bool {
	relative, err := filepath.Rel(dir, path)
	return err == nil && filepath.IsLocal(relative)
}

// pathInsideBase returns path, which is in the directory base, relative to base.
func (s *dirScan) pathInsideBase(path string) string {
	relative, _ := filepath.Rel(s.basePath, path) // filepath.Rel returns no error for two absolute paths.
	return relative
}

// errorWithoutPath returns err without the operation and the path of a [fs.PathError].
func errorWithoutPath(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}
