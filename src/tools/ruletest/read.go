// Package ruletest runs tests of rule files: YAML that teams keep beside their rules, with requests and the answers
// that they expect. The tests run on a store in memory and on a clock of their own.
package ruletest

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/yamlrules"
	"ratelimit/src/tools/check"
)

// File is a file of tests, with the rules that they test.
type File struct {
	Name  string
	set   *rules.Set
	modes limiter.Config // the settings of the file. Its Backend is not set.
	tests []test
}

// test is a list of steps. Each test starts with empty counters.
type test struct {
	rules.Pos
	name  string
	start time.Time
	steps []step
}

// step is a request that a test sends once or several times at one instant.
type step struct {
	rules.Pos
	at       time.Duration // the time since the start of the test.
	request  limiter.Request
	times    int
	expect   []string         // the code of each answer, or one code for all; nil accepts any code.
	statuses []expectedStatus // of the last answer; nil accepts any status.
	wait     string           // the waiting time of the last answer; empty accepts any time.
}

// expectedStatus is what a step expects as the status of one descriptor.
type expectedStatus struct {
	rules.Pos
	want map[string]string // maps names of statusFields to values. Fields without a name here may have any value.
}

// defaultStart is the start of tests that name none. There all units but the week start a window.
var defaultStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// latestTime is later than any time that the stores support.
var latestTime = time.Date(2149, 1, 1, 0, 0, 0, 0, time.UTC)

// maxTimes is the most times that a step may send its request.
const maxTimes = 1_000_000

// Read reads a file of tests, and the rules that it names by a path relative to the file, or returns the problems.
func Read(name string, data []byte) (*File, rules.Problems) {
	root, problems := yamlrules.ReadValue(name, data)
	r := reader{file: &File{Name: name}, Problems: problems}
	switch {
	case root != nil && !root.IsNull():
		r.root(root)
	case len(problems) == 0:
		r.Add(rules.Pos{File: name}, "add `rules:` and `tests:`", "the file is empty")
	}
	r.Sort()
	// A value that several aliases repeat is read several times, but its problem is reported once.
	problems = slices.CompactFunc(r.Problems, func(a, b rules.Problem) bool { return a.Line > 0 && a.Pos == b.Pos })
	if len(problems) > 0 {
		return nil, problems
	}
	return r.file, nil
}

func (r *reader) root(v *yamlrules.Value) {
	var source, tests *yamlrules.Value
	var opt compile.Options
	modes := &r.file.modes
	settings := map[string]valueReader{
		"MERGE_DOMAIN_CONFIG": storeIn(&opt.MergeDomains, r.flag),
		"SHADOW_MODE":         storeIn(&modes.ShadowMode, r.flag),
		"QUOTA_MODE":          storeIn(&modes.QuotaMode, r.flag),
		"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT": storeIn(&modes.ChargeAllOrNothing, r.flag),
	}
	isMap := r.fields(v, "the file", map[string]valueReader{
		"rules":    storeIn(&source, readLater),
		"settings": func(v *yamlrules.Value, name string) { r.fields(v, name, settings) },
		"tests":    storeIn(&tests, readLater),
	})
	switch {
	case !isMap:
		return
	case source == nil:
		r.Add(v.Pos, "add `rules: <directory or file, as seen from this file>`", "the file does not say which rules it tests")
	default:
		r.loadRules(source, opt)
	}
	r.requiredList(v, tests, "tests", "the file has no tests", r.test)
}

// loadRules loads the rules that the file tests. v is their path.
func (r *reader) loadRules(v *yamlrules.Value, opt compile.Options) {
	path := r.text(v, "rules")
	if path == "" {
		return
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(r.file.Name), filepath.FromSlash(path))
	}
	loaded := check.Load([]string{path}, opt)
	r.file.set = loaded.Set
	r.Problems = append(r.Problems, loaded.Problems...)
}

func (r *reader) test(v *yamlrules.Value) {
	t := test{Pos: v.Pos, start: defaultStart}
	var steps *yamlrules.Value
	if !r.fields(v, "a test", map[string]valueReader{
		"name": storeIn(&t.name, r.text), "start": storeIn(&t.start, r.instant), "steps": storeIn(&steps, readLater),
	}) {
		return
	}
	if t.name == "" {
		r.Add(v.Pos, "add `name:`", "the test has no name")
	} else if i := slices.IndexFunc(r.file.tests, func(other test) bool { return other.name == t.name }); i >= 0 {
		r.Add(v.Pos, "give it another name", "the test %s is there already, at %v", rules.Quote(t.name), r.file.tests[i].Pos)
	}
	r.requiredList(v, steps, "steps", "the test has no steps", func(v *yamlrules.Value) { r.step(v, &t) })
	r.file.tests = append(r.file.tests, t)
}

// step reads a step and appends it to t.
func (r *reader) step(v *yamlrules.Value, t *test) {
	s := step{Pos: v.Pos}
	if n := len(t.steps); n > 0 {
		s.at = t.steps[n-1].at
	}
	found, requests := len(r.Problems), 0
	var times, hits *yamlrules.Value
	addRequest := func(read func(*yamlrules.Value, *limiter.Request)) valueReader {
		return func(v *yamlrules.Value, _ string) {
			requests++
			read(v, &s.request)
			if n := len(s.request.Descriptors); n > limiter.MaxDescriptors {
				r.Add(v.Pos, "use fewer", "a request of %d descriptors is refused; %d is the most", n, limiter.MaxDescriptors)
			}
		}
	}
	if !r.fields(v, "a step", map[string]valueReader{
		"at":      func(v *yamlrules.Value, _ string) { s.at = r.stepTime(v, s.at, t.start) },
		"request": addRequest(r.request),
		"ask":     addRequest(r.ask),
		"hits":    storeIn(&hits, readLater),
		"times":   storeIn(&times, readLater),
		"expect":  storeIn(&s.expect, r.codes),
		"statuses": func(v *yamlrules.Value, name string) {
			s.statuses = []expectedStatus{}
			r.each(v, name, func(v *yamlrules.Value) { s.statuses = append(s.statuses, r.status(v)) })
		},
		"wait": storeIn(&s.wait, r.wait),
	}) {
		return
	}
	switch requests {
	case 0:
		r.Add(v.Pos, "add `ask: \"domain: key=value\"` or `request:`", "the step has no request")
	case 2:
		r.Add(v.Pos, "remove one of them", "the step has both ask and request")
	}
	r.hits(hits, &s.request)
	r.times(times, &s)
	if len(r.Problems) == found { // Otherwise a mistake in the request could be reported twice.
		r.checkStatuses(&s)
	}
	t.steps = append(t.steps, s)
}

// stepTime reads the time of a step since the start of the test. previous is that of the step above.
func (r *reader) stepTime(v *yamlrules.Value, previous time.Duration, start time.Time) time.Duration {
	at := r.duration(v, "at", durationFix)
	switch {
	case at < previous:
		r.Add(v.Pos, "put the steps in the order of their times", "%v is before the step above, which is at %v", at, previous)
	case at > latestTime.Sub(start):
		r.Add(v.Pos, "stay below", "%v after the start is beyond the year 2148", at)
	}
	return at
}

// hits sets the hits of each descriptor that has none of its own. 0 hits charge nothing. v may be nil.
func (r *reader) hits(v *yamlrules.Value, req *limiter.Request) {
	if v == nil {
		return
	}
	n := r.uint64(v, "hits")
	for i := range req.Descriptors {
		if d := &req.Descriptors[i]; !d.HasAmount {
			d.HasAmount, d.Amount = true, n
		}
	}
}

// times sets how often the step sends its request: by default once for each expected answer. v may be nil.
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
		r.Add(v.Pos, "write one answer for all, or one for each", "the request is sent %d times, and %d answers are expected",
			n, len(s.expect))
	}
	s.times = max(n, 1)
}

// codes reads one code, or a list with a code for each answer.
func (r *reader) codes(v *yamlrules.Value, name string) (codes []string) {
	if v.IsScalar() {
		return []string{r.code(v, name)}
	}
	r.each(v, name, func(v *yamlrules.Value) { codes = append(codes, r.code(v, "an answer")) })
	if len(codes) == 0 {
		r.Add(v.Pos, "write OK or OVER_LIMIT", "expect has no answer in it")
	}
	return codes
}

func (r *reader) status(v *yamlrules.Value) expectedStatus {
	st := expectedStatus{v.Pos, make(map[string]string)}
	known := make(map[string]valueReader)
	for _, f := range statusFields {
		known[f.name] = func(v *yamlrules.Value, name string) { st.want[name] = f.read(r, v, name) }
	}
	r.fields(v, "a status", known)
	return st
}

// checkStatuses checks that a step expects as many statuses as it has descriptors, and that the expected rules exist.
func (r *reader) checkStatuses(s *step) {
	if n := len(s.request.Descriptors); s.statuses != nil && len(s.statuses) != n {
		r.Add(s.Pos, "write one for each, `{}` for any", "the request has %s, and statuses are given for %d",
			output.Plural(n, "descriptor"), len(s.statuses))
	}
	if r.file.set == nil {
		return
	}
	domain := string(s.request.Domain)
	var known []string
	for _, rule := range r.file.set.Rules() {
		if rule.Domain == domain {
			known = append(known, strings.TrimPrefix(rule.FullName, domain+"."))
		}
	}
	for _, st := range s.statuses {
		rule := st.want["rule"]
		name := strings.TrimPrefix(rule, domain+".")
		if rule == "" || slices.Contains(known, name) {
			continue
		}
		fix := "`/rlconfig` of a service lists them, or leave it empty for none"
		if meant := rules.NearestWord(name, slices.Values(known)); meant != "" {
			fix = "did you mean " + meant + "?"
		}
		r.Add(st.Pos, fix, "domain %s has no rule %s", rules.Quote(domain), rules.Quote(rule))
	}
}
