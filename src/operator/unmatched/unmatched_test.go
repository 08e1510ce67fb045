package unmatched

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
)

const text = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 9, name: user}
    descriptors:
      - {key: path, value: /pay, rate_limit: {unit: minute, requests_per_unit: 9}}
  - key: above
    descriptors: [{key: below, rate_limit: {unit: minute, requests_per_unit: 9}}]
  - key: none
  - key: free
    rate_limit: {unlimited: true}
  - key: staff
    rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: user}]}
`

// The search for a reason has the budget of an explanation.
func TestReasonHasABudget(t *testing.T) {
	t.Parallel()
	list := []byte("domain: d\nrules:\n")
	for i := range 200 {
		list = fmt.Appendf(list, "- {match: {path: \"*%03db\"}, rate_limit: {unit: hour, requests_per_unit: 1}}\n", i)
	}
	set, _, err := filerules.Load([]filerules.File{{Name: "d.yaml", Data: list}}, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	value := bytes.Repeat([]byte("a"), 5<<20)
	const want = "the values take too long to compare with all rules"
	if got := reason(set.Domain([]byte("d")), []rules.Entry{{Key: []byte("path"), Value: value}}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestUnmatched(t *testing.T) {
	set, _, err := filerules.Load([]filerules.File{{Name: "d.yaml", Data: []byte(text)}}, compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ domain, asked, want string }{
		{"edge", "user=secret", `{edge true   0}`},
		{"d", "user=secret", ""},
		{"d", "free=secret", ""},
		{"d", "ip=secret", "{d false ip no rule has the key of entry 1 of 1 in this place 0}"},
		{"d", "path=/pay,user=secret", "{d false path,user no rule has the key of entry 1 of 2 in this place 0}"},
		{"d", "user=a,path=secret", "{d false user,path no rule has the value of entry 2 of 2 0}"},
		{"d", "user=a,path=/pay,x=secret", "{d false user,path,x the rules end at entry 2 of 3 0}"},
		{"d", "above=secret", "{d false above the rules below entry 1 need more entries 0}"},
		{"d", "none=secret", "{d false none the rule for entry 1 has no rate_limit 0}"},
		{"d", "user=secret staff=a", "{d false user another rule of the request replaces the rule 0}"},
		{
			"d", "ip=secret user=a x=secret y=secret",
			"{d false ip no rule has the key of entry 1 of 1 in this place 0}; {d false x no rule has the key of entry 1 of 1 " +
				"in this place 0}",
		},
	} {
		var got []string
		sampler := New(2, func(s Sample) { got = append(got, fmt.Sprint(s)) })
		l := limiter.New(limiter.Config{Backend: store, Recorders: []limiter.Recorder{sampler}})
		l.UseRules(set)
		req := &limiter.Request{Domain: []byte(tt.domain)}
		for word := range strings.FieldsSeq(tt.asked) {
			var d limiter.Descriptor
			for pair := range strings.SplitSeq(word, ",") {
				key, value, _ := strings.Cut(pair, "=")
				d.Entries = append(d.Entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
			}
			req.Descriptors = append(req.Descriptors, d)
		}
		synctest.Test(t, func(t *testing.T) { // All of it happens in one instant.
			if err := l.Check(t.Context(), req, new(limiter.Answer)); err != nil {
				t.Fatal(err)
			}
		})
		if want := slices.DeleteFunc(strings.Split(tt.want, "; "),
			func(s string) bool { return s == "" }); !slices.Equal(got, want) {
			t.Errorf("%s: %s:\n got %q\nwant %q", tt.domain, tt.asked, got, want)
		}
	}
}
