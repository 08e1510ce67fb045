package differential

import (
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/prototext"
)

// The tests in this file need no upstream: they hold the comparison itself against what it must find.

func response(t *testing.T, text string) answer {
	t.Helper()
	a := answer{response: new(rlsv3.RateLimitResponse)}
	if err := prototext.Unmarshal([]byte(text), a.response); err != nil {
		t.Fatal(err)
	}
	return a
}

const someAnswer = `overall_code: OK
statuses { code: OK current_limit { name: "n" requests_per_unit: 5 unit: DAY } limit_remaining: 3 duration_until_reset { seconds: 9 } }
statuses { code: OK }
response_headers_to_add { key: "RateLimit-Limit" value: "5" }
dynamic_metadata { fields { key: "domain" value { string_value: "d" } } }`

func TestCompareAnswers(t *testing.T) {
	if found := compareAnswers(response(t, someAnswer), response(t, someAnswer)); len(found) > 0 {
		t.Errorf("an answer differs from itself in %v", found)
	}
	for _, c := range []struct{ from, to, what string }{
		{"overall_code: OK", "overall_code: OVER_LIMIT", "answer overall code"},
		{"statuses { code: OK current", "statuses { code: OVER_LIMIT current", "answer status 0 code"},
		{`name: "n"`, `name: "m"`, "answer status 0 limit"},
		{"unit: 5", "unit: 6", "answer status 0 limit"},
		{"DAY", "HOUR", "answer status 0 limit"},
		{"remaining: 3", "remaining: 2", "answer status 0 remaining"},
		{"seconds: 9", "seconds: 8", "answer status 0 reset"},
		{"statuses { code: OK }", "", "answer number of statuses"},
		{`value: "5"`, `value: "6"`, "answer headers"},
		{`string_value: "d"`, `string_value: "e"`, "answer dynamic metadata domain"},
		{"dynamic_metadata", `raw_body: "x" dynamic_metadata`, "answer other fields"},
	} {
		changed := strings.Replace(someAnswer, c.from, c.to, 1)
		found := compareAnswers(response(t, someAnswer), response(t, changed))
		if len(found) != 1 || found[0].what != c.what {
			t.Errorf("%q instead of %q: found %v, want %q", c.to, c.from, found, c.what)
		}
	}
}

func TestCompareKeys(t *testing.T) {
	minute := counter{"1", time.Minute}
	for name, c := range map[string]struct{ theirs, ours map[string]counter }{
		"a value":    {map[string]counter{"k": minute}, map[string]counter{"k": {"2", time.Minute}}},
		"an expiry":  {map[string]counter{"k": minute}, map[string]counter{"k": {"1", time.Hour}}},
		"a key less": {map[string]counter{"k": minute}, nil},
		"a key more": {nil, map[string]counter{"k": minute}},
	} {
		keys := &keyComparison{expiries: true, seen: make(map[string]bool)}
		if found := keys.compare(c.theirs, c.ours); len(found) != 1 {
			t.Errorf("%s: found %v, want one difference", name, found)
		}
	}
	keys := &keyComparison{seen: make(map[string]bool)}
	same := map[string]counter{"k": minute}
	if found := append(keys.compare(same, same), keys.compare(same, nil)...); len(found) > 0 {
		t.Errorf("a key that both had, and that expired in one of them, is the difference %v", found)
	}
}

// One seed makes the same rules and requests each time: a failure can be played again.
func TestRandomIsRepeatable(t *testing.T) {
	text := func() string {
		r := randomFor(3, 4)
		all := randomRules(r)
		var b strings.Builder
		b.WriteString(randomEnvironment(randomFor(3, 0)).String() + all.text("d") + all.changed(r).text("d"))
		for _, q := range randomRequests(r, all) {
			data, err := q.wire("d")
			if err != nil {
				t.Fatal(err)
			}
			if !q.json || q.body != "" {
				b.Write(data) // protojson varies its spaces
			}
		}
		return b.String()
	}
	if first, second := text(), text(); first != second {
		t.Error("two runs with one seed differ")
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"a_*", "a_", true},
		{"a_*", "b_x", false},
		{"a_x*y", "a_xy", true},
		{"a_x*y", "a_x1y", true},
		{"a_x*y", "a_x1", false},
		{"*", "", true},
		{"**", "x", true},
		{"a*b*c", "a1b2c", true},
		{"a*b*c", "a1c", false},
		{"ab*bc", "abc", false},
	} {
		if got := matches(c.pattern, c.text); got != c.want {
			t.Errorf("matches(%q, %q) is %t", c.pattern, c.text, got)
		}
	}
}
