package suggest

import (
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

func TestSoonest(t *testing.T) {
	rule := func(limit string) string {
		return "domain: d\ndescriptors:\n" + limit
	}
	for _, tt := range []struct{ name, text, want string }{
		{"the smallest that lets something pass", rule(`
  - {key: a, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: b, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: c, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: d, rate_limit: {unit: second, requests_per_unit: 2}}
  - {key: e, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: f, rate_limit: {unlimited: true}}`), "d.b"},
		{"not one that another takes", rule(`
  - {key: a, value: "*", rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: a, value: "1*", rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: a, rate_limit: {unit: day, requests_per_unit: 2}}`), "d.a_*"},
		{"one level rather than two", rule(`
  - key: a
    descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 2}}]
  - {key: c, rate_limit: {unit: day, requests_per_unit: 5}}`), "d.c"},
		{"none", rule(`
  - {key: "it's", rate_limit: {unit: day, requests_per_unit: 2}}`), ""},
	} {
		set := limitertest.Rules(t, tt.text)
		got := ""
		if x := bestExample(set); x != nil {
			got = x.rule.FullName
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		var out strings.Builder
		Print(&out, false, set, nil, nil)
		if shown := strings.Contains(out.String(), "curl"); shown != (tt.want != "") {
			t.Errorf("%s: printed %s", tt.name, fmt.Sprint(out.String()))
		}
	}
}

// TestPrintedCommands runs the commands that Print writes in a shell whose curl prints the request, and sends the
// requests to a limiter. The last command is sent, and then the loop once more.
func TestPrintedCommands(t *testing.T) {
	t.Parallel()
	descriptors := func(s string) string { return "domain: d\ndescriptors:\n" + s }
	for _, test := range []struct{ name, rules, text, want string }{
		{
			"fixed window", descriptors("- {key: a, rate_limit: {unit: day, requests_per_unit: 2}}"),
			"d.a allows 2 requests per day, by the clock (UTC). Run this,", "OK OK OVER, OVER; OVER OVER OVER",
		},
		{
			"many units", descriptors("- {key: a, rate_limit: {unit: day, requests_per_unit: 200003, hold: 10m, hold_id: id}}"),
			"Run this, where each counts as 50000,", "OK OK OK OK OVER, OVER; OVER OVER OVER OVER OVER",
		},
		{
			"more than 32 bits", descriptors("- {key: a, rate_limit: {unit: month, requests_per_unit: 100000000003}}"),
			"Run this, where each counts as 25000000000,", "OK OK OK OK OVER, OVER; OVER OVER OVER OVER OVER",
		},
		{
			"calendar", descriptors("- {key: a, rate_limit: {unit: month, unit_multiplier: 3, calendar: true, time_zone: " +
				"Asia/Tokyo, requests_per_unit: 2}}"),
			"allows 2 requests per 3 calendar months from day 1 in Asia/Tokyo.", "OK OK OVER, OVER; OVER OVER OVER",
		},
		{
			"concurrency", descriptors("- {key: a, descriptors: [{key: b, value: $i, rate_limit: {algorithm: concurrency, " +
				"requests_per_unit: 2, hold: 1m, hold_id: id}}]}"),
			// Holds 1 and 2 are known, and 3 takes the free place.
			"d.a.b_$i allows 2 requests at a time, each for at most 1m.", "OK OK OVER, OK; OK OK OK",
		},
		{
			"concurrency in a list", "domain: d\nrules: [{match: {a: x*, id: '*'}, per: [a], rate_limit: {algorithm: " +
				"concurrency, requests_per_unit: 50, hold: 1m, hold_id: id}}]",
			"each counts as 12,", "OK OK OK OK OVER, OK; OK OK OK OK OK",
		},
		{"a short hold", descriptors("- {key: a, rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: 1s, " +
			"hold_id: id}}"), "", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			set := limitertest.Rules(t, test.rules)
			var out strings.Builder
			Print(&out, false, set, nil, nil)
			if !strings.Contains(out.String(), test.text) {
				t.Errorf("no %q in\n%s", test.text, &out)
			}
			if got := answersToCommands(t, set, out.String()); got != test.want {
				t.Errorf("the commands were answered %q, want %q, of\n%s", got, test.want, &out)
			}
		})
	}
}

// answersToCommands returns the answers to the two commands of a text, and to the first one again: "OK OVER, OVER; OVER
// OVER".
func answersToCommands(t *testing.T, set *rules.Set, text string) (answers string) {
	t.Helper()
	var commands []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "curl ") {
			commands = append(commands, line)
		}
	}
	if len(commands) == 0 {
		return ""
	}
	store := limitertest.Store(t, memory.Config{})
	l := limiter.New(limiter.Config{Backend: store})
	l.UseRules(set)
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for i, command := range []string{commands[0], commands[1], commands[0]} {
		answers += []string{"", ", ", "; "}[i]
		output, err := exec.Command("sh", "-c", `curl() { for last; do :; done; printf '%s\n' "$last"; }; `+command).Output()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		for j, line := range strings.Split(strings.TrimSpace(string(output)), "\n") {
			if j > 0 {
				answers += " "
			}
			answers += answerTo(t, l, line, now)
		}
	}
	return answers
}

// answerTo returns the answer to a RateLimitRequest as JSON: OK or OVER.
func answerTo(t *testing.T, l *limiter.Limiter, text string, now time.Time) string {
	t.Helper()
	var message rlsv3.RateLimitRequest
	if err := protojson.Unmarshal([]byte(text), &message); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	req := limiter.Request{Domain: []byte(message.Domain), DefaultAmount: max(uint64(message.HitsAddend), 1), Now: now}
	for _, d := range message.Descriptors {
		to := limiter.Descriptor{HasAmount: d.HitsAddend != nil, Amount: d.HitsAddend.GetValue()}
		for _, e := range d.Entries {
			to.Entries = append(to.Entries, rules.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
		}
		req.Descriptors = append(req.Descriptors, to)
	}
	var a limiter.Answer
	if err := l.Check(t.Context(), &req, &a); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	if a.Over {
		return "OVER"
	}
	return "OK"
}

func TestAddresses(t *testing.T) {
	t.Parallel()
	set, _, err := filerules.Load([]filerules.File{{
		Name: "a.yaml",
		Data: []byte("domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 2}}]"),
	}},
		compile.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tcp := func(address string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address)) }
	for _, tt := range []struct {
		http, debug net.Addr
		want        []string
	}{
		{
			tcp("[::]:8080"), tcp("127.0.0.1:6070"),
			[]string{" localhost:8080/json ", "in a browser: http://localhost:6070/\n"},
		},
		{
			tcp("10.0.0.7:80"), tcp("[2001:db8::1]:6070"),
			[]string{" 10.0.0.7:80/json ", "in a browser: http://[2001:db8::1]:6070/\n"},
		},
		{nil, nil, []string{" localhost/json ", "'\n\nCtrl-C stops"}},
	} {
		var out strings.Builder
		Print(&out, false, set, tt.http, tt.debug)
		for _, want := range tt.want {
			if !strings.Contains(out.String(), want) {
				t.Errorf("%v and %v: no %q in\n%s", tt.http, tt.debug, want, &out)
			}
		}
	}
}
