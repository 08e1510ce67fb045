//go:build unix

package filerules

import (
	"strings"
	"testing"
	"time"

	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/reload"
)

// A step changes the directory, and wants these domains or this refusal.
type step struct{ do, want string }

type situation struct {
	name  string
	cfg   Config
	steps []step
}

var situations = []situation{
	{"writes in place", Config{}, []step{
		{"mkdir data/config/rules\nwrite data/config/rules/a.yaml a", "a"},
		{"write data/config/rules/a.yaml b", "b"},
		{"write data/config/rules/b.yaml c", "b c"},
		{"rm data/config/rules/a.yaml", "c"},
		{"rm data/config/rules/b.yaml", ""},
		{"write data/config/rules/a.yaml a", "a"},
	}},
	{"one of several is bad", Config{}, []step{
		{"mkdir data/config/rules\nwrite data/config/rules/a.yaml a\nwrite data/config/rules/b.yaml b", "a b"},
		{"text data/config/rules/b.yaml {\nwrite data/config/rules/a.yaml c", "b c, refused:b.yaml:1:"},
		{"write data/config/rules/d.yaml d", "b c d, refused:b.yaml:1:"},
		{"rm data/config/rules/a.yaml", "b d, refused:b.yaml:1:"},
		{"write data/config/rules/e.yaml b", "refused:b.yaml:1:"}, // the bad one's domain stays as it was
		{"rm data/config/rules/b.yaml", "b d"},
		{
			"write data/config/rules/d.yaml b\nwrite data/config/rules/f.yaml f",
			`b d f, refused:domain "b" is already defined`,
		},
		// which may be e.yaml by a new name
		{"rm data/config/rules/e.yaml\ntext data/config/rules/g.yaml {", "refused:g.yaml"},
		{"rm data/config/rules/g.yaml", "b f"},
	}},
	{"one of several is bad, all or nothing", Config{Config: reload.Config{AllOrNothing: true}}, []step{
		{"mkdir data/config/rules\nwrite data/config/rules/a.yaml a\nwrite data/config/rules/b.yaml b", "a b"},
		{"text data/config/rules/b.yaml {\nwrite data/config/rules/a.yaml c", "refused:b.yaml:1:"},
		{"write data/config/rules/b.yaml d", "c d"},
	}},
	{"bad from the start", Config{}, []step{
		{"mkdir data/config/rules\nwrite data/config/rules/a.yaml a\ntext data/config/rules/b.yaml {", "refused:b.yaml:1:"},
		{"write data/config/rules/a.yaml c", "refused:b.yaml:1:"},
		{"write data/config/rules/b.yaml b", "b c"},
	}},
	{"editors rename over", Config{}, []step{
		{"mkdir data/config/rules\nwrite data/config/rules/a.yaml a", "a"},
		{"put data/config/rules/a.yaml b", "b"},
		{"put data/config/rules/a.yaml c", "c"},
		{"mv data/config/rules/a.yaml data/config/rules/a.yaml~\nwrite data/config/rules/a.yaml d", "d"},
	}},
	{"directories in it", Config{}, []step{
		{"mkdir data/config/rules", ""},
		{"mkdir data/config/rules/x/y\nwrite data/config/rules/x/y/a.yaml a", "a"},
		{"write data/config/rules/x/b.yaml b", "a b"},
		{"mkdir data/config/rules/x/y/z", "a b"},
		{"write data/config/rules/x/y/z/c.yaml c", "a b c"},
		{"mv data/config/rules/x data/config/rules/w\nwrite data/config/rules/w/y/a.yaml d", "b c d"},
		{"mv data/config/rules/w/y data/y", "b"},
		{"mv data/y data/config/rules/v", "b c d"},
		{"rm data/config/rules/v", "b"},
	}},
	{"a ConfigMap", Config{}, []step{
		{"mkdir data/config/rules\nconfigmap data/config/rules 1 a.yaml=a b.yaml=b", "a b"},
		{"configmap data/config/rules 2 a.yaml=a b.yaml=c", "a c"},
		{"configmap data/config/rules 3 a.yaml=d c.yaml=e", "d e"},
		{"configmap data/config/rules 4 c.yaml=f", "f"},
	}},
	{"a ConfigMap without dot files", Config{IgnoreDotFiles: true}, []step{
		{"mkdir data/config/rules\nconfigmap data/config/rules 1 a.yaml=a b.yaml=b", "a b"},
		{"configmap data/config/rules 2 a.yaml=a b.yaml=c", "a c"},
		{"configmap data/config/rules 3 a.yaml=d c.yaml=e", "d e"},
	}},
	{"a ConfigMap with directories", Config{}, []step{
		{"mkdir data/config/rules\nconfigmap data/config/rules 1 a.yaml=a x/b.yaml=b x/y/c.yaml=c", "a b c"},
		{"configmap data/config/rules 2 a.yaml=a x/b.yaml=d", "a d"},
	}},
	{"the root is a link", Config{}, []step{
		{"mkdir v1/config/rules\nwrite v1/config/rules/a.yaml a\nlink data v1", "a"},
		{"mkdir v2/config/rules\nwrite v2/config/rules/a.yaml b\nlink data %/v2", "b"},
		{"write v2/config/rules/a.yaml c", "c"},
		{"link data nowhere", "refused:/nowhere does not exist"},
		{"mv v1 nowhere", "a"},
	}},
	{"every part is a link", Config{}, []step{
		{"mkdir r/1\nmkdir s/1\nmkdir u/1\nlink data r/1\nlink r/1/config ../../s/1\nlink s/1/rules ../../u/1\nwrite " +
			"u/1/a.yaml a", "a"},
		{"mkdir u/2\nwrite u/2/a.yaml b\nlink s/1/rules %/u/2", "b"},
		{"mkdir s/2\nlink s/2/rules ../../u/1\nlink r/1/config ../../s/2", "a"},
		{"write u/1/a.yaml c", "c"},
	}},
	{"it goes away and comes back", Config{}, []step{
		{"mkdir data/config/rules\nwrite data/config/rules/a.yaml a", "a"},
		{"rm data/config/rules", "refused:/data/config/rules does not exist; create it, or set RUNTIME_ROOT"},
		{"mkdir data/config/rules\nwrite data/config/rules/a.yaml b", "b"},
		{"rm data", "refused:/data does not exist; create it"},
		{"mkdir data/config/rules\nwrite data/config/rules/a.yaml c", "c"},
		{"mv data gone", "refused:/data does not exist; create it"},
		{"write gone/config/rules/a.yaml d\nmv gone data", "d"},
		{"mv data/config gone\nmkdir data/config/rules\nwrite data/config/rules/a.yaml e", "e"},
	}},
	{"it comes part by part", Config{}, []step{
		{"", "refused:/data does not exist; create it"},
		{"mkdir data", "refused:/data/config does not exist; create it"},
		{"write data/config a", "refused:/data/config is not a directory"},
		{"rm data/config\nmkdir data/config", "refused:/data/config/rules does not exist; create it"},
		{"write data/config/rules a", "refused:/data/config/rules: is a file, not a directory; set RUNTIME_ROOT"},
		{"rm data/config/rules\nmkdir data/config/rules", ""},
		{"write data/config/rules/a.yaml a", "a"},
	}},
	{"a linked file changes where it is", Config{}, []step{
		{"mkdir data/config/rules/..far\nwrite data/config/rules/..far/x a\nlink data/config/rules/a.yaml ..far/x", "a"},
		{"write data/config/rules/..far/x b", "b"},
		{"put data/config/rules/..far/x c", "c"},
		{"rm data/config/rules/..far/x", "refused:/..far/x does not exist; fix the link or remove it"},
		{"rm data/config/rules/..far", "refused:/..far does not exist; fix the link or remove it"},
		{"mkdir data/config/rules/..far\nwrite data/config/rules/..far/x d", "d"},
		{
			"mkdir data/config/rules/..far2\nwrite data/config/rules/..far2/e.yaml e\nlink data/config/rules/more ..far2",
			"d e",
		},
		{"write data/config/rules/..far2/f.yaml f", "d e f"},
	}},
	{"a link leads outside, changes there, and is replaced", Config{}, []step{
		{"mkdir data/config/rules\nmkdir far\nwrite data/config/rules/a.yaml a\nwrite far/s s", "a"},
		{"link data/config/rules/b.yaml ../../../far/s", "a s"},
		{"write far/s t", "a t"},
		{"put far/s u", "a u"},
		{"rm far", "refused:/far does not exist; fix the link or remove it"}, // What is in force stays.
		{"mkdir far\nwrite far/s v", "a v"},
		{"put data/config/rules/b.yaml b", "a b"},
		{"link data/config/rules/c %/data/config", "a b"}, // A warning.
		{"link data/config/rules/c %/data/config/rules/..2026", "a b"},
		{"mkdir data/config/rules/..2026\nwrite data/config/rules/..2026/c.yaml c", "a b c"},
		{"link data/config/rules/c %/data/config", "refused:is outside of"},
	}},
	{"a link leads nowhere from the start", Config{}, []step{
		{
			"mkdir data/config/rules\nlink data/config/rules/b.yaml ../b",
			"refused:/data/config/b does not exist; fix the link or remove it",
		},
		{"write data/config/rules/a.yaml a", "a"},
		{"write data/config/b b", "a b"},
	}},
	{"files beside the directory", Config{ReadSiblings: true}, []step{
		{"", "refused:/data does not exist; create it"},
		{"mkdir data/config\nwrite data/config/rules.yaml a", "a"},
		{"write data/config/rules.one.yaml b\nwrite data/config/rulesx.yaml x\nwrite data/config/rule.yaml x", "a b"},
		{"mkdir data/config/rules\nwrite data/config/rules/c.yaml c", "a b c"},
		{"mkdir data/config/rules.d/e\nwrite data/config/rules.d/e/f.yaml d", "a b c d"},
		{"put data/config/rules.yaml e", "b c d e"},
		{"text data/config/rules.one.yaml {\nwrite data/config/rules/c.yaml f", "b d e f, refused:rules.one.yaml:1:"},
		{"rm data/config/rules.one.yaml", "d e f"},
		{"rm data/config/rules.yaml\nrm data/config/rules.d", "f"},
		{"rm data/config/rules", "refused:/data/config/rules does not exist; create it"},
	}},
	{"data files of files beside the directory", Config{ReadSiblings: true}, []step{
		{"mkdir data/config\nlines data/config/f.txt x\nwrite data/config/rules.yaml a<f.txt", "a"},
		{
			"mkdir data/config/rules\nlines data/config/rules/f.txt x\nwrite data/config/rules.yaml b<f.txt",
			"refused:is not in the directory of the rules",
		},
		{"write data/config/rules.yaml b<rules/f.txt", "b"},
	}},
	{"only files that are not read", Config{}, []step{
		{
			"mkdir data/config/rules\nwrite data/config/rules/a.conf a",
			"refused:which leaves out a.conf; rename what holds rules, move the rest elsewhere",
		},
		{"mv data/config/rules/a.conf data/config/rules/a.yaml", "a"},
		// What is in force stays.
		{"mv data/config/rules/a.yaml data/config/rules/a.toml", "refused:which leaves out a.toml"},
	}},
	{"refused, and refused, and mended", Config{}, []step{
		{"mkdir data/config/rules\nwrite data/config/rules/a.yaml a", "a"},
		{"text data/config/rules/a.yaml domain: [", "refused:rules/a.yaml:"},
		{"write data/config/rules/a.yaml a\nwrite data/config/rules/b.yaml a", "refused:rules/b.yaml:"},
		{"rm data/config/rules/b.yaml", "a"},
		{
			"fifo data/config/rules/c.yaml\ntext data/config/rules/b.yaml domain: [",
			"refused:c.yaml: is a named pipe, not a file; put a file in its place, or remove it\n",
		},
		{"rm data/config/rules/c.yaml", "refused:rules/b.yaml:"},
		{"write data/config/rules/b.yaml b", "a b"},
	}},
	{"domains are merged", Config{Config: reload.Config{Options: compile.Options{MergeDomains: true}}}, []step{
		{"mkdir data/config/rules\nwrite data/config/rules/a.yaml a\ntext data/config/rules/b.yaml domain: a", "a"},
		{"write data/config/rules/c.yaml c", "a c"},
	}},
	{"one file", Config{OnlyFile: true, ElsewhereAdvice: "name another file"}, []step{
		{"mkdir data/config\nwrite data/config/rules a", "a"},
		{"write data/config/rules b", "b"},
		{"write data/config/other c\nput data/config/rules d", "d"},
		{"text data/config/rules domain: [", "refused:rules:"},
		{"rm data/config/rules", "refused:rules: "},
		{"mkdir data/config/rules", "refused:rules: is a directory, not a file; name another file"},
		{"rm data/config/rules\nmkdir far\nwrite far/a e\nlink data/config/rules ../../far/a", "e"},
		{"write far/a f", "f"},
		{"put far/a g", "g"},
		{"link data/config/rules ../../far/b", "refused:rules: "},
		{"write far/b h", "h"},
	}},
}

// Each change of a directory of rules is found by events alone, and by polling alone.
func TestSituations(t *testing.T) {
	t.Parallel()
	eachMode(t, situations, func(t *testing.T, dir string, r *running, steps []step) {
		t.Helper()
		before := "-"
		for i, s := range steps {
			if i > 0 {
				play(t, dir, s.do)
			}
			if s.want != before { // else nothing is loaded
				r.until(t, s.want)
			}
			before = s.want
		}
	})
}

// eachMode plays the first step of each situation, starts a watcher that uses events alone or polling alone, and calls
// playRest.
func eachMode(t *testing.T, list []situation, playRest func(t *testing.T, dir string, r *running, steps []step)) {
	for _, tt := range list {
		for mode, change := range map[string]func(*Watcher){
			"events": nil,
			"polls":  func(w *Watcher) { w.newEventWatcher, w.cfg.PollInterval = noEvents, 10*time.Millisecond },
		} {
			t.Run(tt.name+" by "+mode, func(t *testing.T) {
				t.Parallel()
				dir := realDir(t)
				play(t, dir, tt.steps[0].do)
				playRest(t, dir, run(t, dir, tt.cfg, change), tt.steps)
			})
		}
	}
}

func TestForbidden(t *testing.T) {
	t.Parallel()
	notRoot(t)
	dir := realDir(t)
	play(t, dir, "mkdir data/config/rules\nwrite data/config/rules/a.yaml a\nchmod data/config/rules/a.yaml 000")
	r := run(t, dir, Config{}, nil)
	for _, s := range []struct{ do, want string }{
		{"", "refused:a.yaml: cannot be read: permission denied"},
		{"chmod data/config/rules/a.yaml 644", "a"},
		{"chmod data/config/rules 000", "refused:rules: cannot be listed: permission denied"},
		{"chmod data/config/rules 755", "a"},
		{"chmod data/config 000", "refused:lstat " + dir + "/data/config/rules: permission denied"},
		{"chmod data/config 755", "a"},
	} {
		play(t, dir, s.do)
		r.until(t, s.want)
	}
	select {
	case err := <-r.warns: // a directory that cannot be listed cannot be watched
		if !strings.Contains(err.Error(), "permission denied") {
			t.Error(err)
		}
	default:
		t.Error("there is no warning")
	}
}
