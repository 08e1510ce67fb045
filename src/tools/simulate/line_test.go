package simulate

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"ratelimit/src/frontend/rls"
)

const (
	someRules = "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unit: minute, requests_per_unit: 2}}\n"
	someReq   = `{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`
)

// An invalid line is an error with the line's number and a fix. The lines before it have
// been decided.
func TestInputErrors(t *testing.T) {
	good := `{"at":"1m","request":` + someReq + "}\n"
	at := func(at string) string { return `{"at":` + at + `,"request":` + someReq + `}` }
	const (
		form     = `; write {"at": ..., "request": ...}`
		instants = `; write a duration such as "1.5s", or an instant such as "2026-01-01T00:00:01.5Z"`
		messages = "; write a RateLimitRequest as proto3 JSON"
	)
	for _, tt := range []struct{ line, want string }{
		{"x", `the line is not JSON: column 1: invalid character 'x' looking for beginning of value` + form},
		{`{"at":"1m"`, `the line is not JSON: column 10: unexpected end of JSON input` + form},
		{good[:len(good)-1] + "x", `the line is not JSON: column 91: invalid character 'x' after top-level value` + form},
		{`[]`, "the line is not a JSON object" + form},
		{`"{"`, "the line is not a JSON object" + form},
		{`{}`, `there is no "at"; add "at": "1.5s", a time after the start, or an instant`},
		{`{"request":{}}`, `there is no "at"; add "at": "1.5s", a time after the start, or an instant`},
		{`{"at":"1m"}`, `there is no "request"; add "request": {...}, a RateLimitRequest as proto3 JSON`},
		{`{"at":"1m","request":{},"x":[{"]":"}"}]}`, `unknown key "x"; remove it`},
		{`{"at":"1m","request":{},"answer":null}`, `"answer" is null; write "OK", "OVER_LIMIT" or "ERROR", or leave it out`},
		{`{"at":"1m","lost":0}`, `"lost" is 0; write the number of requests that were not recorded, 1 or more`},
		{`{"at":"1m","lost":"1"}`, `"lost" is "1"; write the number of requests that were not recorded, 1 or more`},
		{`{"at":"1m","lost":1,"request":{}}`, `"lost" is beside a request or an answer; remove it`},
		{`{"at":"1m","lost":1,"answer":"OK"}`, `"lost" is beside a request or an answer; remove it`},
		{`{"At":"1m","request":{}}`, `unknown key "At"; remove it`},
		{`{"` + strings.Repeat("x", 200) + `":1}`, `unknown key "` + strings.Repeat("x", 59) + `... (202 bytes); remove it`},
		{`{"at":"1m","\u0061t":"1m","request":{}}`, `"at" is there twice; remove one`},
		{`{"at":"1m","request":{},"request":{}}`, `"request" is there twice; remove one`},
		{at(`90`), `"at" is not text but 90` + instants},
		{at(`null`), `"at" is not text but null` + instants},
		{at(`{"s":[1,"}"]}`), `"at" is not text but {"s":[1,"}"]}` + instants},
		{at(`""`), `"at" is neither a duration nor an instant: ""` + instants},
		{at(`"90"`), `"at" is neither a duration nor an instant: "90"` + instants},
		{at(`"2026-01-02"`), `"at" is neither a duration nor an instant: "2026-01-02"` + instants},
		{at(`"300y"`), `"at" is neither a duration nor an instant: "300y"` + instants},
		{at(`"2026-01-02 00:00:00Z"`), `"at" is "2026-01-02 00:00:00Z", no instant as RFC 3339 has it` + instants},
		{at(`"2026-01-02T00:00:00"`), `"at" is "2026-01-02T00:00:00", no instant as RFC 3339 has it` + instants},
		{at(`"2026-01-02T0:00:00Z"`), `"at" is "2026-01-02T0:00:00Z", no instant as RFC 3339 has it` + instants},
		{at(`"2026-01-02T00:00:00,5Z"`), `"at" is "2026-01-02T00:00:00,5Z", no instant as RFC 3339 has it` + instants},
		{at(`"2026-02-30T00:00:00Z"`), `"at" is "2026-02-30T00:00:00Z", no instant as RFC 3339 has it` + instants},
		{
			at(`"2026-01-02T00:00:00.0000000001Z"`),
			`"at" is "2026-01-02T00:00:00.0000000001Z", an instant finer than nanoseconds` + instants,
		},
		{at(`"1969-12-31T23:59:59Z"`), `"at" is "1969-12-31T23:59:59Z", an instant outside the years 1970 to 2149` + instants},
		{
			at(`"2150-01-01T00:00:00.000000001Z"`),
			`"at" is "2150-01-01T00:00:00.000000001Z", an instant outside the years 1970 to 2149` + instants,
		},
		{at(`"2000000h"`), `2000000h0m0s after the start is outside the years 1970 to 2149; choose another --start, or another time`},
		{at(`"59.9s"`), "the clock steps back, from 2026-01-01T00:01:00Z to 2026-01-01T00:00:59.9Z; sort the lines, or give --allow-clock-steps"},
		{
			at(`"2026-01-01T01:00:00+01:00"`),
			"the clock steps back, from 2026-01-01T00:01:00Z to 2026-01-01T00:00:00Z; sort the lines, or give " +
				"--allow-clock-steps",
		},
		{at(`"-1ns"`), `"at" is -1ns, before the start; choose an earlier --start, or give --allow-clock-steps`},
		{`{"at":"1m","request":null}`, "the request is none: column 1: unexpected token null" + messages},
		{`{"at":"1m","request":"d"}`, `the request is none: column 1: unexpected token "d"` + messages},
		{`{"at":"1m","request":{"domain":"d","what":1}}`, `the request is none: column 15: unknown field "what"` + messages},
		{
			`{"at":"1m","request":{"domain":"d","domain":"d"}}`,
			`the request is none: column 15: duplicate field "domain"` + messages,
		},
		{
			`{"at":"1m","request":{"hitsAddend":-1}}`,
			`the request is none: column 15: invalid value for uint32 field hitsAddend: -1` + messages,
		},
		{
			`{"at":"1m","request":{"domain":"` + "\xff" + `"}}`,
			`the request is none: column 11: invalid UTF-8 in string` + messages,
		},
		{
			`{"at":"1m","request":` + strings.Repeat(" ", MaxLine) + `{}}`,
			"the line is longer than 1 MiB; split the request, or leave it out",
		},
	} {
		name := tt.line[:min(len(tt.line), 50)]
		in := "\n" + good + " \t\r\n" + good + tt.line + "\n" + good
		out, _, err := simulated(t, Config{Rules: load(t, someRules)}, strings.NewReader(in))
		e, ok := errors.AsType[*InputError](err)
		if want := "requests.jsonl:5: " + tt.want; !ok || err.Error() != want || e.Line != 5 {
			t.Errorf("%s\n got %v\nwant %s", name, err, want)
		}
		if n := bytes.Count(out, []byte("\n")); n != 2 {
			t.Errorf("%s: %d lines of output", name, n)
		}
	}
}

// A line of MaxLine bytes is accepted, with or without a newline at its end.
func TestLongestLine(t *testing.T) {
	text := `{"at":"1m","request":` + someReq + "}"
	text += strings.Repeat(" ", MaxLine-len(text))
	for _, in := range []string{text, text + "\n", text + "\n" + text} {
		out, _, err := simulated(t, Config{Rules: load(t, someRules)}, strings.NewReader(in))
		if n, want := bytes.Count(out, []byte("\n")), strings.Count(in, `"at"`); err != nil || n != want {
			t.Errorf("%d lines, want %d: %v", n, want, err)
		}
	}
	if _, _, err := simulated(t, Config{Rules: load(t, someRules)}, strings.NewReader(text+" ")); err == nil {
		t.Error("one byte more is taken")
	}
}

// A request that the service would refuse is one line of output with the error.
func TestRefusedRequests(t *testing.T) {
	many := strings.Repeat(`{},`, 20_000)
	for _, tt := range []struct{ request, code, want string }{
		{`{}`, "INVALID_ARGUMENT", "bad request: the domain is empty"},
		{
			`{"domain":"d","descriptors":[` + many + `{}]}`, "RESOURCE_EXHAUSTED",
			"bad request: too large: more than 1000 descriptors or 16000 entries",
		},
		{
			`{"domain":"d","descriptors":[` + many[:3*1000] + `{}]}`, "RESOURCE_EXHAUSTED",
			"bad request: too large: 1001 descriptors, at most 1000 are allowed",
		},
	} {
		in := `{"at":"1m","request":` + tt.request + "}\n"
		want := `{"at":"2026-01-01T00:01:00Z","error":{"code":"` + tt.code + `","message":"` + tt.want + "\"}}\n"
		if out, _, err := simulated(t, Config{Rules: load(t, someRules)}, strings.NewReader(in+in)); err != nil ||
			string(out) != want+want {
			t.Errorf("%v\n got %s\nwant %s", err, out, want)
		}
	}
}

func TestStart(t *testing.T) {
	start := time.Date(2030, 5, 6, 7, 8, 9, 10, time.FixedZone("", 3600))
	in := `{"at":"0","request":` + someReq + `}
{"at":"1us","request":` + someReq + `}`
	out, _, err := simulated(t, Config{Rules: load(t, someRules), Start: start}, strings.NewReader(in))
	if err != nil || !strings.HasPrefix(string(out), `{"at":"2030-05-06T06:08:09.00000001Z",`) ||
		!strings.Contains(string(out), "\n"+`{"at":"2030-05-06T06:08:09.00000101Z",`) {
		t.Errorf("%v\n%s", err, out)
	}
	// The start is for durations only.
	before := `{"at":"2029-01-01T00:00:00Z","request":` + someReq + `}`
	if _, _, err := simulated(t, Config{Rules: load(t, someRules), Start: start}, strings.NewReader(before)); err != nil {
		t.Error(err)
	}
}

// A clock that steps back finds the windows that have not ended yet.
func TestClockSteps(t *testing.T) {
	var in strings.Builder
	for _, at := range []string{"100s", "70s", "-1s", "119s", "2025-12-31T23:59:00Z", "60s"} {
		fmt.Fprintf(&in, `{"at":%q,"request":%s}`+"\n", at, someReq)
	}
	out, summary, err := simulated(t, Config{Rules: load(t, someRules), AllowClockSteps: true},
		strings.NewReader(in.String()))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ at, code, reset string }{
		{"2026-01-01T00:01:40Z", "OK", "20s"},
		{"2026-01-01T00:01:10Z", "OK", "50s"},
		{"2025-12-31T23:59:59Z", "OK", "1s"},
		{"2026-01-01T00:01:59Z", "OVER_LIMIT", "1s"},
		{"2025-12-31T23:59:00Z", "OK", "60s"},
		{"2026-01-01T00:01:00Z", "OVER_LIMIT", "60s"},
	} {
		line := strings.Split(string(out), "\n")[i]
		if !strings.HasPrefix(line, `{"at":"`+want.at+`","response":{"overallCode":"`+want.code+`"`) ||
			!strings.Contains(line, `"durationUntilReset":"`+want.reset+`"`) {
			t.Errorf("%+v: %s", want, line)
		}
	}
	if !strings.Contains(string(summary), "2026-01-01T00:01:59Z  2026-01-01T00:01:00Z") {
		t.Errorf("first and last by the order of the lines:\n%s", summary)
	}
}

// FuzzLine reads one line. It is an error, or a line that can be written anew and
// read again.
func FuzzLine(f *testing.F) {
	for _, at := range []string{
		`"1.5s"`, `"2026-01-01T00:00:01.5Z"`, `"1970-01-01T01:00:00.123456789+01:00"`, `"-5m"`,
		"1", `"\u0031s"`, `{"a":[]}`,
	} {
		f.Add([]byte(`{"at":`+at+`,"request":`+someReq+`}`), true)
	}
	for _, line := range []string{
		"", "{", "{}", `{"at":"1s","request":{}}x`, `[{"at":1}]`,
		` { "request" : { } , "at" : "1ns" } `, `{"\"":"\\"}`, "{\"at\":\"\xff\"}",
	} {
		f.Add([]byte(line), false)
	}
	f.Fuzz(func(t *testing.T, text []byte, steps bool) {
		p := parser{start: DefaultStart, allowClockSteps: steps}
		l, problem := p.parse(bytes.Trim(text, " \t\r\n"))
		if problem != nil {
			if problem.Reason == "" || problem.Fix == "" {
				t.Errorf("%+v", problem)
			}
			return
		}
		if (l.Request == nil) != (l.Refusal != nil) {
			t.Errorf("%+v", l)
		}
		parts, problem := splitLine(text)
		if problem != nil {
			t.Fatal(problem)
		}
		again := fmt.Appendf(nil, `{"at":%q,"request":%s}`, l.At.Format(time.RFC3339Nano), parts.request)
		l2, problem := p.parse(again)
		if problem != nil {
			t.Fatalf("%s: %v", again, problem)
		}
		fresh, err := rls.ParseJSON(parts.request)
		if !l2.At.Equal(l.At) || !reflect.DeepEqual(l2.Request, l.Request) || !reflect.DeepEqual(fresh, l.Request) ||
			fmt.Sprint(err) != fmt.Sprint(l.Refusal) {
			t.Errorf("%s: %+v, then %+v", again, l, l2)
		}
	})
}
