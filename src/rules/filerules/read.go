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
)

// limits keep a directory that was named by mistake, such as /, from taking
// all memory or time.
type limits struct {
	fileBytes int64 // of one file
	allBytes  int64 // of all files
	entries   int   // names looked at, in all directories
	depth     int   // directories within directories
}

var defaultLimits = limits{fileBytes: 64 << 20, allBytes: 256 << 20, entries: 100_000, depth: 50}

// Read reads the rule files of a directory, and of all directories in it: those
// named *.yaml, *.yml, *.ini or *.json, and those without a suffix that have a
// `domain`, in the order of their paths. Names that
// begin with two dots are passed over (Kubernetes keeps its copies there), and so
// are the locks and backups of editors; with ignoreDotFiles, all that begin with
// one dot. If path is a file it alone is read, whatever its name.
//
// Each part of path may be a link to anywhere. Links in the directory are followed
// as long as they stay in it; one that leads outside is a problem. The files are
// opened beneath the directory ([os.Root]), so a link that appears between the
// check and the opening leads nowhere else either.
//
// The names of the files begin with path, as it was given. The error is
// [rules.Problems] with all that cannot be read; the files that can be read are
// returned with it. The warnings name files that may have been meant as rules.
func Read(path string, ignoreDotFiles bool) (files []loading.File, warnings rules.Problems, err error) {
	s := scan{
		ctx:            context.Background(),
		ignoreDotFiles: ignoreDotFiles,
		fileToo:        true,
		reader:         contents,
		elsewhere:      "name another one",
		limits:         defaultLimits,
		need:           func(string, string) {},
	}
	s.run(path)
	if len(s.problems) > 0 {
		err = s.problems
	}
	return s.files, s.warnings(), err
}

// contents is what a file says.
func contents(f *os.File) io.Reader { return f }

// scan is one reading of a directory.
type scan struct {
	ctx            context.Context // a scan stops when it ends
	ignoreDotFiles bool
	reader         func(*os.File) io.Reader // what a file says
	fileToo        bool                     // the path may be that of a file
	onlyFile       bool                     // and of nothing else
	elsewhere      string                   // what to do about a missing directory but create it
	limits         limits
	// need is told what the outcome depends on, always before it is looked
	// at: a name in a directory, or with "" any name that may belong to rules.
	// The directory's path has no links in it.
	need func(dir, name string)
	// avoid are places where earlier scans hang. A scan that comes to one stops.
	avoid []*place
	// timeout is how long those scans were waited for.
	timeout time.Duration
	// where is what is being looked at; other goroutines may read it.
	where atomic.Pointer[place]

	root     string   // as the user knows it
	base     string   // the same directory, by its path without links
	given    string   // the same directory, by its path as given, made absolute
	top      *os.Root // the same directory; nil until it was found
	files    []loading.File
	problems rules.Problems
	ignored  []string // names that are not those of rule files
	walked   []string // the directories being walked, without links, outermost first
	entries  int
	bytes    int64
	stopped  bool // a limit was met, or a file system hangs
}

// place is what a scan looks at: a name, or the file or directory behind it.
type place struct {
	path string      // has no links in it
	info fs.FileInfo // nil: of the name only
}

// same reports whether a read of b hangs if one of a does. A file that has
// replaced another under the same name is not the same.
func (a *place) same(b *place) bool {
	if a.path != b.path || a.info == nil || b.info == nil {
		return a.path == b.path && a.info == nil && b.info == nil
	}
	return os.SameFile(a.info, b.info)
}

// errStopped is the error after enter has told the problem.
var errStopped = errors.New("the scan was stopped")

// enter says what is looked at next. If an earlier scan hangs there it returns
// errStopped, and this scan has the same one problem as that.
func (s *scan) enter(path string, info fs.FileInfo) error {
	here := &place{path, info}
	s.where.Store(here)
	if slices.ContainsFunc(s.avoid, here.same) {
		s.files, s.problems, s.stopped = nil, rules.Problems{here.hangs(s.timeout)}, true
		return errStopped
	}
	return nil
}

// hangs is the problem with a place that was not read in time.
func (a *place) hangs(timeout time.Duration) rules.Problem {
	return rules.Problem{
		Pos:  rules.Pos{File: a.path},
		What: fmt.Sprintf("was still being read after %v", timeout),
		Fix:  "check its file system (NFS, FUSE), replace it, or raise RUNTIME_READ_TIMEOUT",
	}
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
	var missing *missingError
	switch {
	case errors.Is(err, errStopped):
	case errors.As(err, &missing):
		s.problem(s.root, "create it, or "+s.elsewhere, "%v", err)
	case err != nil:
		s.problem(s.root, mend(err)+", or "+s.elsewhere, "cannot be read: %v", err)
	case info.IsDir() && s.onlyFile:
		s.problem(s.root, s.elsewhere, "is a directory, not a file")
	case info.IsDir():
		s.given = abs
		s.beneath(plain, info, func() { s.walk(plain, s.root, info) })
	case s.fileToo: // its directory need not be readable
		s.read(plain, s.root, info)
	default:
		s.problem(s.root, s.elsewhere, "is %s, not a directory", kind(info.Mode()))
	}
	slices.SortFunc(s.files, func(a, b loading.File) int { return strings.Compare(a.Name, b.Name) })
}

// beneath calls f, in which nothing outside the directory base, a path without
// links, can be read.
func (s *scan) beneath(base string, info fs.FileInfo, f func()) {
	if s.enter(base, info) != nil {
		return
	}
	top, err := os.OpenRoot(base)
	if err != nil {
		s.problem(s.root, mend(err), "cannot be listed: %v", cause(err))
		return
	}
	defer func() { _ = top.Close() }() // nothing to lose: it is only read
	s.top, s.base = top, base
	f()
}

// walk reads the directory dir, a path without links, known to the user as
// shown.
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
	s.need(dir, "")
	entries, err := s.list(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // if gone, it went just now
		s.problem(shown, mend(err), "cannot be listed: %v", cause(err))
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

// list returns what is in a directory, sorted by name.
func (s *scan) list(dir string) ([]fs.DirEntry, error) {
	d, err := s.open(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // nothing to lose: it is only read
	entries, err := d.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// open opens a file or directory to read it. Had a pipe taken its place just now, a
// plain open would block.
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
	if !link && !e.IsDir() && !isRuleFile(e.Name()) && !hasNoSuffix(e.Name()) {
		s.ignored = append(s.ignored, e.Name())
		return
	}
	plain, info, err := s.resolve(dir, e.Name())
	var missing *missingError
	var outside *outsideError
	switch {
	case errors.Is(err, errStopped):
	case errors.As(err, &outside) && !isRuleFile(e.Name()) && isBystander(e.Name()):
	case errors.As(err, &outside):
		s.problem(shown, "put the file or directory itself here", "%v", err)
	case errors.As(err, &missing) && !link: // was deleted after it was listed
	case errors.As(err, &missing):
		s.problem(shown, "fix the link or remove it", "the link leads nowhere: %v", err)
	case err != nil:
		s.problem(shown, mend(err)+", or remove it", "cannot be read: %v", err)
	case info.IsDir():
		s.walk(plain, shown, info)
	case hasNoSuffix(e.Name()):
		s.readIfRules(plain, shown, info)
	case !isRuleFile(e.Name()):
		s.ignored = append(s.ignored, e.Name())
	default:
		s.read(plain, shown, info)
	}
}

// readIfRules reads a file without a suffix if it has a domain in its first 64 KiB.
// What is wrong with another one is no problem.
func (s *scan) readIfRules(path, shown string, info fs.FileInfo) {
	if info.Mode().IsRegular() && s.enter(path, info) != nil {
		return
	}
	if !info.Mode().IsRegular() || !s.hasDomain(path) {
		s.ignored = append(s.ignored, filepath.Base(shown))
		return
	}
	s.read(path, shown, info)
}

func (s *scan) hasDomain(path string) bool {
	f, err := s.open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // nothing to lose: it is only read
	const enough = 64 << 10
	head, err := io.ReadAll(io.LimitReader(s.reader(f), enough))
	return err == nil && domainKey.Match(head)
}

// domainKey finds what each YAML file of rules has.
var domainKey = regexp.MustCompile(`(?m)^[ \t{]*["']?domain["']?[ \t]*:`)

// read reads one file.
func (s *scan) read(path, shown string, info fs.FileInfo) {
	if !info.Mode().IsRegular() {
		s.problem(shown, "put a file in its place, or remove it", "is %s, not a file", kind(info.Mode()))
		return
	}
	if info.Size() > s.limits.fileBytes {
		s.tooLarge(shown)
		return
	}
	if s.enter(path, info) != nil {
		return
	}
	f, err := s.open(path)
	if errors.Is(err, fs.ErrNotExist) { // went just now
		return
	}
	if err != nil {
		s.problem(shown, mend(err), "cannot be read: %v", cause(err))
		return
	}
	defer func() { _ = f.Close() }() // nothing to lose: it is only read
	if info, err = f.Stat(); err == nil && !info.Mode().IsRegular() {
		s.problem(shown, "put a file in its place, or remove it", "is %s, not a file", kind(info.Mode()))
		return
	}
	var data []byte
	if err == nil {
		data, err = io.ReadAll(io.LimitReader(s.reader(f), min(s.limits.fileBytes, s.limits.allBytes-s.bytes)+1))
	}
	s.bytes += int64(len(data))
	switch {
	case err != nil:
		s.problem(shown, mend(err), "cannot be read: %v", cause(err))
	case s.bytes > s.limits.allBytes:
		s.stopped = true
		s.problem(s.root, "remove what are not rules, or "+s.elsewhere, "the files are larger than %d MiB together", s.limits.allBytes>>20)
	case int64(len(data)) > s.limits.fileBytes: // grew just now
		s.tooLarge(shown)
	default:
		s.files = append(s.files, loading.File{Name: shown, Data: data})
	}
}

func (s *scan) tooLarge(shown string) {
	s.problem(shown, "remove it if it does not hold rules, or split it", "is larger than %d MiB", s.limits.fileBytes>>20)
}

func (s *scan) problem(file, mend, format string, args ...any) {
	s.problems = append(s.problems, rules.Problem{
		Pos: rules.Pos{File: file}, What: fmt.Sprintf(format, args...), Fix: mend,
	})
}

// warnings names the files that were not read but may have been meant:
// envoyproxy/ratelimit reads every file, whatever its name.
func (s *scan) warnings() rules.Problems {
	const most = 5
	names := slices.DeleteFunc(slices.Clone(s.ignored), isBystander)
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

// skipped reports whether a name is passed over, be it that of a file, a
// directory or a link.
func skipped(name string, ignoreDotFiles bool) bool {
	return strings.HasPrefix(name, "..") || // Kubernetes: ..data, ..2026_10_01_12_00_00.123
		strings.HasPrefix(name, ".#") || // Emacs: a lock, which is a link that leads nowhere
		strings.HasSuffix(name, "~") ||
		name == "lost+found" || // for root only, on every ext4 volume
		ignoreDotFiles && strings.HasPrefix(name, ".")
}

// hasNoSuffix reports whether a file may hold rules though its name does not say so:
// envoyproxy/ratelimit reads every file.
func hasNoSuffix(name string) bool { return !strings.Contains(name, ".") && !isBystander(name) }

func isRuleFile(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".ini", ".json":
		return true
	}
	return false
}

// isBystander reports whether a file is of a kind that is found beside rules
// but holds none.
func isBystander(name string) bool {
	switch strings.ToLower(filepath.Ext(name)) {
	case ".md", ".txt", ".bak", ".orig", ".old", ".tmp", ".swp", ".swo":
		return true
	}
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") ||
		strings.HasPrefix(name, "README") || strings.HasPrefix(name, "LICENSE")
}

// mend is what to do about err.
func mend(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return "let the user of this process read it (chmod a+r a file, a+rx the directories above it)"
	}
	return "fix the path, or the disk"
}

// kind names what is neither a file nor a directory, for messages.
func kind(m fs.FileMode) string {
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
