package rls

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

func TestParseJSON(t *testing.T) {
	got, err := ParseJSON([]byte(`{"domain":"d","hits_addend":3,"descriptors":[{"entries":[{"key":"ip","value":"1"},{"key":"x"}],
		"hitsAddend":"0","isNegativeHits":true,"limit":{"requestsPerUnit":5,"unit":"HOUR","unitMultiplier":2}},{}]}`))
	want := &limiter.Request{Domain: []byte("d"), DefaultAmount: 3, Descriptors: []limiter.Descriptor{
		{
			Entries:   []rules.Entry{{Key: []byte("ip"), Value: []byte("1")}, {Key: []byte("x"), Value: nil}},
			HasAmount: true, IsRefund: true, HasLimit: true,
			Limit: rules.Rate{Requests: 5, Unit: rules.UnitHour, UnitMultiplier: 2},
		},
		{Entries: []rules.Entry{}},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v\n got %+v\nwant %+v", err, got, want)
	}
	for text, want := range map[string]string{
		"":                           "column 1: unexpected token",
		"{":                          "unexpected EOF",
		`{"domain":"d"}x`:            "column 15: invalid value x",
		`{"domain":"d","what":1}`:    `column 15: unknown field "what"`,
		"{\"domain\":\"d\",\n\"x\"}": `line 2, column 4: unexpected character }, missing ":" after field name`,
		`{"hitsAddend":-1}`:          "column 15: invalid value for uint32 field hitsAddend: -1",
	} {
		if _, err := ParseJSON([]byte(text)); err == nil || err.Error() != want || errors.Is(err, limiter.ErrInvalidRequest) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	tooMany := `{"descriptors":[` + strings.Repeat("{},", 300_000) + `{}]}`
	if _, err := ParseJSON([]byte(tooMany)); !errors.Is(err, limiter.ErrInvalidRequest) {
		t.Error(err)
	}
}

// match returns the match of rule alone; nil without a rule.
func match(rule *rules.Rule) *rules.Match {
	if rule == nil {
		return nil
	}
	rule.Descriptor = &rules.Descriptor{}
	return &rules.Match{Descriptor: rule.Descriptor, Limits: []*rules.Rule{rule}}
}

// answers are of every shape that a front end may have to write.
func answers() (list []*limiter.Answer) {
	one := func(statuses ...limiter.Status) {
		list = append(list, &limiter.Answer{Statuses: statuses}, &limiter.Answer{Over: true, Statuses: statuses})
	}
	charged := func(rule *rules.Rule, q rules.Rate, remaining uint64, until time.Duration) limiter.Status {
		return limiter.Status{
			Match: match(rule), Over: remaining == 0, ResetAfter: until,
			BindingCharge: &limiter.Charge{
				Rule: rule, Limit: q,
				Verdict: &backend.Verdict{Outcome: algorithm.Outcome{Remaining: remaining}},
			},
		}
	}
	one(limiter.Status{})
	one(limiter.Status{Over: true}, limiter.Status{Match: match(&rules.Rule{Unlimited: true})}, limiter.Status{})
	for unit := rules.UnitUnknown; unit <= rules.UnitWeek; unit++ {
		one(charged(nil, rules.Rate{Requests: 5, Unit: unit, UnitMultiplier: 1}, 4, time.Minute))
		one(charged(nil, rules.Rate{Unit: unit, UnitMultiplier: 1}, 0, 0))
		one(charged(nil, rules.Rate{Unit: unit, UnitMultiplier: 3}, 0, 0))
	}
	for _, name := range []string{
		"", "plain", "per user, 5%", `"quoted"`, `back\slash`, "tab\t", "ümlaut 漢字", "<&>",
		"\u2028\x7f",
	} {
		one(charged(&rules.Rule{Name: name},
			rules.Rate{Requests: math.MaxUint32, Unit: rules.UnitDay, UnitMultiplier: math.MaxUint32}, math.MaxUint32,
			algorithm.MaxPeriod),
			charged(&rules.Rule{Name: name}, rules.Rate{UnitMultiplier: 1}, 0, time.Second))
	}
	for _, until := range []time.Duration{
		0, 1, 10, 1000, 1001, 10_000, 1e6, 1.001e6, 1.000001e6, 1e9 - 1, 1e9, 1e9 + 1,
		1.5e9, 90.01e9, 59.999999e9,
	} {
		one(charged(nil, rules.Rate{Requests: 1, Unit: rules.UnitMinute, UnitMultiplier: 1}, 1, until))
	}
	several := charged(nil, rules.Rate{Requests: 9, Unit: rules.UnitHour, UnitMultiplier: 1}, 3, time.Hour)
	perSecond := rules.Rate{Requests: 1, Unit: rules.UnitSecond, UnitMultiplier: 1}
	several.Charges = append(several.Charges, limiter.Charge{Limit: perSecond, Verdict: new(backend.Verdict)})
	several.BindingCharge = &several.Charges[0]
	one(several)
	return list
}

// Answers are written as protojson writes their messages.
func TestAppendJSON(t *testing.T) {
	for _, a := range append(answers(), answers()...) {
		got, err := AppendJSONResponse([]byte("before "), a)
		if err != nil {
			t.Fatal(err)
		}
		want, err := oracleJSON(a)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != "before "+string(want) || !json.Valid(want) {
			t.Errorf("\n got %s\nwant %s", got, want)
		}
	}
	bad := &limiter.Answer{Statuses: []limiter.Status{{
		BindingCharge: &limiter.Charge{Rule: &rules.Rule{Name: "\xff"}, Verdict: new(backend.Verdict)},
	}}}
	if got, err := AppendJSONResponse(nil, bad); err == nil {
		t.Errorf("a name that is not UTF-8: %s", got)
	}
}

func FuzzAppendJSON(f *testing.F) {
	f.Add("name", uint32(5), uint8(1), uint32(1), uint32(4), int64(time.Minute), false)
	f.Add("\"", uint32(0), uint8(7), uint32(60), uint32(0), int64(1500), true)
	f.Fuzz(func(t *testing.T, name string, requests uint32, unit uint8, multiplier, remaining uint32, until int64,
		over bool,
	) {
		rule := &rules.Rule{Name: name, Unlimited: over}
		q := rules.Rate{Requests: uint64(requests), Unit: rules.Unit(unit % 8), UnitMultiplier: multiplier}
		a := &limiter.Answer{Over: over, Statuses: []limiter.Status{
			{Match: match(rule)},
			{
				Match: match(rule), Over: over, ResetAfter: time.Duration(max(until, 0)),
				BindingCharge: &limiter.Charge{
					Rule: rule, Limit: q,
					Verdict: &backend.Verdict{Outcome: algorithm.Outcome{Remaining: uint64(remaining)}},
				},
			},
		}}
		got, err := AppendJSONResponse(nil, a)
		want, wantErr := oracleJSON(a)
		if string(got) != string(want) || fmt.Sprint(err == nil) != fmt.Sprint(wantErr == nil) {
			t.Errorf("\n got %s %v\nwant %s %v", got, err, want, wantErr)
		}
	})
}
