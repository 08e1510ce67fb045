package explain_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/explain"
	"ratelimit/src/rules"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
	"ratelimit/testbed/testfiles"
)

var update = flag.Bool("update", false, "write testdata/explain.txt anew")

// start returns a limiter over memory.
func start(t testing.TB, cfg limiter.Config, text string) *limiter.Limiter {
	t.Helper()
	set := limitertest.Load(t, []filerules.File{{Name: "a.yaml", Data: []byte(text)}})
	cfg.Backend = limitertest.Store(t, memory.Config{})
	l := limiter.New(cfg)
	l.UseRules(set)
	return l
}

// parse reads "d: user=alex, x=y + ip=1". A descriptor may end in " hits=n" or
// " refund", and in " limit=n" for a limit of its own by the hour.
func parse(t testing.TB, text string) *limiter.Request {
	t.Helper()
	domain, rest, _ := strings.Cut(text, ": ")
	req := &limiter.Request{Domain: []byte(domain), Now: time.Date(2026, 1, 1, 0, 0, 10, 0, time.UTC)}
	for one := range strings.SplitSeq(rest, " + ") {
		var d limiter.Descriptor
		one, d.IsRefund = strings.CutSuffix(one, " refund")
		if before, hits, ok := strings.Cut(one, " hits="); ok {
			one, d.HasAmount = before, true
			if _, err := fmt.Sscan(hits, &d.Amount); err != nil {
				t.Fatal(err)
			}
		}
		if before, most, ok := strings.Cut(one, " limit="); ok {
			one, d.HasLimit, d.Limit = before, true, rules.Rate{Unit: rules.UnitHour, UnitMultiplier: 1}
			if _, err := fmt.Sscan(most, &d.Limit.Requests); err != nil {
				t.Fatal(err)
			}
		}
		for pair := range strings.SplitSeq(one, ", ") {
			if key, value, ok := strings.Cut(pair, "="); ok {
				d.Entries = append(d.Entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
			}
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// look explains a request without and with the state of the counters.
func look(t testing.TB, l *limiter.Limiter, req *limiter.Request, state bool) *explain.Report {
	t.Helper()
	var a limiter.Answer
	if err := l.DryRun(t.Context(), req, &a); err != nil {
		t.Fatal(err)
	}
	return newReport(t, req, &a, state)
}

// newReport returns the report of an answer, which takes little work.
func newReport(t testing.TB, req *limiter.Request, a *limiter.Answer, counters bool) *explain.Report {
	t.Helper()
	report, err := explain.NewReport(t.Context(), req, a, counters)
	if err != nil {
		t.Error(err)
		return new(explain.Report)
	}
	holdToSchema(t, report)
	return report
}

// An explanation compares what is behind the rule that matches, too. It has the budget of a request for that.
func TestExplanationHasABudget(t *testing.T) {
	const limit = "rate_limit: {unit: hour, requests_per_unit: 10}}\n"
	many := func(first string, n int, format string) string {
		var text strings.Builder
		text.WriteString("domain: d\n" + first + limit)
		for i := range n {
			fmt.Fprintf(&text, format+limit, i)
		}
		return text.String()
	}
	for _, tt := range []struct {
		what, rules string
		length      int // of a value that takes too long
	}{
		{
			"regular expressions",
			many("descriptors:\n- {key: path, regex: ^a, ", 5, "- {key: path, regex: \"(b{0,20}%d){0,20}c\", "),
			1000,
		},
		{"wildcards", many("descriptors:\n- {key: path, value: a*, ", 2000, "- {key: path, value: \"*a%04d*b\", "), 8000},
		{"rules of a list", many("rules:\n- {match: {path: \"a*b\"}, ", 2000, "- {match: {path: \"*a%04d*b\"}, "), 8000},
	} {
		l := start(t, limiter.Config{}, tt.rules)
		ask := func(length int) error {
			value := "path=" + strings.Repeat("a", length)
			req := parse(t, "d: "+value+strings.Repeat(" + "+value, 99))
			var a limiter.Answer
			if err := l.DryRun(t.Context(), req, &a); err != nil {
				t.Fatalf("%s: %d bytes are not answered: %v", tt.what, length, err)
			}
			_, err := explain.NewReport(t.Context(), req, &a, true)
			return err
		}
		if err := ask(10); err != nil {
			t.Errorf("%s: a short value: %v", tt.what, err)
		}
		err := ask(tt.length)
		if !errors.Is(err, limiter.ErrRequestTooLarge) || !strings.Contains(err.Error(), "too long to compare") {
			t.Errorf("%s: a long value: %v", tt.what, err)
		}
	}
}

var reportSchema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	return jsonschema.NewCompiler().Compile("../../../api/explanation.schema.json")
})

// holdToSchema reports where the JSON form of a report differs from its schema.
func holdToSchema(t testing.TB, report *explain.Report) {
	t.Helper()
	schema, err := reportSchema()
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(value); err != nil {
		t.Errorf("%v\n%s", err, data)
	}
}

// TestText compares texts with testdata/explain.txt: rules, and below them requests, each
// with its explanation. "after 3" sends the request three times first, and also asks for
// the state of the counters.
func TestText(t *testing.T) {
	const file = "testdata/explain.txt"
	data := testfiles.Read(t, file)
	head := regexp.MustCompile(`(?m)^-- (.*) --\n`)
	intro, rest, _ := strings.Cut(string(data), "== ")
	out := intro
	for test := range strings.SplitSeq(rest, "\n== ") {
		marks := head.FindAllStringSubmatchIndex(test, -1)
		var l *limiter.Limiter
		out += "== " + test[:marks[0][0]]
		for i, m := range marks {
			end := len(test)
			if i+1 < len(marks) {
				end = marks[i+1][0]
			}
			ask, body := test[m[2]:m[3]], test[m[1]:end]
			out += "-- " + ask + " --\n"
			if i == 0 { // "rules"
				l = start(t, limiter.Config{
					QuotaMode:  strings.Contains(ask, "quota"),
					ShadowMode: strings.Contains(ask, "shadow"),
				}, body)
				out += body
				continue
			}
			times, state := 0, false
			if n, err := fmt.Sscanf(ask, "after %d ", &times); err == nil && n == 1 {
				state = true
				_, ask, _ = strings.Cut(strings.TrimPrefix(ask, "after "), " ")
			}
			req := parse(t, ask)
			for range times {
				if err := l.Check(t.Context(), req, new(limiter.Answer)); err != nil {
					t.Fatal(err)
				}
			}
			got := look(t, l, req, state).Text()
			if want := strings.TrimRight(body, "\n") + "\n"; got != want && !*update {
				t.Errorf("%s\n%s:\ngot\n%swant\n%s", test[:marks[0][0]], ask, got, want)
			}
			out += got
		}
		out = strings.TrimRight(out, "\n") + "\n\n"
	}
	if *update {
		testfiles.Write(t, file, strings.TrimRight(out, "\n")+"\n")
	}
}

// The limiter charges the rules, keys and amounts of the explanation, and explaining
// changes no counter.
func TestAgreesWithTheLimiter(t *testing.T) {
	const text = `
domain: d
descriptors:
  - {key: ip, rate_limit: {unit: minute, requests_per_unit: 2, name: per-ip}}
  - {key: vip, rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: per-ip}, {name: fast}]}}
  - {key: staff, rate_limit: {unlimited: true}}
  - key: user
    charge: path
    rate_limits: [{unit: second, requests_per_unit: 1, name: fast}, {unit: day, requests_per_unit: 3}]
    descriptors:
      - {key: path, rate_limit: {unit: hour, requests_per_unit: 2}}
`
	l := start(t, limiter.Config{KeyPrefix: "p:", EscapeKeys: true}, text)
	for _, ask := range []string{
		"d: ip=1", "d: ip=1 + vip=2", "d: staff=1 + ip=1", "d: user=a_b, path=x + ip=2", "d: user=1 + nobody=2",
		"d: user=2, path=x + vip=7",
		"d: ip=1 limit=3 + vip=1", "d: ip=7 refund + ip=7 hits=2", "e: ip=1", "d: ip=1", "d: ip=1",
	} {
		req := parse(t, ask)
		report := look(t, l, req, true)
		if again := look(t, l, req, true); !reflect.DeepEqual(report, again) {
			t.Errorf("%s: the first look changed something", ask)
		}
		var a limiter.Answer
		if err := l.Check(t.Context(), req, &a); err != nil {
			t.Fatal(err)
		}
		if decided := newReport(t, req, &a, true); decided.Decision.Code != report.Decision.Code {
			t.Errorf("%s: explained as %s before and as %s after", ask, report.Decision.Code, decided.Decision.Code)
		}
		var got, want []string
		for i, d := range report.Descriptors {
			for _, c := range d.Charges {
				if c.State != nil {
					got = append(got, fmt.Sprintf("%d %s %d before %d over %t", i, c.Rule, c.Amount, *c.State.Before, c.State.Over))
				}
			}
			if bound := a.Statuses[i].BindingCharge; bound != nil && bound.Rule != nil &&
				bound.Rule.FullName != d.Charges[*d.Status.Binding].Rule {
				t.Errorf("%s, descriptor %d: callers are told of %s, not of charge %d", ask, i, bound.Rule.FullName,
					*d.Status.Binding)
			}
			for _, c := range a.Statuses[i].Charges {
				rule := ""
				if c.Rule != nil {
					rule = c.Rule.FullName
				}
				want = append(want, fmt.Sprintf("%d %s %d before %d over %t", i, rule, a.Statuses[i].Amount, c.Verdict.Before,
					c.Verdict.Over))
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\nexplained %q\ncharged   %q", ask, got, want)
		}
		if over := report.Decision.Code == "OVER_LIMIT"; over != a.Over {
			t.Errorf("%s: explained over %t, but it was %t", ask, over, a.Over)
		}
	}
}

// FuzzText explains any request: the text has no control characters, and the JSON is valid.
func FuzzText(f *testing.F) {
	f.Add("d", "user", "alex", uint8(0))
	f.Add("d", "\x1b[31m", "\xff\n", uint8(1))
	f.Add("e", "", strings.Repeat("é", 400), uint8(2))
	f.Add("d", "path", "/v1/x y", uint8(7))
	l := start(f, limiter.Config{}, `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: path
    value: "/v1/*"
    descriptors:
      - {key: user, rate_limit: {unit: minute, requests_per_unit: 2}}
`)
	f.Fuzz(func(t *testing.T, domain, key, value string, how uint8) {
		if domain == "" {
			return
		}
		d := limiter.Descriptor{Entries: []rules.Entry{{Key: []byte(key), Value: []byte(value)}}, IsRefund: how&1 > 0}
		if how&2 > 0 {
			d.Entries = append(d.Entries, rules.Entry{Key: []byte("user"), Value: []byte(key)})
		}
		if how&4 > 0 {
			d.HasLimit, d.Limit = true, rules.Rate{Requests: 1, Unit: rules.UnitDay, UnitMultiplier: 1}
		}
		report := look(t, l, &limiter.Request{Domain: []byte(domain), Descriptors: []limiter.Descriptor{d}}, how&8 > 0)
		text := report.Text()
		if !utf8.ValidString(text) || strings.ContainsFunc(text,
			func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
			t.Fatalf("%q may do something to a terminal", text)
		}
		data, err := json.Marshal(report)
		if err != nil {
			t.Fatal(err)
		}
		again := new(explain.Report)
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(again); err != nil {
			t.Fatal(err)
		}
		if utf8.ValidString(domain) && utf8.ValidString(key) && utf8.ValidString(value) && again.Text() != text {
			t.Fatalf("what came over the wire says\n%s\nand not\n%s", again.Text(), text)
		}
	})
}
