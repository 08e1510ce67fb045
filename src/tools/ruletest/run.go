package ruletest

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/explain"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/src/rules/yamlrules"
	"ratelimit/src/tools/check"
)

// Result is the result of a file. Its JSON form is stable: fields are only added.
type Result struct {
	File     string   `json:"file"`
	Problems []string `json:"problems"` // say why the tests of the file cannot run; empty if they ran.
	Tests    []Test   `json:"tests"`
	problems rules.Problems
}

// Test is the result of a test.
type Test struct {
	Name     string    `json:"name"`
	At       string    `json:"at"`
	Passed   bool      `json:"passed"`
	Requests int       `json:"requests"`
	Failures []Failure `json:"failures"`
}

// Failure is a step whose answers were not as expected.
type Failure struct {
	At          string          `json:"at"`
	Time        string          `json:"time"`
	Ask         string          `json:"ask"`
	Repetition  int             `json:"repetition"` // the first request whose answer was not as expected
	Times       int             `json:"times"`      // how many times the step sent its request
	Failed      int             `json:"failed"`     // how many answers were not as expected
	Differences []Difference    `json:"differences"`
	Explanation *explain.Report `json:"explanation"`
	pos         rules.Pos
}

// Difference is a part of an answer that is not as expected.
type Difference struct {
	What string `json:"what"`
	Got  string `json:"got"`
	Want string `json:"want"`
}

// badResult returns the result of a file whose tests cannot run because of problems.
func badResult(file string, problems rules.Problems) Result {
	r := Result{File: file, Problems: []string{}, Tests: []Test{}}
	for _, p := range problems {
		r.addProblem(p)
	}
	return r
}

func (r *Result) addProblem(p rules.Problem) {
	r.Problems, r.problems = append(r.Problems, p.String()), append(r.problems, p)
}

// Run runs the tests of f. If pick is not nil, it runs only tests whose names match pick.
func (f *File) Run(ctx context.Context, pick *regexp.Regexp) Result {
	r := Result{File: f.Name, Problems: []string{}, Tests: []Test{}}
	for i := range f.tests {
		t := &f.tests[i]
		if pick != nil && !pick.MatchString(t.name) {
			continue
		}
		done, err := f.run(ctx, t)
		if err != nil {
			r.addProblem(rules.Problem{Message: err.Error()})
		}
		r.Tests = append(r.Tests, done)
	}
	return r
}

func (f *File) run(ctx context.Context, t *test) (Test, error) {
	out := Test{Name: t.name, At: t.Pos.String(), Failures: []Failure{}}
	store, err := memory.New(memory.Config{})
	if err != nil {
		return out, err
	}
	modes := f.modes
	modes.Backend = store
	l := limiter.New(modes)
	l.UseRules(f.set)
	for i := range t.steps {
		s := &t.steps[i]
		s.request.Now = t.start.Add(s.at)
		failure, err := s.run(ctx, l)
		if err != nil {
			return out, err
		}
		out.Requests += s.times
		if failure != nil {
			out.Failures = append(out.Failures, *failure)
		}
	}
	out.Passed = len(out.Failures) == 0
	return out, nil
}

// run sends the request of the step as often as the step says. The failure is nil if all answers were as expected.
func (s *step) run(ctx context.Context, l *limiter.Limiter) (failure *Failure, err error) {
	var a limiter.Answer
	for i := range s.times {
		if err := l.Check(ctx, &s.request, &a); err != nil {
			return nil, fmt.Errorf("%v: %w", s.Pos, err)
		}
		differences := s.compare(&a, i)
		if len(differences) == 0 {
			continue
		}
		if failure == nil {
			report, err := explain.NewReport(ctx, &s.request, &a, true)
			if err != nil {
				return nil, fmt.Errorf("%v: %w", s.Pos, err)
			}
			failure = &Failure{
				At: s.Pos.String(), Time: s.at.String(), Ask: shortForm(&s.request),
				Repetition: i + 1, Times: s.times, Differences: differences,
				Explanation: report, pos: s.Pos,
			}
		}
		failure.Failed++
	}
	return failure, nil
}

// statusFields are the parts of a status that a test can expect, in the order in which their differences are reported.
// read reads the expected value from the file of tests; of returns the value that the limiter answered.
var statusFields = []struct {
	name string
	read func(*reader, *yamlrules.Value, string) string
	of   func(*limiter.Status) string
}{
	{"code", (*reader).code, func(st *limiter.Status) string { return limiter.CodeName(st.Over) }},
	{"rule", (*reader).optionalText, ruleKey},
	{"limit", (*reader).numberText, bindingNumber(func(c *limiter.Charge) uint64 { return c.Limit.Requests })},
	{"remaining", (*reader).numberText, bindingNumber(func(c *limiter.Charge) uint64 { return c.Verdict.Remaining })},
	{"reset", (*reader).resetTime, func(st *limiter.Status) string { return waitText(st.ResetAfter) }},
	{"wait", (*reader).wait, func(st *limiter.Status) string { return waitText(st.RetryAfter) }},
}

// bindingNumber returns a function that formats a number of a status's binding limit; "0" without such a limit.
func bindingNumber(of func(*limiter.Charge) uint64) func(*limiter.Status) string {
	return func(st *limiter.Status) string {
		if st.BindingCharge == nil {
			return "0"
		}
		return fmt.Sprint(of(st.BindingCharge))
	}
}

// compare returns how the answer to one repetition, counted from 0, differs from what the step expects.
func (s *step) compare(a *limiter.Answer, repetition int) (list []Difference) {
	differ := func(what, got, want string) {
		if got != want {
			list = append(list, Difference{what, got, want})
		}
	}
	if n := len(s.expect); n > 0 {
		differ("answer", limiter.CodeName(a.Over), s.expect[min(repetition, n-1)])
	}
	if repetition < s.times-1 {
		return list
	}
	if s.wait != "" {
		differ("wait", waitText(a.RetryAfter), s.wait)
	}
	for i := range s.statuses {
		for _, f := range statusFields {
			want, ok := s.statuses[i].want[f.name]
			if !ok {
				continue
			}
			got := f.of(&a.Statuses[i])
			if f.name == "rule" { // A test may name a rule with the domain, as /rlconfig does, or without it.
				domain := string(s.request.Domain) + "."
				got = cmp.Or(strings.TrimPrefix(got, domain), "none")
				want = cmp.Or(strings.TrimPrefix(want, domain), "none")
			}
			differ("descriptor "+strconv.Itoa(i+1)+", "+f.name, got, want)
		}
	}
	return list
}

// ruleKey returns the name of the rule with the binding limit, or of one without a limit; empty for no rule.
func ruleKey(st *limiter.Status) string {
	switch c := st.BindingCharge; {
	case c != nil && c.Rule != nil:
		return c.Rule.FullName
	case c == nil && st.Match != nil:
		return st.Match.FullName
	}
	return ""
}

// waitText returns a waiting time as tests write it.
func waitText(d time.Duration) string {
	if d == algorithm.Never {
		return "never"
	}
	return d.String()
}

// shortForm returns a request in the form of the key `ask`: "domain: key=value, key=value + key=value".
func shortForm(req *limiter.Request) string {
	descriptors := make([]string, len(req.Descriptors))
	for i, d := range req.Descriptors {
		pairs := make([]string, len(d.Entries))
		for j, e := range d.Entries {
			pairs[j] = string(e.Key) + "=" + string(e.Value)
		}
		descriptors[i] = strings.Join(pairs, ", ")
	}
	return string(req.Domain) + ": " + strings.Join(descriptors, " + ")
}

// Summary is the outcome of several files. Its JSON form is stable.
type Summary struct {
	Passed int      `json:"passed"`
	Failed int      `json:"failed"`
	Bad    int      `json:"bad"` // counts files whose tests could not run because of problems.
	Files  []Result `json:"files"`
}

// RunPaths runs the tests of files and of directories. If pick is not nil, it runs only tests whose names match pick.
func RunPaths(ctx context.Context, paths []string, pick *regexp.Regexp) *Summary {
	sum := &Summary{Files: []Result{}}
	seen := make(map[string]bool) // paths may name a file and also the directory that has it
	for _, path := range paths {
		files, problems := readPath(path)
		if len(problems) > 0 {
			sum.add(badResult(path, problems))
		}
		for _, f := range files {
			if seen[f.Name] {
				continue
			}
			seen[f.Name] = true
			if tests, problems := Read(f.Name, f.Data); len(problems) > 0 {
				sum.add(badResult(f.Name, problems))
			} else {
				sum.add(tests.Run(ctx, pick))
			}
		}
	}
	return sum
}

func (s *Summary) add(r Result) {
	for i := range r.Tests {
		if r.Tests[i].Passed {
			s.Passed++
		} else {
			s.Failed++
		}
	}
	if len(r.Problems) > 0 {
		s.Bad++
	}
	s.Files = append(s.Files, r)
}

// readPath reads a file of tests, or all files of tests in a directory.
func readPath(path string) ([]filerules.File, rules.Problems) {
	files, _, err := filerules.Read(path)
	problems := check.Problems(err)
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return files, problems
	}
	files = slices.DeleteFunc(files, func(f filerules.File) bool {
		return !strings.HasSuffix(f.Name, "_test.yaml") && !strings.HasSuffix(f.Name, "_test.yml")
	})
	if len(files) == 0 && len(problems) == 0 {
		problems = rules.Problems{{
			Pos: rules.Pos{File: path}, Message: "there are no tests here",
			Fix: "name them *_test.yaml, or name the file itself",
		}}
	}
	return files, problems
}
