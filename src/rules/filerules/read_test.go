//go:build unix

package filerules

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"ratelimit/src/rules"
)

type readTest struct {
	name     string
	tree     string // below a new directory, which is % in what is wanted
	path     string // what is read, below it
	ignore   bool   // dot files
	want     string // names of files, in order
	problems string // one a line
	warnings string
}

var readTests = []readTest{
	{
		name: "an empty directory",
		tree: "mkdir rules", path: "rules",
	},
	{
		name: "in the order of paths, directories too",
		tree: `mkdir b/deep/deeper
			write b/deep/deeper/x.yaml x
			write b/y.yml y
			write c.YAML c
			write b.yaml b
			write a.Yml a`,
		want: "a.Yml b.yaml b/deep/deeper/x.yaml b/y.yml c.YAML",
	},
	{
		name: "what editors and systems leave",
		tree: `write a.yaml a
			write a.yaml~ a
			write #a.yaml# a
			write .a.yaml.swp a
			link .#a.yaml user@host.1234:1
			text README.md hello
			text README hello
			write a.yaml.bak a
			mkdir lost+found
			write lost+found/b.yaml b
			mkdir old~
			write old~/b.yaml b
			mkdir ..2026
			write ..2026/a.yaml a
			link ..data ..2026
			write ..b.yaml b
			fifo pipe.log`,
		want: "a.yaml",
		warnings: "%: only *.yaml, *.yml, *.ini and *.json files, and files without a suffix that have a `domain`, are " +
			"read, which leaves out pipe.log; rename what holds rules, move the rest elsewhere",
	},
	{
		name: "files that upstream would read",
		tree: `write rules a
			write b.conf b
			mkdir d
			write d/c.toml c
			write d/d d
			text d/e domains: none
			text d/f {
			size d/g 1000000
			write d/h h
			fifo d/i`,
		want: "d/d d/h rules",
		warnings: "%: only *.yaml, *.yml, *.ini and *.json files, and files without a suffix that have a `domain`, are " +
			"read, which leaves out b.conf, c.toml, e, f, g and 1 more; rename what holds rules, move the rest elsewhere",
	},
	{
		name: "dot files are read",
		tree: `write .a.yaml a
			mkdir .d
			write .d/b.yaml b`,
		want: ".a.yaml .d/b.yaml",
	},
	{
		name: "dot files are ignored",
		tree: `write .a.yaml a
			mkdir .d
			write .d/b.yaml b
			write c.yaml c`,
		ignore: true,
		want:   "c.yaml",
	},
	{
		name: "links to files and directories",
		tree: `mkdir ..real/sub
			write ..real/sub/x.yaml x
			write ..real/plain a
			link a.yaml ..real/plain
			link b.yaml a.yaml
			link c %/..real/./sub/../sub
			link note.md ..real/plain
			mkdir d
			link d/e.yaml ../..real/plain`,
		want: "a.yaml b.yaml c/x.yaml d/e.yaml",
	},
	{
		name: "absolute links by the path that has links in it",
		tree: `mkdir v1/real
			write v1/real/x.txt a
			link current v1
			link v1/a.yaml %/current/real/x.txt
			link v1/b.yaml %/v1/real/x.txt
			link v1/c %/current`,
		path:     "current",
		want:     "current/a.yaml current/b.yaml",
		warnings: "%/current/c: the link leads back to %/v1, which it is in; remove the link",
	},
	{
		name: "links that lead outside",
		tree: `mkdir rules/sub
			write secret a
			write rules2 a
			mkdir other
			write other/x.yaml x
			write rules/fine.yaml a
			link rules/a.yaml ../secret
			link rules/b.yaml %/secret
			link rules/c ../other
			link rules/d.yaml sub/../../rules/fine.yaml
			link rules/e.yaml a.yaml
			link rules/f.yaml %/rules2
			link rules/g.yaml ../nowhere
			link rules/h.yaml /dev/null
			link rules/i.yaml %/rules/sub/../../secret
			link rules/notes.md ../secret
			link rules/sub/up ../..`,
		path:     "rules",
		want:     "rules/a.yaml rules/b.yaml rules/d.yaml rules/e.yaml rules/f.yaml rules/fine.yaml rules/i.yaml",
		problems: "%/rules/h.yaml: is a device, not a file; put a file in its place, or remove it",
		warnings: `%/rules/c: the link leads to the directory %/other, which is outside of %/rules; put the directory itself here, or link its files
			%/rules/g.yaml: the link leads nowhere: %/nowhere does not exist; fix the link or remove it
			%/rules/sub/up: the link leads to the directory %, which is outside of %/rules; put the directory itself here, or link its files`,
	},
	{
		name:     "one file that is a device",
		tree:     "link rules.yaml /dev/null",
		path:     "rules.yaml",
		problems: "%/rules.yaml: is a device, not a file; put a file in its place, or remove it",
	},
	{
		name: "one file that is a link",
		tree: `mkdir rules
			write secret a
			link rules/a.yaml ../secret`,
		path: "rules/a.yaml",
		want: "rules/a.yaml",
	},
	{
		name: "the directory is a link",
		tree: `mkdir v1
			write v1/a.yaml a
			link current v1`,
		path: "current",
		want: "current/a.yaml",
	},
	{
		name: "one file, whatever its name",
		tree: "write rules.conf a",
		path: "rules.conf",
		want: "rules.conf",
	},
	{
		name:     "the directory is missing",
		tree:     "mkdir srv",
		path:     "srv/data/current/config",
		problems: "%/srv/data/current/config: %/srv/data does not exist; create it, or name another one",
	},
	{
		name: "the directory is missing behind a link",
		tree: `mkdir srv
			link srv/current /nowhere/v7`,
		path:     "srv/current/config",
		problems: "%/srv/current/config: /nowhere does not exist; create it, or name another one",
	},
	{
		name:     "a file in the way",
		tree:     "write srv a",
		path:     "srv/config",
		problems: "%/srv/config: cannot be read: %/srv is not a directory; fix the path, or the disk, or name another one",
	},
	{
		name: "links in circles",
		tree: `mkdir d/e
			write d/a.yaml a
			link d/e/up ..
			link d/e/top %
			link self.yaml self.yaml`,
		want: "d/a.yaml",
		warnings: `%/d/e/top: the link leads back to %, which it is in; remove the link
			%/d/e/up: the link leads back to %/d, which it is in; remove the link
			%/self.yaml: the link leads nowhere: %/self.yaml: more than 40 links in a row; fix the link or remove it`,
	},
	{
		name: "nothing but what is left out",
		tree: `write a.conf a
			write b.toml b
			text README hello
			link c.yaml nowhere
			link d ..`,
		problems: `%: only *.yaml, *.yml, *.ini and *.json files, and files without a suffix that have a ` + "`" + `domain` + "`" + `, are read, which leaves out a.conf, b.toml; rename what holds rules, move the rest elsewhere
			%/c.yaml: the link leads nowhere: %/nowhere does not exist; fix the link or remove it
			%/d: the link leads to the directory $, which is outside of %; put the directory itself here, or link its files`,
	},
	{
		name: "nothing but texts and backups",
		tree: `write shop.txt a
			write shop.yaml.bak a
			write shop.yaml~ a
			write .hidden.bak a
			mkdir old~
			text README.txt hello
			text README.md hello`,
		problems: `%: only *.yaml, *.yml, *.ini and *.json files, and files without a suffix that have a ` + "`" + `domain` + "`" + `, are read, which leaves out shop.txt, shop.yaml.bak, shop.yaml~; rename what holds rules, move the rest elsewhere`,
	},
	{
		name: "nothing but what describes a directory",
		tree: `text README.md hello
			text LICENSE hello
			text .gitkeep hello`,
	},
	{
		name: "everything that is wrong",
		tree: `link a.yaml nowhere
			fifo c.yaml
			link d.yaml c.yaml
			size f.yaml 67108865
			write g.yaml g
			link h.yaml g.yaml/x`,
		want: "g.yaml",
		problems: `%/c.yaml: is a named pipe, not a file; put a file in its place, or remove it
			%/d.yaml: is a named pipe, not a file; put a file in its place, or remove it
			%/f.yaml: is larger than 64 MiB; remove it if it does not hold rules, or split it`,
		warnings: `%/a.yaml: the link leads nowhere: %/nowhere does not exist; fix the link or remove it
			%/h.yaml: the link leads nowhere: %/g.yaml is not a directory; fix the link or remove it`,
	},
	{
		name:     "too deep",
		tree:     "mkdir " + strings.Repeat("d/", 50) + "\nwrite " + strings.Repeat("d/", 49) + "a.yaml a",
		want:     strings.Repeat("d/", 49) + "a.yaml",
		problems: "%" + strings.Repeat("/d", 50) + ": directories are nested more than 50 levels deep; use fewer levels",
	},
}

func TestRead(t *testing.T) {
	for _, tt := range readTests {
		t.Run(tt.name, func(t *testing.T) {
			dir := realDir(t)
			play(t, dir, tt.tree)
			files, warnings, err := Read(filepath.Join(dir, tt.path))
			if tt.ignore {
				s := newDirScan(t.Context(), Config{Path: filepath.Join(dir, tt.path), IgnoreDotFiles: true})
				s.readAll()
				files, err = s.files, nil
				problems, left := s.findings(nil)
				if warnings = left; len(problems) > 0 {
					err = problems
				}
			}
			var problems rules.Problems
			if err != nil && !errors.As(err, &problems) {
				t.Fatalf("the error is a %T", err)
			}
			var names []string
			for _, f := range files {
				name, err := filepath.Rel(dir, f.Name)
				if err != nil {
					t.Fatal(err)
				}
				names = append(names, name)
				if !strings.HasPrefix(string(f.Data), "domain: ") {
					t.Errorf("%s holds %q", name, f.Data)
				}
			}
			if got := strings.Join(names, " "); got != tt.want {
				t.Errorf("files:\n got %s\nwant %s", got, tt.want)
			}
			compare(t, "problems", dir, problems, tt.problems)
			compare(t, "warnings", dir, warnings, tt.warnings)
		})
	}
}

// compare compares problems with lines, in which % is dir and $ the directory above.
func compare(t *testing.T, what, dir string, got rules.Problems, want string) {
	t.Helper()
	var gotten, wanted []string
	for _, p := range got {
		gotten = append(gotten, p.String())
	}
	for line := range strings.Lines(want) {
		wanted = append(wanted, strings.NewReplacer("%", dir, "$", filepath.Dir(dir)).Replace(strings.TrimSpace(line)))
	}
	if g, w := strings.Join(gotten, "\n"), strings.Join(wanted, "\n"); g != w {
		t.Errorf("%s:\n got %s\nwant %s", what, g, w)
	}
}

// realDir is a temporary directory by its path without links (macOS has them
// on the way).
func realDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// A data file that is a link when it is opened, but was a file when it was looked at, leads nowhere else.
func TestLinksThatAppear(t *testing.T) {
	dir := realDir(t)
	play(t, dir, "lines secret s\nmkdir rules\nlines rules/f.txt x")
	s := newDirScan(t.Context(), Config{})
	base := filepath.Join(dir, "rules")
	d := &dataScan{dirScan: s, shownBase: base}
	if !d.openBase(base) {
		t.Fatal(s.problems)
	}
	defer func() { _ = s.openedBase.Close() }()
	play(t, dir, "link rules/f.txt ../secret")
	if _, err := s.openFile(base + "/f.txt"); err == nil || errorWithoutPath(err).Error() != "path escapes from parent" {
		t.Errorf("opened, or %v", err)
	}
}

func TestReadNamesFilesAsGiven(t *testing.T) {
	dir := realDir(t)
	play(t, dir, "mkdir config\nwrite config/a.yaml a\nfifo config/b.yaml")
	t.Chdir(dir)
	for given, want := range map[string]string{
		"config":   "config/a.yaml",
		"./config": "config/a.yaml",
		".":        "config/a.yaml",
	} {
		files, _, err := Read(given)
		if len(files) != 1 || files[0].Name != want {
			t.Errorf("Read(%q): %v, want %s", given, files, want)
		}
		if err == nil || !strings.HasPrefix(err.Error(), "config/b.yaml: ") {
			t.Errorf("Read(%q): error %v", given, err)
		}
	}
}

func TestReadSocket(t *testing.T) {
	dir := realDir(t)
	t.Chdir(dir) // the address of a socket has about 100 bytes at most
	l, err := net.Listen("unix", "s.yaml")
	if err != nil {
		t.Skipf("no sockets here: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	_, _, err = Read(dir)
	if want := dir + "/s.yaml: is a socket, not a file; put a file in its place, or remove it"; err == nil ||
		err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestReadForbidden(t *testing.T) {
	notRoot(t)
	dir := realDir(t)
	play(t, dir, `write a.yaml a
		chmod a.yaml 000
		mkdir d
		write d/b.yaml b
		chmod d 000
		mkdir e
		write e/c.yaml c
		chmod e 600`)
	t.Cleanup(func() { play(t, dir, "chmod d 755\nchmod e 755") })
	_, _, err := Read(dir)
	var problems rules.Problems
	errors.As(err, &problems)
	const mend = "; let the user of this process read it (chmod a+r a file, a+rx the directories above it)"
	compare(t, "problems", dir, problems, "%/a.yaml: cannot be read: permission denied"+mend+"\n"+
		"%/d: cannot be listed: permission denied"+mend+"\n"+
		"%/e/c.yaml: cannot be read: lstat %/e/c.yaml: permission denied"+mend+", or remove it")
}

// A directory named by mistake must not take all memory or time.
func TestReadLimits(t *testing.T) {
	dir := realDir(t)
	play(t, dir, "mkdir few\nmkdir many\nmkdir maze")
	for i := range 5 {
		play(t, dir, fmt.Sprintf("size few/%d.yaml 100", i))
	}
	for i := range 20 {
		play(t, dir, fmt.Sprintf("write many/%d.conf a", i))
	}
	// Without a circle, there are 2^40 ways through these.
	for i := range 40 {
		play(t, dir, fmt.Sprintf("mkdir maze/%d\nlink maze/%d/a ../%d\nlink maze/%d/b ../%d", i, i, i+1, i, i+1))
	}
	play(t, dir, "mkdir maze/40\nwrite maze/40/a.yaml a")
	for _, tt := range []struct {
		dir    string
		limits scanLimits
		files  int
		want   string
	}{
		{"few", scanLimits{maxFileBytes: 100, maxTotalBytes: 500, maxDirEntries: 5, maxDirDepth: 1}, 5, ""},
		{
			"few",
			scanLimits{maxFileBytes: 100, maxTotalBytes: 499, maxDirEntries: 5, maxDirDepth: 1},
			4,
			"%/few: the files are larger than 0 MiB together; remove files that hold no rules, or go",
		},
		{
			"few",
			scanLimits{maxFileBytes: 100, maxTotalBytes: 500, maxDirEntries: 4, maxDirDepth: 1},
			4,
			"%/few: holds more than 4 files and directories; go",
		},
		{
			"many",
			scanLimits{maxFileBytes: 1000, maxTotalBytes: 1000, maxDirEntries: 19, maxDirDepth: 1},
			0,
			"%/many: holds more than 19 files and directories; go",
		},
		{
			"maze",
			scanLimits{maxFileBytes: 1000, maxTotalBytes: 10_000_000, maxDirEntries: 1000, maxDirDepth: 50},
			-1,
			"%/maze: holds more than 1000 files and directories; go",
		},
	} {
		s := newDirScan(t.Context(), Config{Path: filepath.Join(dir, tt.dir), ElsewhereAdvice: "go"})
		s.limits = tt.limits
		s.readAll()
		compare(t, tt.dir, dir, s.problems, tt.want)
		if tt.files >= 0 && len(s.files) != tt.files {
			t.Errorf("%s: %d files, want %d", tt.dir, len(s.files), tt.files)
		}
	}
}
