package filerules

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"ratelimit/src/rules"
	"ratelimit/src/rules/loading"
	"ratelimit/src/rules/reload"
)

// limits bound the memory and time that a directory named by mistake, such as /, can cost.
type limits struct {
	fileBytes int64 // of one file
	allBytes  int64 // of all files
	entries   int   // names in all directories
	depth     int   // of nested directories
}

var defaultLimits = limits{fileBytes: 64 << 20, allBytes: 256 << 20, entries: 100_000, depth: 50}

// Read reads the rule files of a directory and of all directories in it, in the order of their paths: files named *.yaml, *.yml,
// *.ini or *.json, and files without a suffix that have a `domain`. It skips names that begin with two dots (Kubernetes keeps its
// copies there), the locks and backups of editors and, with ignoreDotFiles, all names that begin with one dot. If path is a file,
// Read reads that file alone, whatever its name.
//
// Each part of path may be a link to anywhere. A link in the directory is followed if it stays inside; a link that leads outside
// is a problem.
//
// The names of the files begin with path as given. The error is [rules.Problems] with all that cannot be read; Read returns the
// other files with it. The warnings name skipped files that may have been meant as rules.
func Read(path string, ignoreDotFiles bool) (files []loading.File, warnings rules.Problems, err error) {
	s := scan{
		ctx:            context.Background(),
		ignoreDotFiles: ignoreDotFiles,
		allowFile:      true,
		reader:         plainReader,
		elsewhere:      "name another one",
		limits:         defaultLimits,
		watch:          func(string, string) {},
	}
	s.run(path)
	if len(s.problems) > 0 {
		err = s.problems
	}
	return filesOf(s.files), s.warnings(), err
}

func filesOf(parts []reload.Part) []loading.File {
	files := make([]loading.File, 0, len(parts))
	for _, p := range parts {
		files = append(files, loading.File{Name: p.Name, Data: p.Data})
	}
	return files
}

// plainReader reads what the file holds; tests replace it.
func plainReader(f *os.File) io.Reader { return f }

// scan reads a directory once.
type scan struct {
	ctx            context.Context // the scan stops when it ends
	ignoreDotFiles bool
	reader         func(*os.File) io.Reader
	allowFile      bool   // the path may be that of a file
	onlyFile       bool   // the path must be that of a file
	elsewhere      string // how to name another directory
	limits         limits
	// watch is called before each read, with the directory and the name that the outcome depends on; the name "" is any that may
	// belong to rules. dir has no links in it.
	watch func(dir, name string)
	// avoid are the places where earlier scans hang. The scan stops at the first of them.
	avoid []*place
	// timeout is how long the Watcher waited for the earlier scans.
	timeout time.Duration
	// where is what the scan reads now; other goroutines may load it.
	where atomic.Pointer[place]
	ended atomic.Bool // run has returned

	root     string   // the directory as the user named it
	base     string   // its path without links
	given    string   // root made absolute
	top      *os.Root // base opened; nil until it is found
	files    []reload.Part
	problems rules.Problems
	ignored  []string // names that are not those of rule files
	walked   []string // directories being walked, without links, outermost first
	entries  int
	bytes    int64
	stopped  bool // at a limit, or at a place that hangs
}

// place is a name that a scan reads, or the file or directory behind it.
type place struct {
	path string      // has no links in it
	info fs.FileInfo // nil: the name only
}

// same returns whether a read of b hangs if one of a does. A file that replaced another under the same name is not the same.
func (a *place) same(b *place) bool {
	if a.path != b.path || a.info == nil || b.info == nil {
		return a.path == b.path && a.info == nil && b.info == nil
	}
	return os.SameFile(a.info, b.info)
}

// hangs returns the problem of a place that was not read in time.
func (a *place) hangs(timeout time.Duration) rules.Problem {
	return rules.Problem{
		Pos:  rules.Pos{File: a.path},
		What: fmt.Sprintf("was still being read after %v", timeout),
		Fix:  "check its file system (NFS, FUSE), replace it, or raise RUNTIME_READ_TIMEOUT",
	}
}

// errStopped is returned after the scan has recorded the problem that stopped it.
var errStopped = errors.New("the scan was stopped")

// enter records what is read next. If an earlier scan hangs there, the scan stops with the same problem as that one, and enter
// returns errStopped.
func (s *scan) enter(path string, info fs.FileInfo) error {
	here := &place{path, info}
	s.where.Store(here)
	if slices.ContainsFunc(s.avoid, here.same) {
		s.files, s.problems, s.stopped = nil, rules.Problems{here.hangs(s.timeout)}, true
		return errStopped
	}
	return nil
}

// run reads everything below path.
func (s *scan) run(path string) {
	s.root = filepath.Clean(path)
	abs, err := filepath.Abs(path)
	if err != nil {
		s.problem(s.root, "give the whole path", "the current directory is unknown: %v", err)
		return
	}
	volume := filepath.VolumeName(abs) + string(filepath.Separator)
	plain, info, err := s.resolve(volume, abs[len(volume):])
	switch {
	case errors.Is(err, errStopped):
	case errors.Is(err, errMissing):
		s.problem(s.root, "create it, or "+s.elsewhere, "%v", err)
	case err != nil:
		s.problem(s.root, howToFix(err)+", or "+s.elsewhere, "cannot be read: %v", err)
	case info.IsDir() && s.onlyFile:
		s.problem(s.root, s.elsewhere, "is a directory, not a file")
	case info.IsDir():
		s.given = abs
		if s.openRoot(plain, info) {
			defer func() { _ = s.top.Close() }() // it is only read
			s.walk(plain, s.root, info)
		}
	case s.allowFile: // its directory need not be readable
		s.read(plain, s.root, info)
	default:
		s.problem(s.root, s.elsewhere, "is %s, not a directory", kindOf(info.Mode()))
	}
	slices.SortFunc(s.files, func(a, b reload.Part) int { return strings.Compare(a.Name, b.Name) })
}

// openRoot opens the directory base, a path without links, as top. From then on nothing outside base can be read. It returns
// false after recording a problem.
func (s *scan) openRoot(base string, info fs.FileInfo) bool {
	if s.enter(base, info) != nil {
		return false
	}
	top, err := os.OpenRoot(base)
	if err != nil {
		s.problem(s.root, howToFix(err), "cannot be listed: %v", cause(err))
		return false
	}
	s.top, s.base = top, base
	return true
}

// walk reads the directory dir, a path without links, which problems call shown.
func (s *scan) walk(dir, shown string, info fs.FileInfo) {
	if slices.Contains(s.walked, dir) {
		s.problem(shown, "remove the link", "the link leads back to %s, which it is in", dir)
		return
	}
	if len(s.walked) == s.limits.depth {
		s.problem(shown, "use fewer levels", "directories are nested more than %d levels deep", s.limits.depth)
		return
	}
	s.walked = append(s.walked, dir)
	defer func() { s.walked = s.walked[:len(s.walked)-1] }()
	if s.enter(dir, info) != nil {
		return
	}
	s.watch(dir, "")
	entries, err := s.list(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // it was deleted just now
		s.problem(shown, howToFix(err), "cannot be listed: %v", cause(err))
	}
	for _, e := range entries {
		if skipped(e.Name(), s.ignoreDotFiles) {
			continue
		}
		if s.stopped || s.ctx.Err() != nil {
			return
		}
		if s.entries++; s.entries > s.limits.entries {
			s.stopped = true
			s.problem(s.root, s.elsewhere, "holds more than %d files and directories", s.limits.entries)
			return
		}
		s.entry(dir, e, filepath.Join(shown, e.Name()))
	}
}

// list returns the entries of a directory, sorted by name.
func (s *scan) list(dir string) ([]fs.DirEntry, error) {
	d, err := s.open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // it is only read
	entries, err := d.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// open opens a file or directory to read it. It does not block if a pipe has just replaced the file.
func (s *scan) open(path string) (*os.File, error) {
	const flags = os.O_RDONLY | syscall.O_NONBLOCK
	if s.top == nil {
		return os.OpenFile(path, flags, 0)
	}
	return s.top.OpenFile(s.inside(path), flags, 0)
}

// entry reads one name in the directory dir.
func (s *scan) entry(dir string, e fs.DirEntry, shown string) {
	link := e.Type()&fs.ModeSymlink != 0
	if !link && !e.IsDir() && !isRuleFile(e.Name()) && !mayHoldRules(e.Name()) {
		s.ignored = append(s.ignored, e.Name())
		return
	}
	plain, info, err := s.resolve(dir, e.Name())
	switch {
	case errors.Is(err, errStopped):
	case errors.Is(err, errOutside) && !isRuleFile(e.Name()) && holdsNoRules(e.Name()):
	case errors.Is(err, errOutside):
		s.problem(shown, "put the file or directory itself here", "%v", err)
	case errors.Is(err, errMissing) && !link: // was deleted after it was listed
	case errors.Is(err, errMissing):
		s.problem(shown, "fix the link or remove it", "the link leads nowhere: %v", err)
	case err != nil:
		s.problem(shown, howToFix(err)+", or remove it", "cannot be read: %v", err)
	case info.IsDir():
		s.walk(plain, shown, info)
	case mayHoldRules(e.Name()):
		s.readIfRules(plain, shown, info)
	case !isRuleFile(e.Name()):
		s.ignored = append(s.ignored, e.Name())
	default:
		s.read(plain, shown, info)
	}
}

// readIfRules reads a file without a suffix if it has a domain in its first 64 KiB, and ignores it otherwise.
func (s *scan) readIfRules(path, shown string, info fs.FileInfo) {
	if info.Mode().IsRegular() {
		if s.enter(path, info) != nil {
			return
		}
		if head, _, err := s.content(path, 64<<10); err == nil && domainKey.Match(head) {
			s.read(path, shown, info)
			return
		}
	}
	s.ignored = append(s.ignored, filepath.Base(shown))
}

// content returns at most so many bytes of a file, and none of what is not a regular file.
func (s *scan) content(path string, most int64) (data []byte, info fs.FileInfo, err error) {
	f, err := s.open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }() // it is only read
	if info, err = f.Stat(); err == nil && info.Mode().IsRegular() {
		data, err = io.ReadAll(io.LimitReader(s.reader(f), most))
	}
	return data, info, err
}

// domainKey finds the domain, which each YAML rule file has.
var domainKey = regexp.MustCompile(`(?m)^[ \t{]*["']?domain["']?[ \t]*:`)

// read reads one file.
func (s *scan) read(path, shown string, info fs.FileInfo) {
	if !s.isFile(shown, info) {
		return
	}
	if info.Size() > s.limits.fileBytes {
		s.tooLarge(shown)
		return
	}
	if s.enter(path, info) != nil {
		return
	}
	data, info, err := s.content(path, min(s.limits.fileBytes, s.limits.allBytes-s.bytes)+1)
	s.bytes += int64(len(data))
	switch {
	case errors.Is(err, fs.ErrNotExist): // it was deleted just now
	case err != nil:
		s.problem(shown, howToFix(err), "cannot be read: %v", cause(err))
	case !s.isFile(shown, info): // it was replaced just now
	case s.bytes > s.limits.allBytes:
		s.stopped = true
		s.problem(s.root, "remove files that hold no rules, or "+s.elsewhere, "the files are larger than %d MiB together", s.limits.allBytes>>20)
	case int64(len(data)) > s.limits.fileBytes: // it grew just now
		s.tooLarge(shown)
	default:
		s.files = append(s.files, reload.Part{Name: shown, Data: data})
	}
}

// isFile records a problem if info is not that of a regular file.
func (s *scan) isFile(shown string, info fs.FileInfo) bool {
	if !info.Mode().IsRegular() {
		s.problem(shown, "put a file in its place, or remove it", "is %s, not a file", kindOf(info.Mode()))
	}
	return info.Mode().IsRegular()
}

func (s *scan) tooLarge(shown string) {
	s.problem(shown, "remove it if it does not hold rules, or split it", "is larger than %d MiB", s.limits.fileBytes>>20)
}

func (s *scan) problem(file, fix, format string, args ...any) {
	s.problems.Add(rules.Pos{File: file}, fix, format, args...)
}
