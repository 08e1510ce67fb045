package ruletest

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/explain"
	"ratelimit/src/rules"
	"ratelimit/src/rules/yamlrules"
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
	pos      rules.Pos
}

// Failure is a step whose answers were not as expected.
type Failure struct {
	At   string `json:"at"`
	Time string `json:"time"`
	Ask  string `json:"ask"`
	// The step sent its request Times times. Failed counts the answers that were not as expected; Repetition is the first
	// of them.
	Repetition  int             `json:"repetition"`
	Times       int             `json:"times"`
	Failed      int             `json:"failed"`
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

// run runs t on an empty store.
func (f *File) run(ctx context.Context, t *test) (Test, error) {
	out := Test{Name: t.name, At: t.Pos.String(), Failures: []Failure{}, pos: t.Pos}
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
	{"limit", (*reader).numberText, bindingNumber(func(c *limiter.Charge) uint64 { return uint64(c.Limit.Requests) })},
	{"remaining", (*reader).numberText, bindingNumber(func(c *limiter.Charge) uint64 { return c.Verdict.Remaining })},
	{"reset", (*reader).resetTime, func(st *limiter.Status) string { return waitText(st.ResetAfter) }},
	{"wait", (*reader).wait, func(st *limiter.Status) string { return waitText(st.RetryAfter) }},
}

// bindingNumber returns a function that formats a number of a status's binding limit; "0" if the status has no such
// limit.
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

// ruleKey returns the key of the rule with the binding limit, or of the rule that matched if it has no limit; empty for
// no rule.
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
