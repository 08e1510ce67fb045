package limit

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"ratelimit/src/operator"
	"ratelimit/src/overrides"
	"ratelimit/src/tools/command"
)

// port is a debug port that records requests, and answers with answer, or with status.
type port struct {
	status   int
	answer   any
	requests []string
}

func (p *port) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body) // A failed read shows in requests.
	p.requests = append(p.requests, strings.TrimSpace(r.Method+" "+r.URL.String()+" "+string(text)))
	if p.status != 0 {
		http.Error(w, p.answer.(string), p.status)
		return
	}
	_ = json.NewEncoder(w).Encode(p.answer) // A failed write fails the command.
}

var now = time.Date(2027, 1, 7, 12, 0, 0, 0, time.FixedZone("CET", 3600))

// perform runs the command with args against p at the time now. Words of args are separated by |.
func perform(t *testing.T, p *port, args string) (out string, err error) {
	t.Helper()
	server := httptest.NewServer(p)
	defer server.Close()
	cmd := (&options{now: func() time.Time { return now }}).command()
	var o bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(io.Discard)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append(strings.Split(args, "|"), "--address", server.Listener.Addr().String()))
	err = cmd.ExecuteContext(t.Context())
	return o.String(), err
}

// exitCode returns the exit code of a command that ends with err.
func exitCode(err error) int {
	if e, ok := errors.AsType[command.Exit](err); ok {
		return e.Code
	}
	return 1
}

func TestRequestsThatAreSent(t *testing.T) {
	t.Parallel()
	change := func(parts string) string {
		return `POST /api/limits {"action":"set","domain":"d",` + parts + `,"reason":"r","who":"anna"}`
	}
	const eve = `"subject":"user=eve"`
	dryRun := strings.TrimSuffix(change(eve+`,"limit":"ban"`), "}") + `,"dry_run":true}`
	for args, want := range map[string]string{
		"set|d|user=eve|--rate|x10|--for|3d":           change(eve + `,"limit":"x10","for":"3d"`),
		"set|d|user=eve|--rate|1000/minute|--burst|50": change(eve + `,"limit":"1000/minute burst 50"`),
		"set|d|user=eve|--rate|9|--until|18:00":        change(eve + `,"limit":"9","until":"2027-01-07T18:00:00+01:00"`),
		"ban|d|user=eve|--dry-run":                     dryRun,
		"ban|d|user=eve|--rule|user":                   change(`"rule":"user",` + eve + `,"limit":"ban"`),
		"ban|d|user=eve|--all-rules":                   change(`"all_rules":true,` + eve + `,"limit":"ban"`),
		"ban|d|user=eve,|action=pay":                   change(`"subject":"user=eve,action=pay","limit":"ban"`),
		"unset|d|user=eve":                             strings.Replace(change(eve), `"set"`, `"unset"`, 1),
		"list":                                         "GET /api/limits?limit=100000",
		"list|d":                                       "GET /api/limits?domain=d&limit=100000",
		"history":                                      "GET /api/limits?history=true&limit=100000",
		"export|d":                                     "GET /api/limits?domain=d&format=yaml",
		"history|d":                                    "GET /api/limits?domain=d&history=true&limit=100000",
	} {
		p := &port{answer: struct{}{}}
		if strings.HasPrefix(want, "POST") {
			args += "|--reason|r|--who|anna"
		}
		if _, err := perform(t, p, args); err != nil || len(p.requests) != 1 || p.requests[0] != want {
			t.Errorf("%s: %v, sent %q, want %s", args, err, p.requests, want)
		}
	}
}

// Wrong arguments exit with 2 and say how to write them. Nothing is sent.
func TestWrongArguments(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"drop":                                  "write set, ban, unset, list",
		"set":                                   "name a domain and a subject: ratelimit limit set DOMAIN",
		"ban|d":                                 "name a domain and a subject",
		"set|d|user=eve|--reason|r":             "set needs --rate",
		"set|d|user=eve|--rate|x2":              "set needs --reason",
		"ban|d|user=eve|--reason| ":             "ban needs --reason",
		"set|d|user=eve|--rate|many|--reason|r": `the limit "many" is not a number`,
		"set|d|user=eve|--rate|x0|--reason|r":   "is not a number above 0",
		"set|d|user=eve|--rate|5/fortnight|--reason|r":     "is not second, minute",
		"set|d|user=eve|--rate|x2|--burst|-1|--reason|r":   "invalid syntax",
		"ban|d|user=eve|--rate|x2|--reason|r":              "--rate and --burst belong to set, not to ban",
		"unset|d|user=eve|--burst|5":                       "belong to set, not to unset",
		"unset|d|user=eve|--for|1h":                        "--for and --until belong to set and ban",
		"ban|d|user=eve|--for|1h|--until|18:00|--reason|r": "exclude each other",
		"ban|d|user=eve|--until|friday|--reason|r":         `--until "friday": write a date`,
		"ban|d|user=eve|--rule|u|--all-rules|--reason|r":   "--rule and --all-rules exclude",
		"ban|d|=eve|--reason|r":                            "the subject: ",
		"ban|d|user=a*,action=b|--reason|r":                "only the last value may end with *",
		"list|d|user=eve":                                  "list takes at most a domain",
		"export":                                           "export takes a domain",
		"export|d|--json":                                  "--json does not belong to export",
		"history|--reason|r":                               "--reason does not belong to history",
		"list|--dry-run":                                   "--dry-run does not belong to list",
	} {
		p := new(port)
		_, err := perform(t, p, args)
		if err == nil || exitCode(err) != 2 || !strings.Contains(err.Error(), want) || len(p.requests) > 0 {
			t.Errorf("%s: %v, code %d, sent %q; want %s", args, err, exitCode(err), p.requests, want)
		}
	}
}

func TestUntil(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"2027-01-08":                "2027-01-09T00:00:00+01:00", // the end of the day
		"2027-01-08 09:30":          "2027-01-08T09:30:00+01:00",
		"2027-01-08T09:30":          "2027-01-08T09:30:00+01:00",
		"2027-01-08T18:00:00Z":      "2027-01-08T18:00:00Z",
		"2027-01-08T18:00:00+05:30": "2027-01-08T18:00:00+05:30",
		"18:00":                     "2027-01-07T18:00:00+01:00",
		"12:00":                     "2027-01-08T12:00:00+01:00", // not now
		"09:30":                     "2027-01-08T09:30:00+01:00",
		"25:00":                     "",
		"2027-02-30":                "",
		"tomorrow":                  "",
		"":                          "",
		strings.Repeat("1", 1e6):    "",
	} {
		got, err := parseUntil(text, now)
		if (err != nil) != (want == "") || err == nil && got.Format(time.RFC3339) != want ||
			err != nil && len(err.Error()) > 300 {
			t.Errorf("%.50q: %v, %v; want %s", text, got, err, want)
		}
	}
}

func TestTimeLeft(t *testing.T) {
	t.Parallel()
	for left, want := range map[time.Duration]string{
		1: "1s", 90 * time.Second: "90s", 3 * time.Minute: "3m", 59*time.Minute + 1: "60m", 47 * time.Hour: "47h",
		49 * time.Hour: "3d", -time.Second: "0s",
	} {
		if got := leftText(now.Add(left), now); got != want {
			t.Errorf("%v: %s, want %s", left, got, want)
		}
	}
	if got := leftText(time.Time{}, now); got != "no end" {
		t.Error(got)
	}
}

func TestOutput(t *testing.T) {
	t.Parallel()
	used, left, subjects := uint64(60), uint64(540), 3
	o := overrides.Override{
		Domain: "d", Rule: "d.user", Subject: "user=eve", Limit: "x10", Reason: "ticket 123", Who: "anna",
		Until: now.Add(72 * time.Hour), Since: now,
	}
	before := o
	before.Limit, before.Until = "x2", time.Time{}
	set := operator.LimitReport{
		Action: "set", Override: o, Before: &before,
		Limits: []operator.LimitEffect{{
			Rule: "d.user", Before: "60 per minute", After: "600 per minute", Used: &used, Remaining: &left,
		}},
		Warnings: []string{"it lasts as long as the process"}, Subjects: &subjects, DryRun: true,
	}
	unset := operator.LimitReport{
		Action: "unset", Override: o, Before: &before,
		Limits: []operator.LimitEffect{{Rule: "d.user", Before: "60 per minute", After: "60 per minute"}},
	}
	const change = "|d|user=eve|--reason|r"
	for _, tt := range []struct {
		args   string
		answer any
		want   []string
	}{
		{"set" + change + "|--rate|x10", set, []string{
			"RULE", "60 per minute -> 600 per minute", "60", "540", "3 subjects have a counter now",
			"replaces x2 by anna: ticket 123", "until 2027-01-10", "warning: it lasts as long", "dry run: nothing was changed",
		}},
		{
			"ban" + change + "|--dry-run",
			operator.LimitReport{Action: "set", Subjects: &subjects, SubjectsAtLeast: true},
			[]string{"at least 3 subjects have a counter now"},
		},
		{"unset" + change, unset, []string{"d.user", "60 per minute", "?", "removes x2 by anna: ticket 123"}},
		{"list", operator.LimitList{Count: 1, Limits: []overrides.Override{o}}, []string{
			"d", "user", "user=eve", "x10", "3d", "anna", "ticket 123",
		}},
		{"list", operator.LimitList{}, []string{"no limit is changed"}},
		{"history", operator.LimitList{History: []overrides.Record{
			{At: now, Action: "set", Override: o, Before: &before},
			{At: now, Action: "unset", Override: overrides.Override{Domain: "d"}},
		}}, []string{"set", "x2", "x10", "anna", "ticket 123", "unset", "all"}},
		{"history", operator.LimitList{}, []string{"no limit was changed"}},
		{"list|--json", operator.LimitList{Count: 1, Limits: []overrides.Override{o}}, []string{`"count": 1`, `"limit": "x10"`}},
		{"history|--json", operator.LimitList{History: []overrides.Record{{Action: "set"}}}, []string{`"action": "set"`}},
		{"set" + change + "|--rate|x10|--json", set, []string{`"dry_run": true`, `"remaining": 540`}},
	} {
		got, err := perform(t, &port{answer: tt.answer}, tt.args)
		rest := got
		for _, want := range tt.want {
			_, after, found := strings.Cut(rest, want)
			if !found {
				t.Errorf("%s: %v\n%s\nlacks %s", tt.args, err, got, want)
			}
			rest = after
		}
		if strings.HasSuffix(tt.args, "--json") != json.Valid([]byte(got)) {
			t.Errorf("%s: %s", tt.args, got)
		}
	}
}

// What the service refuses is the error of the command, which exits with 1.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for status, text := range map[int]string{
		http.StatusConflict:       "no change of a limit is in force",
		http.StatusForbidden:      "set DEBUG_TOKEN to change counters and limits",
		http.StatusNotImplemented: "limits cannot be changed at run time with Memcached",
	} {
		_, err := perform(t, &port{status: status, answer: text}, "unset|d|user=eve")
		if err == nil || exitCode(err) != 1 || !strings.Contains(err.Error(), text) {
			t.Errorf("%d: %v, code %d", status, err, exitCode(err))
		}
	}
}
