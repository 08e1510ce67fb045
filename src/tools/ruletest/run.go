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
	"ratelimit/src/rules"
	"ratelimit/src/tools/explain"
)

// Result is the result of a file. Its JSON form is stable: fields are only
// added.
type Result struct {
	File     string   `json:"file"`
	Problems []string `json:"problems"` // of a file that cannot be run
	Tests    []Test   `json:"tests"`
}

// Test is the result of a test.
type Test struct {
	Name     string    `json:"name"`
	At       string    `json:"at"`
	Passed   bool      `json:"passed"`
	Requests int       `json:"requests"`
	Failures []Failure `json:"failures"`
}

// Failure is a step that was not answered as expected.
type Failure struct {
	At   string `json:"at"`
	Time string `json:"time"`
	Ask  string `json:"ask"`
	// Repetition is the first that failed, Times how many there were, Failed how
	// many of them failed.
	Repetition  int             `json:"repetition"`
	Times       int             `json:"times"`
	Failed      int             `json:"failed"`
	Differences []Difference    `json:"differences"`
	Explanation *explain.Report `json:"explanation"`
}

// Difference is a part of an answer that is not as expected.
type Difference struct {
	What string `json:"what"`
	Got  string `json:"got"`
	Want string `json:"want"`
}

// Bad is the result of a file that cannot be run.
func Bad(file string, problems rules.Problems) Result {
	r := Result{File: file, Problems: make([]string, len(problems)), Tests: []Test{}}
	for i, p := range problems {
		r.Problems[i] = p.String()
	}
	return r
}

// Run runs the tests whose names match pick; nil: all.
func (f *File) Run(ctx context.Context, pick *regexp.Regexp) Result {
	r := Result{File: f.Name, Problems: []string{}, Tests: []Test{}}
	for i := range f.tests {
		t := &f.tests[i]
		if pick != nil && !pick.MatchString(t.name) {
			continue
		}
		done, err := f.run(ctx, t)
		if err != nil {
			r.Problems = append(r.Problems, err.Error())
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
	l.Use(f.set)
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

// run sends the request of a step as often as it says. The failure is nil when
// all was as expected.
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
			failure = &Failure{
				At: s.Pos.String(), Time: s.at.String(), Ask: shortForm(&s.request),
				Repetition: i + 1, Times: s.times, Differences: differences,
				Explanation: explain.Of(&s.request, &a, true),
			}
		}
		failure.Failed++
	}
	return failure, nil
}

// statusFields are what a test can expect of a descriptor, in the order of their
// differences.
var statusFields = []struct {
	name string
	of   func(*limiter.Status) string
}{
	{"code", func(st *limiter.Status) string { return code(st.Over) }},
	{"rule", ruleOf},
	{"limit", number(func(c *limiter.Charge) uint64 { return uint64(c.Limit.Requests) })},
	{"remaining", number(func(c *limiter.Charge) uint64 { return c.Verdict.Remaining })},
	{"reset", func(st *limiter.Status) string { return waits(st.ResetAfter) }},
	{"wait", func(st *limiter.Status) string { return waits(st.RetryAfter) }},
}

// number returns a number of the binding charge as text; 0 if there is none.
func number(of func(*limiter.Charge) uint64) func(*limiter.Status) string {
	return func(st *limiter.Status) string {
		if st.Binding == nil {
			return "0"
		}
		return fmt.Sprint(of(st.Binding))
	}
}

// compare returns how the answer to repetition i differs from what is expected.
func (s *step) compare(a *limiter.Answer, i int) (list []Difference) {
	differ := func(what, got, want string) {
		if got != want {
			list = append(list, Difference{what, got, want})
		}
	}
	if n := len(s.expect); n > 0 {
		differ("answer", code(a.Over), s.expect[min(i, n-1)])
	}
	if i < s.times-1 {
		return list
	}
	if s.wait != "" {
		differ("wait", waits(a.RetryAfter), s.wait)
	}
	for i := range s.statuses {
		for _, f := range statusFields {
			want, ok := s.statuses[i].want[f.name]
			if !ok {
				continue
			}
			got := f.of(&a.Statuses[i])
			if f.name == "rule" { // with or without the domain, as in /rlconfig or in the file
				domain := string(s.request.Domain) + "."
				got, want = strings.TrimPrefix(got, domain), strings.TrimPrefix(want, domain)
				got, want = cmp.Or(got, "none"), cmp.Or(want, "none")
			}
			differ("descriptor "+strconv.Itoa(i+1)+", "+f.name, got, want)
		}
	}
	return list
}

// ruleOf returns the key of the rule whose limit the answer tells of, or of the rule
// without a limit; empty if there is no rule.
func ruleOf(st *limiter.Status) string {
	switch c := st.Binding; {
	case c != nil && c.Rule != nil:
		return c.Rule.Key
	case c == nil && st.Rule != nil:
		return st.Rule.Key
	}
	return ""
}

func code(over bool) string {
	if over {
		return "OVER_LIMIT"
	}
	return "OK"
}

func waits(d time.Duration) string {
	if d == algorithm.Never {
		return "never"
	}
	return d.String()
}

// shortForm writes a request as `ask` does.
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
