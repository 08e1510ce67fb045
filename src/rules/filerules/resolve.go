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

// missingError is the error for a path of which a part does not exist.
type missingError struct{ path string }

func (e *missingError) Error() string { return e.path + " does not exist" }

// resolve follows path, below the directory dir, through all links in it, and
// tells need of each name on the way. dir has no links in it, nor has plain.
// This is filepath.EvalSymlinks, but that keeps the way to itself.
//
// The error is a *missingError if a name does not exist.
func (s *scan) resolve(dir, path string) (plain string, info fs.FileInfo, err error) {
	names := strings.Split(path, string(filepath.Separator))
	links := 0
	plain = dir
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			plain, info = filepath.Dir(plain), nil
			continue
		}
		s.need(plain, name)
		next := filepath.Join(plain, name)
		info, err = os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", nil, &missingError{next}
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
		target, err := os.Readlink(next)
		if err != nil {
			return "", nil, err
		}
		target = filepath.FromSlash(target)
		if filepath.IsAbs(target) {
			top := filepath.VolumeName(target) + string(filepath.Separator)
			plain, target = top, target[len(top):]
		}
		names, info = append(strings.Split(target, string(filepath.Separator)), names...), nil
	}
	if info == nil {
		info, err = os.Lstat(plain)
	}
	return plain, info, err
}

// cause is err without the operation and the path, for messages that name the
// path themselves.
func cause(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
