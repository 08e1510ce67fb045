// Package ruletest runs tests of rule files: YAML that teams keep beside their
// rules, of requests and what they should be answered. The tests run on a store
// in memory and on a clock of their own.
package ruletest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/loading"
	"ratelimit/src/rules/yamlrules"
)

// File is a file of tests, with the rules they are about.
type File struct {
	Name  string
	set   *rules.Set
	modes limiter.Config
	tests []test
}

// test is steps from an empty start.
type test struct {
	rules.Pos
	name  string
	start time.Time
	steps []step
}

// step is a request, sent some times over at one instant.
type step struct {
	rules.Pos
	at       time.Duration // since the test's start
	request  limiter.Request
	times    int
	expect   []string // the code of each repetition; nil: any
	statuses []status // of the last repetition; nil: any
	wait     string   // "" : any
}

// status is what is expected of a descriptor.
type status struct {
	rules.Pos
	want map[string]string // by the names of statusFields; others may be anything
}

// defaultStart is when tests begin that do not say when: at an edge of all
// units but the week.
var defaultStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// latest is beyond what stores work with.
var latest = time.Date(2149, 1, 1, 0, 0, 0, 0, time.UTC)

// maxTimes bounds how often a step asks.
const maxTimes = 1_000_000

// Read reads a file of tests and the rules it names, by a path from where it is.
// The problems are all that is wrong with either.
func Read(name string, data []byte) (*File, rules.Problems) {
	root, problems := yamlrules.ReadValue(name, data)
	r := reader{file: &File{Name: name}, problems: problems}
	switch {
	case root != nil && !root.Null():
		r.root(root)
	case len(problems) == 0:
		r.problem(rules.Pos{File: name}, "add `rules:` and `tests:`", "the file is empty")
	}
	slices.SortStableFunc(r.problems, func(a, b rules.Problem) int {
		return cmp.Or(strings.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	// One mistake is one problem, also behind several aliases.
	r.problems = slices.CompactFunc(r.problems, func(a, b rules.Problem) bool { return a.Line > 0 && a.Pos == b.Pos })
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return r.file, nil
}

// reader turns YAML into a File and notes what is wrong.
type reader struct {
	file     *File
	problems rules.Problems
}

func (r *reader) problem(at rules.Pos, fix, format string, args ...any) {
	r.problems = append(r.problems, rules.Problem{Pos: at, What: fmt.Sprintf(format, args...), Fix: fix})
}

// fields reads a map, each key by its function in known. It reports whether it
// was one.
func (r *reader) fields(v *yamlrules.Value, what string, known map[string]func(*yamlrules.Value)) bool {
	fields, ok := v.Fields()
	if !ok {
		r.problem(v.Pos, "write keys and values below it", "%s is %s, not a map", what, v.Type())
		return false
	}
	for i := range fields {
		f := &fields[i]
		if read := known[f.Name]; read != nil {
			read(&f.Value)
			continue
		}
		fix := "known in " + what + ": " + strings.Join(slices.Sorted(maps.Keys(known)), ", ")
		meant := rules.Near(f.Name, maps.Keys(known))
		if meant != "" {
			fix = "did you mean `" + meant + "`?"
		}
		r.problem(f.Pos, fix, "unknown key %s", quote(f.Name))
		if meant != "" {
			known[meant](&f.Value) // else it would be missed, too
		}
	}
	return true
}

// each reads the items of a list.
func (r *reader) each(v *yamlrules.Value, what string, read func(*yamlrules.Value)) {
	items, ok := v.Items()
	if !ok {
		r.problem(v.Pos, "write `- ...` for each", "%s is %s, not a list", what, v.Type())
		return
	}
	for i := range items {
		read(&items[i])
	}
}

func (r *reader) text(v *yamlrules.Value, what string) string {
	text, ok := v.Text()
	if !ok {
		r.problem(v.Pos, "write text", "%s is %s, not text", what, v.Type())
	}
	return text
}

func (r *reader) flag(v *yamlrules.Value, what string) bool {
	value, ok := v.Bool()
	if !ok {
		r.problem(v.Pos, "write true or false", "%s is %s, not true or false", what, v.Type())
	}
	return value
}

// number reads a whole number, which proto3 JSON may have in quotes.
func (r *reader) number(v *yamlrules.Value, what string, most uint64) uint64 {
	text, _ := v.Text()
	n, err := strconv.ParseUint(text, 10, 64)
	if i, ok := v.Int(); ok && i >= 0 {
		n, err = uint64(i), nil
	}
	if err != nil || n > most {
		r.problem(v.Pos, fmt.Sprintf("write a whole number from 0 to %d", most), "%s is invalid: %s", what, r.as(v))
	}
	return n
}

// duration reads "1m30s"; with never also that word.
func (r *reader) duration(v *yamlrules.Value, what string, never bool) time.Duration {
	text, _ := v.Text()
	d, err := time.ParseDuration(text)
	fix := "write a duration like 1m30s, 500ms or 0s"
	if never {
		fix += ", or never"
		if text == "never" {
			return algorithm.Never
		}
	}
	if err != nil || d < 0 {
		r.problem(v.Pos, fix, "%s is invalid: %s", what, r.as(v))
		return 0
	}
	return d
}

// as is a value as a message shows it.
func (r *reader) as(v *yamlrules.Value) string {
	if text, ok := v.Text(); ok {
		return quote(text)
	}
	return v.Type()
}

func (r *reader) root(v *yamlrules.Value) {
	f := r.file
	var source, tests *yamlrules.Value
	var opt rules.Options
	isMap := r.fields(v, "the file", map[string]func(*yamlrules.Value){
		"rules": func(v *yamlrules.Value) { source = v },
		"settings": func(v *yamlrules.Value) {
			r.fields(v, "settings", map[string]func(*yamlrules.Value){
				"MERGE_DOMAIN_CONFIG": func(v *yamlrules.Value) { opt.MergeDomains = r.flag(v, "MERGE_DOMAIN_CONFIG") },
				"SHADOW_MODE":         func(v *yamlrules.Value) { f.modes.Shadow = r.flag(v, "SHADOW_MODE") },
				"QUOTA_MODE":          func(v *yamlrules.Value) { f.modes.Quota = r.flag(v, "QUOTA_MODE") },
				"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": func(v *yamlrules.Value) {
					f.modes.AllOrNothing = r.flag(v, "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT")
				},
			})
		},
		"tests": func(v *yamlrules.Value) { tests = v },
	})
	switch {
	case !isMap:
		return
	case source == nil:
		r.problem(v.Pos, "add `rules: <directory or file, as seen from this file>`", "the file does not say which rules it tests")
	default:
		r.rules(source, opt)
	}
	r.some(v, tests, "the file has no tests", "tests", r.test)
}

// some reads a list that has to be there, below v, and to have something in it.
func (r *reader) some(v, list *yamlrules.Value, without, what string, read func(*yamlrules.Value)) {
	if list == nil {
		r.problem(v.Pos, "add `"+what+":` and a list", "%s", without)
		return
	}
	r.each(list, what, read)
	if items, ok := list.Items(); ok && len(items) == 0 {
		r.problem(list.Pos, "add one", "%s", without)
	}
}

// rules loads the rules that the file is about.
func (r *reader) rules(v *yamlrules.Value, opt rules.Options) {
	path := r.text(v, "rules")
	if path == "" {
		return
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(r.file.Name), filepath.FromSlash(path))
	}
	files, _, unread := filerules.Read(path, false)
	set, _, refused := loading.Load(files, opt)
	for _, err := range []error{unread, refused} {
		if problems := (rules.Problems{}); errors.As(err, &problems) {
			set = nil
			r.problems = append(r.problems, problems...)
		}
	}
	r.file.set = set
}

func (r *reader) test(v *yamlrules.Value) {
	t := test{Pos: v.Pos, start: defaultStart}
	var steps *yamlrules.Value
	isMap := r.fields(v, "a test", map[string]func(*yamlrules.Value){
		"name": func(v *yamlrules.Value) { t.name = r.text(v, "name") },
		"start": func(v *yamlrules.Value) {
			text := r.text(v, "start")
			start, err := time.Parse(time.RFC3339, text)
			if err != nil || start.Before(time.Unix(0, 0)) || start.After(latest) {
				r.problem(v.Pos, "write an instant like 2026-01-01T00:00:00Z, from 1970 to 2148", "start is invalid: %s", quote(text))
				start = defaultStart
			}
			t.start = start
		},
		"steps": func(v *yamlrules.Value) { steps = v },
	})
	if !isMap {
		return
	}
	if t.name == "" {
		r.problem(v.Pos, "add `name:`", "the test has no name")
	} else if i := slices.IndexFunc(r.file.tests, func(other test) bool { return other.name == t.name }); i >= 0 {
		r.problem(v.Pos, "give it another name", "the test %s is there already, at %v", quote(t.name), r.file.tests[i].Pos)
	}
	r.some(v, steps, "the test has no steps", "steps", func(v *yamlrules.Value) { r.step(v, &t) })
	r.file.tests = append(r.file.tests, t)
}

func (r *reader) step(v *yamlrules.Value, t *test) {
	s := step{Pos: v.Pos}
	if n := len(t.steps); n > 0 {
		s.at = t.steps[n-1].at
	}
	before, requests, found := s.at, 0, len(r.problems)
	var times, hits *yamlrules.Value
	isMap := r.fields(v, "a step", map[string]func(*yamlrules.Value){
		"at": func(v *yamlrules.Value) {
			s.at = r.duration(v, "at", false)
			switch {
			case s.at < before:
				r.problem(v.Pos, "put the steps in the order of their times", "%v is before the step above, which is at %v", s.at, before)
			case s.at > latest.Sub(t.start):
				r.problem(v.Pos, "stay below", "%v after the start is beyond the year 2148", s.at)
			}
		},
		"request": func(v *yamlrules.Value) { requests++; r.request(v, &s.request) },
		"ask":     func(v *yamlrules.Value) { requests++; r.ask(v, &s.request) },
		"hits":    func(v *yamlrules.Value) { hits = v },
		"times":   func(v *yamlrules.Value) { times = v },
		"expect":  func(v *yamlrules.Value) { r.expect(v, &s) },
		"statuses": func(v *yamlrules.Value) {
			s.statuses = []status{}
			r.each(v, "statuses", func(v *yamlrules.Value) { r.status(v, &s) })
		},
		"wait": func(v *yamlrules.Value) { s.wait = waits(r.duration(v, "wait", true)) },
	})
	switch {
	case !isMap:
		return
	case requests == 0:
		r.problem(v.Pos, "add `ask: \"domain: key=value\"` or `request:`", "the step has no request")
	case requests > 1:
		r.problem(v.Pos, "remove one of them", "the step has both ask and request")
	}
	r.hits(hits, &s.request)
	r.times(times, &s)
	if requests == 1 && len(r.problems) == found { // else one mistake would be two problems
		r.fits(&s)
	}
	t.steps = append(t.steps, s)
}

// hits puts the hits of a step into each descriptor, where 0 means a look.
func (r *reader) hits(v *yamlrules.Value, req *limiter.Request) {
	if v == nil {
		return
	}
	n := r.number(v, "hits", math.MaxUint64)
	for i := range req.Descriptors {
		if d := &req.Descriptors[i]; !d.HasHits {
			d.HasHits, d.Hits = true, n
		}
	}
}

// times makes as many repetitions as are asked for, or answers expected.
func (r *reader) times(v *yamlrules.Value, s *step) {
	s.times = max(len(s.expect), 1)
	if v == nil {
		return
	}
	n := int(min(r.number(v, "times", maxTimes), maxTimes))
	switch {
	case n == 0:
		r.problem(v.Pos, "write 1 or more, or remove the step", "a step that happens 0 times tests nothing")
	case len(s.expect) > 1 && len(s.expect) != n:
		r.problem(v.Pos, "write one answer for all, or one for each", "the request is sent %d times, and %d answers are expected", n, len(s.expect))
	}
	s.times = max(n, 1)
}

// codes are the answers there are.
var codes = []string{"OK", "OVER_LIMIT"}

func (r *reader) code(v *yamlrules.Value, what string) string {
	text, _ := v.Text()
	if !slices.Contains(codes, text) {
		r.problem(v.Pos, "write OK or OVER_LIMIT", "%s is %s", what, r.as(v))
	}
	return text
}

func (r *reader) expect(v *yamlrules.Value, s *step) {
	if _, ok := v.Text(); ok {
		s.expect = []string{r.code(v, "expect")}
		return
	}
	r.each(v, "expect", func(v *yamlrules.Value) { s.expect = append(s.expect, r.code(v, "an answer")) })
	if len(s.expect) == 0 {
		r.problem(v.Pos, "write OK or OVER_LIMIT", "expect has no answer in it")
	}
}

func (r *reader) status(v *yamlrules.Value, s *step) {
	want := make(map[string]string)
	count := func(name string) func(*yamlrules.Value) {
		return func(v *yamlrules.Value) { want[name] = strconv.FormatUint(r.number(v, name, math.MaxUint64), 10) }
	}
	r.fields(v, "a status", map[string]func(*yamlrules.Value){
		"code": func(v *yamlrules.Value) { want["code"] = r.code(v, "code") },
		"rule": func(v *yamlrules.Value) {
			want["rule"] = ""
			if !v.Null() {
				want["rule"] = r.text(v, "rule")
			}
		},
		"limit":     count("limit"),
		"remaining": count("remaining"),
		"reset":     func(v *yamlrules.Value) { want["reset"] = waits(r.duration(v, "reset", false)) },
		"wait":      func(v *yamlrules.Value) { want["wait"] = waits(r.duration(v, "wait", true)) },
	})
	s.statuses = append(s.statuses, status{v.Pos, want})
}

// fits looks at what the parts of a step have to do with each other.
func (r *reader) fits(s *step) {
	if n := len(s.request.Descriptors); s.statuses != nil && len(s.statuses) != n {
		r.problem(s.Pos, "write one for each, `{}` for any", "the request has %s, and statuses are given for %d", plural(n, "descriptor"), len(s.statuses))
	}
	if r.file.set == nil {
		return
	}
	for i := range s.statuses {
		rule := s.statuses[i].want["rule"]
		if rule == "" {
			continue
		}
		domain := string(s.request.Domain)
		var known []string
		for _, one := range r.file.set.Rules() {
			if one.Domain == domain {
				known = append(known, strings.TrimPrefix(one.Key, domain+"."))
			}
		}
		name := strings.TrimPrefix(rule, domain+".")
		if slices.Contains(known, name) {
			continue
		}
		fix := "`/rlconfig` of a service lists them, or leave it empty for none"
		if meant := rules.Near(name, slices.Values(known)); meant != "" {
			fix = "did you mean " + meant + "?"
		}
		r.problem(s.statuses[i].Pos, fix, "domain %s has no rule %s", quote(domain), quote(rule))
	}
}

// quote is s for a message, cut if it is long.
func quote(s string) string {
	const most = 60
	if len(s) > most {
		return fmt.Sprintf("%q... (%d bytes)", strings.ToValidUTF8(s[:most], ""), len(s))
	}
	return strconv.Quote(s)
}
