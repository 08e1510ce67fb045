//go:build unix

package filerules

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/rules"
	"ratelimit/src/rules/datafile"
	"ratelimit/src/rules/reload"
)

// found tells what is in force: each domain from a to c, with those of the values v to z that its rules match, and then
// the problems.
func found(l reload.Result) string {
	var words []string
	for name := 'a'; l.Set != nil && name <= 'c'; name++ {
		d := l.Set.Domain([]byte(string(name)))
		if d == nil {
			continue
		}
		word := string(name) + ":"
		for v := 'v'; v <= 'z'; v++ {
			var s rules.SearchScratch
			if r := d.FindRule([]rules.Entry{{Key: []byte("k"), Value: []byte(string(v))}}, &s); r != nil {
				word += string(v)
			}
		}
		words = append(words, word)
	}
	if l.Err != nil {
		words = append(words, "refused:"+l.Err.Error())
	}
	return strings.Join(words, " ")
}

// In want, % stands for the directory of the rules.
var dataSituations = []situation{
	{"edited, bad, and good again", Config{}, []step{
		{"mkdir data/config/rules\nwrite data/config/rules/a.yaml a<f.txt\nlines data/config/rules/f.txt x y\nwrite " +
			"data/config/rules/b.yaml b", "a:xy b:vwxyz"},
		{"lines data/config/rules/f.txt x z", "a:xz b:vwxyz"},
		{
			"lines data/config/rules/f.txt y y",
			"refused:%/a.yaml:3:27: values_from \"f.txt\": %/f.txt has problems, the first is in line 2; correct the " +
				"file\n%/f.txt:2:1: \"y\" is in line 1 already; remove one of the two lines",
		},
		{"write data/config/rules/b.yaml c", "a:xz c:vwxyz refused:%/a.yaml:3:27: "}, // a keeps its last good file
		{"lines data/config/rules/f.txt y", "a:y c:vwxyz"},
		{"rm data/config/rules/f.txt", "refused:%/a.yaml:3:27: values_from \"f.txt\": %/f.txt does not exist; create the " +
			"file, or fix the path"},
		{"lines data/config/rules/f.txt v", "a:v c:vwxyz"},
	}},
	{"renamed over, linked, in another directory", Config{}, []step{
		{"mkdir data/config/rules/sub\nwrite data/config/rules/a.yaml a<sub/f\nlines data/config/rules/sub/f x", "a:x"},
		{"lines data/config/rules/sub/g y\nmv data/config/rules/sub/g data/config/rules/sub/f", "a:y"},
		{"lines data/config/rules/..far z\nlink data/config/rules/sub/f ../..far", "a:z"},
		{"lines data/config/rules/..far x z", "a:xz"},
		{"write data/config/rules/sub/b.yaml b<../f\nlines data/config/rules/f v", "a:xz b:v"},
		{"mv data/config/rules/f data/config/rules/g", "refused:%/sub/b.yaml:3:27: "},
		{"write data/config/rules/sub/b.yaml b<../g", "a:xz b:v"},
	}},
	{"a ConfigMap with a compressed file", Config{}, []step{
		{"mkdir data/config/rules\nconfigmap data/config/rules 1 a.yaml=a<f.txt.gz f.txt.gz=x,y", "a:xy"},
		{"configmap data/config/rules 2 a.yaml=a<f.txt.gz f.txt.gz=z", "a:z"},
		{"configmap data/config/rules 3 a.yaml=a<f.txt f.txt=y,z", "a:yz"},
		{"configmap data/config/rules 4 a.yaml=a<f.txt f.txt=y,y", "refused:%/a.yaml:3:27: "},
		{"configmap data/config/rules 5 a.yaml=a<f.txt f.txt=v", "a:v"},
	}},
	{"all or nothing", Config{Config: reload.Config{AllOrNothing: true}}, []step{
		{"mkdir data/config/rules\nwrite data/config/rules/a.yaml a<f.txt\nlines data/config/rules/f.txt x\nwrite " +
			"data/config/rules/b.yaml b", "a:x b:vwxyz"},
		{"lines data/config/rules/f.txt y y\nwrite data/config/rules/b.yaml c", "refused:%/a.yaml:3:27: "},
		{"lines data/config/rules/f.txt y", "a:y c:vwxyz"},
	}},
	{"one file", Config{OnlyFile: true}, []step{
		{"mkdir data/config\nwrite data/config/rules a<f.txt\nlines data/config/f.txt x", "a:x"},
		{"lines data/config/f.txt y", "a:y"},
		{"write data/config/rules a<sub/f.txt", "refused:%:3:27: "},
		{"mkdir data/config/sub\nlines data/config/sub/f.txt z", "a:z"},
	}},
}

// Each change of a data file is found by events alone, and by polling alone.
func TestDataSituations(t *testing.T) {
	t.Parallel()
	eachMode(t, dataSituations, func(t *testing.T, dir string, r *running, steps []step) {
		t.Helper()
		for i, s := range steps {
			if i > 0 {
				play(t, dir, s.do)
			}
			want := strings.ReplaceAll(s.want, "%", filepath.Join(dir, "data/config/rules"))
			last := "nothing"
			for deadline := time.After(patience); last != want &&
				(!strings.Contains(want, "refused:") || !strings.HasPrefix(last, want)); {
				select {
				case l := <-r.loads:
					last = found(l)
				case <-deadline:
					t.Fatalf("after %q: want %q, the last load was %q", s.do, want, last)
				}
			}
		}
	})
}

// A file that has not changed is not parsed again, also if it was held back in between.
func TestDataIsParsedOnce(t *testing.T) {
	t.Parallel()
	dir := realDir(t)
	play(t, dir, "mkdir data/config/rules\nwrite data/config/rules/a.yaml a<f.txt\nlines data/config/rules/f.txt "+
		"x\nwrite data/config/rules/b.yaml b")
	r := run(t, dir, Config{}, nil)
	table := func(l reload.Result) *datafile.Table { return l.Set.Rules()[0].Path[0].Data() }
	first := table(r.until(t, "a b"))
	play(t, dir, "write data/config/rules/b.yaml c")
	if table(r.until(t, "a c")) != first {
		t.Error("a change of another file parses the data file again")
	}
	play(t, dir, "text data/config/rules/a.yaml {\nwrite data/config/rules/b.yaml b")
	if table(r.until(t, "a b, refused:a.yaml")) != first {
		t.Error("a bad rule file changes its data file")
	}
	play(t, dir, "write data/config/rules/a.yaml a<f.txt")
	r.until(t, "a b")
	play(t, dir, "lines data/config/rules/f.txt x y")
	if table(r.until(t, "a b")) == first {
		t.Error("the data file has changed, and is the same")
	}
}

// What a reference can lead to besides a file.
func TestDataReferences(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		reference, script, want string // want is "" for a good file, or the problem
	}{
		{"f.txt", "lines rules/f.txt x", ""},
		{"sub/../f.txt", "lines rules/f.txt x", ""},
		{"./f.txt", "lines rules/f.txt x", ""},
		{"f.gz", "lines rules/f.gz x", ""},
		{"../rules/f.txt", "lines rules/f.txt x", ""},
		{"../f.txt", "lines f.txt x", "is not in the directory of the rules, %/rules"},
		{"%/rules/f.txt", "lines rules/f.txt x", "the path is absolute"},
		{
			"f.txt", "lines f.txt x\nlink rules/f.txt ../f.txt",
			"the link %/rules/f.txt leads to ../f.txt, outside the directory of the rules, %/rules",
		},
		{"f.txt", "lines rules/..g x\nlink rules/f.txt %/rules/..g", ""},
		{"f.txt", "lines rules/g.txt x", "does not exist"},
		{"f.txt", "mkdir rules/f.txt", "is a directory"},
		{"f.txt", "fifo rules/f.txt", "is a named pipe, not a file"},
		{"f.txt", "size rules/f.txt 1001", "is larger than 0 MiB"},
		{"f.txt", "write rules/b.yaml b<g.txt\nsize rules/g.txt 900\nsize rules/f.txt 900", ""},
		{
			"f.txt", "write rules/Z.yaml b<g.txt\nsize rules/g.txt 900\nsize rules/f.txt 900",
			"the data files are larger than 0 MiB together",
		},
	} {
		dir := realDir(t)
		play(t, dir, "mkdir rules/sub\nwrite rules/a.yaml a<"+strings.ReplaceAll(tt.reference, "%", dir)+"\n"+tt.script)
		s := newDirScan(context.Background(), Config{Path: filepath.Join(dir, "rules")})
		s.dataLimits = dataLimits{maxFileBytes: 1000, maxTotalBytes: 1500, maxFiles: 5}
		s.readAll()
		got := ""
		for _, f := range s.files {
			for _, data := range dataFilesOf(f) {
				if filepath.Base(f.Name) == "a.yaml" && len(data.Problems) > 0 {
					got = data.Problems[0].Message
				}
			}
		}
		if want := strings.ReplaceAll(tt.want, "%", dir); got != want || len(s.problems) > 0 {
			t.Errorf("%s, %q: %q, %v; want %q", tt.reference, tt.script, got, s.problems, want)
		}
		if slices.Contains(s.ignoredNames, filepath.Base(tt.reference)) {
			t.Errorf("%s: %q are ignored", tt.reference, s.ignoredNames)
		}
	}
}

// A file of limits that one rule file refers to, and a file of values that others share.
func TestReadDataFiles(t *testing.T) {
	t.Parallel()
	dir := realDir(t)
	play(t, dir, "mkdir rules\nwrite rules/a.yaml a<f.txt\nwrite rules/b.yaml b<f.txt\nlines rules/f.txt x y\nlines "+
		"rules/l.csv x,1 y,2 z,bad")
	play(t, dir, "text rules/c.yaml {domain: c, descriptors: [{key: k, limits_from: l.csv, rate_limit: {unit: day}}, "+
		"{key: k, descriptors: [{key: k, values_from: l.csv}]}]}")
	files, warnings, err := Read(filepath.Join(dir, "rules"))
	if err != nil || len(warnings) > 0 || len(files) != 3 {
		t.Fatal(files, warnings, err)
	}
	values := datafile.Reference{Name: "f.txt", Kind: datafile.Values}
	if a, b := dataFilesOf(files[0])[values], dataFilesOf(files[1])[values]; a.Table.Len() != 2 || a != b {
		t.Errorf("%+v and %+v", a, b)
	}
	limits := dataFilesOf(files[2])[datafile.Reference{Name: "l.csv", Kind: datafile.Limits}]
	if limits.Table != nil || len(limits.Problems) != 1 || limits.Problems[0].Line != 3 {
		t.Errorf("%+v", limits)
	}
	if other := dataFilesOf(files[2])[datafile.Reference{Name: "l.csv", Kind: datafile.Values}]; other.Table.Len() != 3 {
		t.Errorf("%+v", other)
	}
}

// A file that could not be read is not parsed, and not remembered.
func TestUnreadDataFile(t *testing.T) {
	t.Parallel()
	dir := realDir(t)
	play(t, dir, "mkdir rules\nwrite rules/a.yaml a<f.txt\nlines rules/f.txt x")
	s := newDirScan(context.Background(), Config{Path: filepath.Join(dir, "rules")})
	s.readAll()
	d := s.data.inOrder[0]
	d.fail("", "%v", errors.New("gone"))
	d.Sum = datafile.Sum{}
	if next := s.parseDataFiles(); len(next.parsed) != 0 || d.Table != nil || d.Problems[0].Message != "gone" {
		t.Errorf("%+v, %+v", next, d)
	}
}
