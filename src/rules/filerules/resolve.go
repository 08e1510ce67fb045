package filerules

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// maxLinks bounds the links on the way to one file, as Linux does.
const maxLinks = 40

// Errors of resolve.
var (
	errMissing = errors.New("does not exist")
	errOutside = errors.New("outside the directory of the rules")
)

// resolve follows path, below the directory dir, through all links, and calls watch for each name on the way. Neither dir nor
// plain has links in it. Unlike filepath.EvalSymlinks it never leaves the directory of the rules, once that is known. An absolute
// link may name that directory by either of its paths.
//
// The error is errMissing if a name does not exist, errOutside if a link leads outside, and errStopped if enter returned it.
func (s *scan) resolve(dir, path string) (plain string, info fs.FileInfo, err error) {
	names := strings.Split(path, string(filepath.Separator))
	links := 0
	var link, target string // the last one followed
	plain = dir
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			if plain == s.base {
				return "", nil, s.outside(link, target)
			}
			plain, info = filepath.Dir(plain), nil
			continue
		}
		next := filepath.Join(plain, name)
		if err := s.enter(next, nil); err != nil {
			return "", nil, err
		}
		s.watch(plain, name)
		info, err = s.lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", nil, fmt.Errorf("%s %w", next, errMissing)
		case errors.Is(err, syscall.ENOTDIR):
			return "", nil, fmt.Errorf("%s is not a directory", plain)
		case err != nil:
			return "", nil, err
		case info.Mode()&fs.ModeSymlink == 0:
			plain = next
			continue
		}
		if links++; links > maxLinks {
			return "", nil, fmt.Errorf("%s: more than %d links in a row", next, maxLinks)
		}
		if target, err = s.readlink(next); err != nil {
			return "", nil, err
		}
		link, target = next, filepath.FromSlash(target)
		rest := target
		if filepath.IsAbs(target) {
			var inside bool
			if plain, rest, inside = s.absolute(target); !inside {
				return "", nil, s.outside(link, target)
			}
		}
		names, info = append(strings.Split(rest, string(filepath.Separator)), names...), nil
	}
	if info == nil {
		info, err = s.lstat(plain)
	}
	return plain, info, err
}

func (s *scan) outside(link, target string) error {
	return fmt.Errorf("the link %s leads to %s, %w, %s", link, target, errOutside, s.base)
}

// absolute splits the absolute target of a link into the directory where it starts and the rest. inside is false if the target is
// outside the directory of the rules, once that is known.
func (s *scan) absolute(target string) (plain, rest string, inside bool) {
	if s.top == nil {
		volume := filepath.VolumeName(target) + string(filepath.Separator)
		return volume, target[len(volume):], true
	}
	for _, dir := range []string{s.base, s.given} {
		rest, inside = strings.CutPrefix(target, strings.TrimSuffix(dir, string(filepath.Separator)))
		if inside && (rest == "" || os.IsPathSeparator(rest[0])) {
			return s.base, rest, true
		}
	}
	return "", "", false
}

func (s *scan) lstat(path string) (fs.FileInfo, error) {
	if s.top == nil {
		return os.Lstat(path)
	}
	info, err := s.top.Lstat(s.inside(path))
	return info, withPath("lstat", path, err)
}

func (s *scan) readlink(path string) (string, error) {
	if s.top == nil {
		return os.Readlink(path)
	}
	target, err := s.top.Readlink(s.inside(path))
	return target, withPath("readlink", path, err)
}

// inside returns path, which begins with base, relative to base.
func (s *scan) inside(path string) string {
	rel := strings.TrimPrefix(strings.TrimPrefix(path, s.base), string(filepath.Separator))
	if rel == "" {
		return "."
	}
	return rel
}

// withPath returns err, of an operation beneath top, with the whole path.
func withPath(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: cause(err)}
}

// cause returns err without the operation and the path.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
