package filerules

import (
	"bytes"
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
	"ratelimit/src/rules/datafile"
	"ratelimit/src/rules/reload"
)

// scanLimits bound the memory and time that a directory named by mistake, such as /, can cost.
type scanLimits struct {
	maxFileBytes  int64
	maxTotalBytes int64 // the most bytes that all files may have together
	maxDirEntries int   // the most files and directories in all directories together
	maxDirDepth   int
}

var defaultScanLimits = scanLimits{
	maxFileBytes: 64 << 20, maxTotalBytes: 256 << 20, maxDirEntries: 100_000,
	maxDirDepth: 50,
}

// Read reads the rule files of a directory and of all directories in it, in the order of their paths: files named
// *.yaml, *.yml, *.ini or *.json, and files without a suffix that have a `domain`. It skips names that start with two
// dots, where Kubernetes keeps copies, and the locks and backups of editors. If path is a file, Read reads that file
// alone, whatever its name.
//
// Each part of path may be a link to anywhere. A link in the directory is followed to a file anywhere, and to a
// directory inside.
//
// The names of the files start with path as given. The error is [rules.Problems] with all that cannot be read; Read
// returns the other files with it. The warnings name what is left out beside good files: files that may have been meant
// as rules, and links that lead nowhere, or to a directory outside. If there are no rule files beside these, they are
// problems, and so are backups and texts, such as rules.yaml.bak and rules.txt.
func Read(path string) (files []File, warnings rules.Problems, err error) {
	s := newDirScan(context.Background(), Config{Path: path, AllowFile: true, ElsewhereAdvice: "name another one"})
	s.readAll()
	s.parseDataFiles()
	problems, warnings := s.findings(nil)
	if len(problems) > 0 {
		err = problems
	}
	return s.files, warnings, err
}

// dirScan reads the directory of the rules once.
type dirScan struct {
	cfg           Config
	ctx           context.Context // When ctx ends, the scan stops.
	pacer         datafile.Pacer  // for data files
	limits        scanLimits      // Tests lower limits and dataLimits.
	dataLimits    dataLimits
	knownData     dataCache                // what an earlier scan found out about data files
	contentReader func(*os.File) io.Reader // returns the reader of a file's contents. Tests replace it.
	// events watches each name before it is read; nil if the scan is not for a Watcher.
	events *events
	// avoidedPlaces are the places where earlier scans hang. The scan stops at the first of them.
	avoidedPlaces []*scannedPlace
	// currentPlace is the place that the scan reads now; other goroutines may load it.
	currentPlace atomic.Pointer[scannedPlace]
	hasReturned  atomic.Bool // set when readAll has returned

	basePath          string   // the path of the directory of the rules without links
	basePathWithLinks string   // the absolute path of that directory as the user named it
	openedBase        *os.Root // nil until data files are read. From then on nothing outside that directory can be read
	files             []File
	data              *dataScan // the data files; nil if the rule files were not read
	problems          rules.Problems
	skippedLinks      rules.Problems // the links that are not followed
	ignoredNames      []string       // the names of files that are not read, because of their suffixes
	enclosingDirs     []string       // the directories that readDir is in, outermost first, as paths without links
	entryCount        int            // files and directories so far
	totalBytes        int64          // of all files so far
	isStopped         bool           // set when a limit is exceeded, and at an avoided place
}

func newDirScan(ctx context.Context, cfg Config) *dirScan {
	cfg.Path = filepath.Clean(cfg.Path)
	return &dirScan{
		cfg: cfg, ctx: ctx, limits: defaultScanLimits, dataLimits: defaultDataLimits,
		contentReader: func(f *os.File) io.Reader { return f },
	}
}

// scannedPlace is a name that a scan reads, or the file or directory behind it.
type scannedPlace struct {
	path string      // no links in it
	info fs.FileInfo // nil if the place is a name that was not looked up
}

// hangsLike returns whether a read of place b hangs if one of place a does. A file that replaced another under the same
// name does not.
func (a *scannedPlace) hangsLike(b *scannedPlace) bool {
	if a.path != b.path || a.info == nil || b.info == nil {
		return a.path == b.path && a.info == nil && b.info == nil
	}
	return os.SameFile(a.info, b.info)
}

// timeoutProblem returns the problem of a place that was not read in time.
func (a *scannedPlace) timeoutProblem(timeout time.Duration) rules.Problem {
	return rules.Problem{
		Pos:     rules.Pos{File: a.path},
		Message: fmt.Sprintf("was still being read after %v", timeout),
		Fix:     "check its file system (NFS, FUSE), replace it, or raise RUNTIME_READ_TIMEOUT",
	}
}

// errStopped is returned after the scan has recorded the problem that stopped it.
var errStopped = errors.New("the scan was stopped")

// enterPlace records what is read next. If an earlier scan hangs there, the scan stops with the same problem as that
// one, and enterPlace returns errStopped.
func (s *dirScan) enterPlace(path string, info fs.FileInfo) error {
	next := &scannedPlace{path, info}
	s.currentPlace.Store(next)
	if slices.ContainsFunc(s.avoidedPlaces, next.hangsLike) {
		s.files, s.problems, s.isStopped = nil, rules.Problems{next.timeoutProblem(s.cfg.ReadTimeout)}, true
		return errStopped
	}
	return nil
}

// readAll reads everything below the path of the rules.
func (s *dirScan) readAll() {
	shown := s.cfg.Path
	abs, err := filepath.Abs(shown)
	if err != nil {
		s.addProblem(shown, "give the whole path", "the current directory is unknown: %v", err)
		return
	}
	defer func() {
		if s.openedBase != nil {
			_ = s.openedBase.Close()
		}
	}()
	if s.cfg.ReadSiblings {
		s.readSiblings(abs)
	}
	hasSiblings := len(s.files) > 0
	path, info, err := s.resolveAbsolute(abs)
	switch {
	case errors.Is(err, errStopped), errors.Is(err, errNameMissing) && s.cfg.AllowMissing && !hasSiblings:
	case errors.Is(err, errNameMissing) && hasSiblings:
		s.readDataFiles(filepath.Dir(shown), filepath.Dir(abs))
	case errors.Is(err, errNameMissing):
		s.addProblem(shown, "create it, or "+s.cfg.ElsewhereAdvice, "%v", err)
	case err != nil:
		s.addProblem(shown, howToFix(err)+", or "+s.cfg.ElsewhereAdvice, "cannot be read: %v", err)
	case info.IsDir() && s.cfg.OnlyFile:
		s.addProblem(shown, s.cfg.ElsewhereAdvice, "is a directory, not a file")
	case info.IsDir():
		s.basePath = path
		s.readDir(path, shown, info)
		s.sortFiles()
		s.readDataFiles(shown, abs)
	case s.cfg.AllowFile, s.cfg.OnlyFile: // The directory of the file need not be readable, unless data files are in it.
		s.readFile(path, shown, info)
		s.readDataFiles(filepath.Dir(shown), filepath.Dir(abs))
	default:
		s.addProblem(shown, s.cfg.ElsewhereAdvice, "is %s, not a directory", fileTypeNames[info.Mode().Type()])
	}
}

// readSiblings reads the files and directories beside the directory of the rules, abs, whose names begin with its name
// and a dot.
func (s *dirScan) readSiblings(abs string) {
	dir, info, err := s.resolveAbsolute(filepath.Dir(abs))
	if err != nil || s.enterPlace(dir, info) != nil {
		return // Resolving abs finds the same problem.
	}
	prefix := filepath.Base(abs) + "."
	s.events.watchPrefix(dir, prefix)
	entries, err := s.listDir(dir)
	if err != nil {
		return // The directory of the rules can be readable all the same.
	}
	s.basePath = dir
	s.readEntries(dir, filepath.Dir(s.cfg.Path),
		slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return !strings.HasPrefix(e.Name(), prefix) }))
	s.sortFiles()
}

func (s *dirScan) sortFiles() {
	slices.SortFunc(s.files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
}

// parseDataFiles parses the data files after readAll. It returns what the next scan need not parse.
func (s *dirScan) parseDataFiles() dataCache {
	if s.data == nil {
		return s.knownData
	}
	return s.data.parse(&s.knownData)
}

// readDir reads the directory dir, a path without links. Problems call it shown.
func (s *dirScan) readDir(dir, shown string, info fs.FileInfo) {
	if slices.Contains(s.enclosingDirs, dir) {
		s.skipLink(shown, "remove the link", "the link leads back to %s, which it is in", rules.Shorten(dir))
		return
	}
	if len(s.enclosingDirs) == s.limits.maxDirDepth {
		s.addProblem(shown, "use fewer levels", "directories are nested more than %d levels deep", s.limits.maxDirDepth)
		return
	}
	s.enclosingDirs = append(s.enclosingDirs, dir)
	defer func() { s.enclosingDirs = s.enclosingDirs[:len(s.enclosingDirs)-1] }()
	if s.enterPlace(dir, info) != nil {
		return
	}
	s.events.watchPrefix(dir, "")
	entries, err := s.listDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // The directory may have been deleted just now.
		s.addProblem(shown, howToFix(err), "cannot be listed: %v", errorWithoutPath(err))
	}
	s.readEntries(dir, shown, entries)
}

// readEntries reads names in the directory dir, a path without links. Problems call it shown.
func (s *dirScan) readEntries(dir, shown string, entries []fs.DirEntry) {
	for _, e := range entries {
		if isSkippedName(e.Name(), s.cfg.IgnoreDotFiles) {
			if isBackup(e.Name()) && e.Type().IsRegular() {
				s.ignoredNames = append(s.ignoredNames, e.Name())
			}
			continue
		}
		if s.isStopped || s.ctx.Err() != nil {
			return
		}
		if s.entryCount++; s.entryCount > s.limits.maxDirEntries {
			s.isStopped = true
			s.addProblem(s.cfg.Path, s.cfg.ElsewhereAdvice, "holds more than %d files and directories", s.limits.maxDirEntries)
			return
		}
		s.readEntry(dir, e, filepath.Join(shown, e.Name()))
	}
}

// listDir returns the names in a directory, in alphabetical order.
func (s *dirScan) listDir(dir string) ([]fs.DirEntry, error) {
	d, err := s.openFile(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }()
	entries, err := d.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

// openFile opens a file or directory to read it. It does not block if a pipe has just replaced the file.
func (s *dirScan) openFile(path string) (*os.File, error) {
	const flags = os.O_RDONLY | syscall.O_NONBLOCK
	if s.openedBase == nil {
		return os.OpenFile(path, flags, 0)
	}
	return s.openedBase.OpenFile(s.pathInsideBase(path), flags, 0)
}

// readEntry reads one name in the directory dir.
func (s *dirScan) readEntry(dir string, e fs.DirEntry, shown string) {
	name, isLink := e.Name(), e.Type()&fs.ModeSymlink != 0
	if !isLink && !e.IsDir() && !isRuleFile(name) && !mayHoldRules(name) {
		s.ignoredNames = append(s.ignoredNames, name)
		return
	}
	path, info, err := s.resolveLinks(dir, name)
	switch {
	case errors.Is(err, errStopped):
	case errors.Is(err, errNameMissing) && !isLink: // The name was deleted after it was listed.
	case leadsNowhere(err) && !isRuleFile(name) && holdsNoRules(name):
	case leadsNowhere(err):
		s.skipLink(shown, "fix the link or remove it", "the link leads nowhere: %v", err)
	case err != nil:
		s.addProblem(shown, howToFix(err)+", or remove it", "cannot be read: %v", err)
	case info.IsDir() && isLink && !isInside(path, s.basePath):
		s.skipLink(shown, "put the directory itself here, or link its files",
			"the link leads to the directory %s, which is outside of %s", rules.Shorten(path), s.basePath)
	case info.IsDir():
		s.readDir(path, shown, info)
	case isRuleFile(name), mayHoldRules(name) && s.hasDomain(path, info):
		s.readFile(path, shown, info)
	case !s.isStopped:
		s.ignoredNames = append(s.ignoredNames, name)
	}
}

// domainKeyPattern matches the key of the domain, which each YAML rule file has.
var domainKeyPattern = regexp.MustCompile(`(?m)^[ \t{]*["']?domain["']?[ \t]*:`)

// hasDomain returns whether a file has a domain in its first 64 KiB.
func (s *dirScan) hasDomain(path string, info fs.FileInfo) bool {
	if !info.Mode().IsRegular() || s.enterPlace(path, info) != nil {
		return false
	}
	start, _, err := s.fileContent(path, 64<<10)
	return err == nil && domainKeyPattern.Match(start)
}

// fileContent returns the first maxBytes bytes of a file, and no bytes of a pipe, a socket or a device.
func (s *dirScan) fileContent(path string, maxBytes int64) (data []byte, mode fs.FileMode, err error) {
	f, err := s.openFile(path)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	var content bytes.Buffer
	if info.Mode().IsRegular() {
		content.Grow(int(min(info.Size(), maxBytes)) + bytes.MinRead)
		_, err = content.ReadFrom(io.LimitReader(s.contentReader(f), maxBytes))
	}
	return content.Bytes(), info.Mode(), err
}

func (s *dirScan) readFile(path, shown string, info fs.FileInfo) {
	if !s.acceptsFile(shown, info.Mode(), info.Size()) || s.enterPlace(path, info) != nil {
		return
	}
	data, mode, err := s.fileContent(path, min(s.limits.maxFileBytes, s.limits.maxTotalBytes-s.totalBytes)+1)
	s.totalBytes += int64(len(data))
	switch {
	case errors.Is(err, fs.ErrNotExist): // The file was deleted just now.
	case err != nil:
		s.addProblem(shown, howToFix(err), "cannot be read: %v", errorWithoutPath(err))
	case s.totalBytes > s.limits.maxTotalBytes:
		s.isStopped = true
		s.addProblem(s.cfg.Path, "remove files that hold no rules, or "+s.cfg.ElsewhereAdvice,
			"the files are larger than %d MiB together", s.limits.maxTotalBytes>>20)
	case s.acceptsFile(shown, mode,
		int64(len(data))): // A file may have been replaced, or may have grown, since its size was read.
		s.files = append(s.files, File{Name: shown, Data: data, Digest: reload.DigestOf(data)})
	}
}

// acceptsFile returns whether a file of that mode and size may be read. It records a problem if it is not a regular
// file, or too large.
func (s *dirScan) acceptsFile(shown string, mode fs.FileMode, size int64) bool {
	switch {
	case !mode.IsRegular():
		s.addProblem(shown, "put a file in its place, or remove it", "is %s, not a file", fileTypeNames[mode.Type()])
	case size > s.limits.maxFileBytes:
		s.addProblem(shown, "remove it if it does not hold rules, or split it", "is larger than %d MiB",
			s.limits.maxFileBytes>>20)
	default:
		return true
	}
	return false
}

func (s *dirScan) addProblem(file, fix, format string, args ...any) {
	s.problems.Add(rules.Pos{File: file}, fix, format, args...)
}

// skipLink records a link that is not followed.
func (s *dirScan) skipLink(link, fix, format string, args ...any) {
	s.skippedLinks.Add(rules.Pos{File: link}, fix, format, args...)
}

// findings returns what is wrong with the files, and what is left out. What is left out is a warning beside good files,
// and a problem where nothing else is: a service without its rules lets everything pass. So is a link in place of a
// file that is in force.
func (s *dirScan) findings(isInForce func(file string) bool) (problems, warnings rules.Problems) {
	problems, warnings = s.problems, s.leftOut()
	for _, p := range s.skippedLinks {
		if isInForce != nil && isInForce(p.File) {
			problems = append(problems, p)
		} else {
			warnings = append(warnings, p)
		}
	}
	if len(s.files) == 0 && len(problems) == 0 {
		return warnings, nil
	}
	return problems, warnings
}

// leftOut returns one problem that names the ignored files that may have been meant as rules: envoyproxy/ratelimit
// reads every file. Backups and texts are named only if there is no rule file.
func (s *dirScan) leftOut() rules.Problems {
	const maxNamed = 5
	names := slices.DeleteFunc(slices.Clone(s.ignoredNames), func(name string) bool {
		return holdsNoRules(name) && (len(s.files) > 0 || !isBackup(name))
	})
	if len(names) == 0 {
		return nil
	}
	list := strings.Join(names[:min(len(names), maxNamed)], ", ")
	if more := len(names) - maxNamed; more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return rules.Problems{{
		Pos: rules.Pos{File: s.cfg.Path},
		Message: "only *.yaml, *.yml, *.ini and *.json files, and files without a suffix that have a `domain`, are read, " +
			"which leaves out " + list,
		Fix: "rename what holds rules, move the rest elsewhere",
	}}
}

// isSkippedName returns whether a file, directory or link with that name is never read.
func isSkippedName(name string, ignoreDotFiles bool) bool {
	return strings.HasPrefix(name, "..") || // Kubernetes makes such names: ..data, ..2026_10_01_12_00_00.123.
		strings.HasPrefix(name, ".#") || // Emacs makes such links, which lead nowhere, as locks.
		strings.HasSuffix(name, "~") ||
		name == "lost+found" || // Every ext4 volume has this directory, which only root can read.
		ignoreDotFiles && strings.HasPrefix(name, ".")
}

// mayHoldRules returns whether a file without a suffix may hold rules, as envoyproxy/ratelimit allows.
func mayHoldRules(name string) bool { return !strings.Contains(name, ".") && !holdsNoRules(name) }

// isRuleFile returns whether a file with that name holds rules.
func isRuleFile(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".ini", ".json"}, strings.ToLower(filepath.Ext(name)))
}

// holdsNoRules returns whether a file with that name is of a kind that is often beside rule files and holds no rules.
func holdsNoRules(name string) bool {
	others := []string{".md", ".txt", ".bak", ".orig", ".old", ".tmp", ".swp", ".swo"}
	return slices.Contains(others, strings.ToLower(filepath.Ext(name))) ||
		strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") || strings.HasSuffix(name, "~") ||
		strings.HasPrefix(name, "README") || strings.HasPrefix(name, "LICENSE")
}

// howToFix returns what to do about an error of a file system.
func howToFix(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return "let the user of this process read it (chmod a+r a file, a+rx the directories above it)"
	}
	return "fix the path, or the disk"
}

// isBackup returns whether a file with that name is a text, or a copy that an editor or a person makes of a file. It
// may be what is left of rules.
func isBackup(name string) bool {
	ends := []string{".txt", ".bak", ".orig", ".old", ".tmp"}
	return !strings.HasPrefix(name, ".") && !strings.HasPrefix(name, "README") && !strings.HasPrefix(name, "LICENSE") &&
		(strings.HasSuffix(name, "~") || slices.Contains(ends, strings.ToLower(filepath.Ext(name))))
}

// fileTypeNames says what messages call files that are not directories, by the type bits of their mode.
var fileTypeNames = map[fs.FileMode]string{
	0: "a file", fs.ModeNamedPipe: "a named pipe", fs.ModeSocket: "a socket", fs.ModeIrregular: "something special",
	fs.ModeDevice: "a device", fs.ModeDevice | fs.ModeCharDevice: "a device",
}
