// Package ruletest runs tests of rule files: YAML that teams keep beside their
// rules, of requests and what they should be answered. The tests run on a store
// in memory and on a clock of their own.
package ruletest

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/loading"
	"ratelimit/src/rules/yamlrules"
	"ratelimit/src/tools/check"
)

// File is a file of tests, with the rules they are about.
type File struct {
	Name  string
	set   *rules.Set
	modes limiter.Config
	tests []test
}

// test is a list of steps that begins with empty counters.
type test struct {
	rules.Pos
	name  string
	start time.Time
	steps []step
}

// step is a request, sent once or several times at one instant.
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

// defaultStart is the start of tests that name none: at an edge of all units but the week.
var defaultStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// latest is beyond what stores work with.
var latest = time.Date(2149, 1, 1, 0, 0, 0, 0, time.UTC)

// maxTimes bounds how often a step sends its request.
const maxTimes = 1_000_000

// Read reads a file of tests and the rules it names, by a path relative to the file.
// The problems are all that is wrong with either.
func Read(name string, data []byte) (*File, rules.Problems) {
	root, problems := yamlrules.ReadValue(name, data)
	r := reader{file: &File{Name: name}, Problems: problems}
	switch {
	case root != nil && !root.Null():
		r.root(root)
	case len(problems) == 0:
		r.Add(rules.Pos{File: name}, "add `rules:` and `tests:`", "the file is empty")
	}
	r.Sort()
	// One mistake is one problem, also behind several aliases.
	problems = slices.CompactFunc(r.Problems, func(a, b rules.Problem) bool { return a.Line > 0 && a.Pos == b.Pos })
	if len(problems) > 0 {
		return nil, problems
	}
	return r.file, nil
}

func (r *reader) root(v *yamlrules.Value) {
	var source, tests *yamlrules.Value
	var opt rules.Options
	modes := &r.file.modes
	settings := keys{
		"MERGE_DOMAIN_CONFIG": to(&opt.MergeDomains, r.flag),
		"SHADOW_MODE":         to(&modes.Shadow, r.flag),
		"QUOTA_MODE":          to(&modes.Quota, r.flag),
		"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": to(&modes.AllOrNothing, r.flag),
	}
	isMap := r.fields(v, "the file", keys{
		"rules":    to(&source, itself),
		"settings": func(v *yamlrules.Value, what string) { r.fields(v, what, settings) },
		"tests":    to(&tests, itself),
	})
	switch {
	case !isMap:
		return
	case source == nil:
		r.Add(v.Pos, "add `rules: <directory or file, as seen from this file>`", "the file does not say which rules it tests")
	default:
		r.rules(source, opt)
	}
	r.filled(v, tests, "tests", "the file has no tests", r.test)
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
			r.Problems = append(r.Problems, problems...)
		}
	}
	r.file.set = set
}

func (r *reader) test(v *yamlrules.Value) {
	t := test{Pos: v.Pos, start: defaultStart}
	var steps *yamlrules.Value
	if !r.fields(v, "a test", keys{"name": to(&t.name, r.text), "start": to(&t.start, r.instant), "steps": to(&steps, itself)}) {
		return
	}
	if t.name == "" {
		r.Add(v.Pos, "add `name:`", "the test has no name")
	} else if i := slices.IndexFunc(r.file.tests, func(other test) bool { return other.name == t.name }); i >= 0 {
		r.Add(v.Pos, "give it another name", "the test %s is there already, at %v", rules.Quote(t.name), r.file.tests[i].Pos)
	}
	r.filled(v, steps, "steps", "the test has no steps", func(v *yamlrules.Value) { r.step(v, &t) })
	r.file.tests = append(r.file.tests, t)
}

func (r *reader) step(v *yamlrules.Value, t *test) {
	s := step{Pos: v.Pos}
	before, found := time.Duration(0), len(r.Problems)
	if n := len(t.steps); n > 0 {
		before = t.steps[n-1].at
	}
	var at, ask, request, times, hits *yamlrules.Value
	if !r.fields(v, "a step", keys{
		"at":      to(&at, itself),
		"request": to(&request, itself),
		"ask":     to(&ask, itself),
		"hits":    to(&hits, itself),
		"times":   to(&times, itself),
		"expect":  to(&s.expect, r.codes),
		"statuses": func(v *yamlrules.Value, what string) {
			s.statuses = []status{}
			r.each(v, what, func(v *yamlrules.Value) { s.statuses = append(s.statuses, r.status(v)) })
		},
		"wait": to(&s.wait, r.wait),
	}) {
		return
	}
	if s.at = before; at != nil {
		s.at = r.stepTime(at, before, t.start)
	}
	switch {
	case ask == nil && request == nil:
		r.Add(v.Pos, "add `ask: \"domain: key=value\"` or `request:`", "the step has no request")
	case ask != nil && request != nil:
		r.Add(v.Pos, "remove one of them", "the step has both ask and request")
	}
	if request != nil {
		r.request(request, &s.request)
	}
	if ask != nil {
		r.ask(ask, &s.request)
	}
	r.hits(hits, &s.request)
	r.times(times, &s)
	if len(r.Problems) == found { // else one mistake would be two problems
		r.statusesFit(&s)
	}
	t.steps = append(t.steps, s)
}

// stepTime reads the time of a step, which is not before that of the step above.
func (r *reader) stepTime(v *yamlrules.Value, before time.Duration, start time.Time) time.Duration {
	at := r.duration(v, "at")
	switch {
	case at < before:
		r.Add(v.Pos, "put the steps in the order of their times", "%v is before the step above, which is at %v", at, before)
	case at > latest.Sub(start):
		r.Add(v.Pos, "stay below", "%v after the start is beyond the year 2148", at)
	}
	return at
}

// hits puts the hits of a step into each descriptor. 0 hits read the counter and charge nothing.
func (r *reader) hits(v *yamlrules.Value, req *limiter.Request) {
	if v == nil {
		return
	}
	n := r.uint64(v, "hits")
	for i := range req.Descriptors {
		if d := &req.Descriptors[i]; !d.HasHits {
			d.HasHits, d.Hits = true, n
		}
	}
}

// times reads how often the request is sent: by default once for each expected answer.
func (r *reader) times(v *yamlrules.Value, s *step) {
	s.times = max(len(s.expect), 1)
	if v == nil {
		return
	}
	n := int(min(r.number(v, "times", maxTimes), maxTimes))
	switch {
	case n == 0:
		r.Add(v.Pos, "write 1 or more, or remove the step", "a step that happens 0 times tests nothing")
	case len(s.expect) > 1 && len(s.expect) != n:
		r.Add(v.Pos, "write one answer for all, or one for each", "the request is sent %d times, and %d answers are expected", n, len(s.expect))
	}
	s.times = max(n, 1)
}

// codes reads one code, or a list with one for each answer.
func (r *reader) codes(v *yamlrules.Value, what string) (codes []string) {
	if _, ok := v.Text(); ok {
		return []string{r.code(v, what)}
	}
	r.each(v, what, func(v *yamlrules.Value) { codes = append(codes, r.code(v, "an answer")) })
	if len(codes) == 0 {
		r.Add(v.Pos, "write OK or OVER_LIMIT", "expect has no answer in it")
	}
	return codes
}

func (r *reader) status(v *yamlrules.Value) status {
	want := make(map[string]string)
	field := func(read func(*yamlrules.Value, string) string) func(*yamlrules.Value, string) {
		return func(v *yamlrules.Value, what string) { want[what] = read(v, what) }
	}
	r.fields(v, "a status", keys{
		"code": field(r.code), "rule": field(r.optionalText), "limit": field(r.count), "remaining": field(r.count),
		"reset": field(r.period), "wait": field(r.wait),
	})
	return status{v.Pos, want}
}

// statusesFit checks that the statuses of a step belong to its descriptors, and name rules
// that exist.
func (r *reader) statusesFit(s *step) {
	if n := len(s.request.Descriptors); s.statuses != nil && len(s.statuses) != n {
		r.Add(s.Pos, "write one for each, `{}` for any", "the request has %s, and statuses are given for %d",
			check.Plural(n, "descriptor"), len(s.statuses))
	}
	if r.file.set == nil {
		return
	}
	domain := string(s.request.Domain)
	var known []string
	for _, one := range r.file.set.Rules() {
		if one.Domain == domain {
			known = append(known, strings.TrimPrefix(one.Key, domain+"."))
		}
	}
	for _, st := range s.statuses {
		rule := st.want["rule"]
		name := strings.TrimPrefix(rule, domain+".")
		if rule == "" || slices.Contains(known, name) {
			continue
		}
		fix := "`/rlconfig` of a service lists them, or leave it empty for none"
		if meant := rules.Near(name, slices.Values(known)); meant != "" {
			fix = "did you mean " + meant + "?"
		}
		r.Add(st.Pos, fix, "domain %s has no rule %s", rules.Quote(domain), rules.Quote(rule))
	}
}
