package counter

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"ratelimit/src/operator"
)

// port is a debug port that records changes and answers with answer, or with status.
type port struct {
	status  int
	answer  string
	changes []string
}

func (p *port) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body) // A failed read shows in changes.
	p.changes = append(p.changes, strings.TrimSpace(string(text)))
	if p.status != 0 {
		http.Error(w, p.answer, p.status)
		return
	}
	_, _ = io.WriteString(w, p.answer) // A failed write fails the command.
}

// perform runs the command with args against p. terminal says that in is one.
func perform(t *testing.T, p *port, terminal bool, in string, args ...string) (out, errOut string, err error) {
	t.Helper()
	server := httptest.NewServer(p)
	defer server.Close()
	opt := options{isTerminal: func(io.Reader) bool { return terminal }}
	cmd := opt.command()
	var o, e bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(&e)
	cmd.SetIn(strings.NewReader(in))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetArgs(append(args, "--address", server.Listener.Addr().String()))
	err = cmd.ExecuteContext(t.Context())
	return o.String(), e.String(), err
}

func TestChangesThatAreSent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want string }{
		{"get d user=alex", `{"action":"get","domain":"d","descriptor":[{"key":"user","value":"alex"}]}`},
		{
			"reset d user=alex path=/a=b",
			`{"action":"reset","domain":"d","descriptor":[{"key":"user","value":"alex"},{"key":"path","value":"/a=b"}]}`,
		},
		{"set d user=alex --used 0", `{"action":"set","domain":"d","descriptor":[{"key":"user","value":"alex"}],"used":0}`},
		{
			"set d user=al* --used 7 --literal",
			`{"action":"set","domain":"d","descriptor":[{"key":"user","value":"al*"}],"used":7}`,
		},
		{
			"reset d user=alex --dry-run",
			`{"action":"reset","domain":"d","descriptor":[{"key":"user","value":"alex"}],"dry_run":true}`,
		},
		{"get d user=al*", `{"action":"get","domain":"d","descriptor":[{"key":"user","prefix":"al"}]}`},
		{"get d user=*", `{"action":"get","domain":"d","descriptor":[{"key":"user","prefix":""}]}`},
		{
			"get d --path user/alex/trade",
			`{"action":"get","domain":"d","descriptor":[{"key":"user"},{"key":"alex"},{"key":"trade"}]}`,
		},
		{"get d --path user/al*", `{"action":"get","domain":"d","descriptor":[{"key":"user","prefix":"al"}]}`},
		{
			`reset d user=eve,action=checkout`,
			`{"action":"reset","domain":"d","descriptor":[{"key":"user","value":"eve"},{"key":"action","value":"checkout"}]}`,
		},
		{
			`get d user=eve, action=check*`,
			`{"action":"get","domain":"d","descriptor":[{"key":"user","value":"eve"},{"key":"action","prefix":"check"}]}`,
		},
		{`set d user="al*" --used 7`, `{"action":"set","domain":"d","descriptor":[{"key":"user","value":"al*"}],"used":7}`},
		{`get d user="a,b"`, `{"action":"get","domain":"d","descriptor":[{"key":"user","value":"a,b"}]}`},
		{`get d user=a,b --literal`, `{"action":"get","domain":"d","descriptor":[{"key":"user","value":"a,b"}]}`},
		{`get d user,alex`, `{"action":"get","domain":"d","descriptor":[{"key":"user"},{"key":"alex"}]}`},
		{"get d user=", `{"action":"get","domain":"d","descriptor":[{"key":"user"}]}`},
	} {
		p := &port{answer: `{"action":"get"}` + "\n"}
		if _, _, err := perform(t, p, false, "", strings.Fields(tt.args)...); err != nil || len(p.changes) != 1 ||
			p.changes[0] != tt.want {
			t.Errorf("%s: sent %q, %v; want %s", tt.args, p.changes, err, tt.want)
		}
	}
}

func reportText(t *testing.T, r operator.CounterReport) string {
	t.Helper()
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestReports(t *testing.T) {
	t.Parallel()
	prefix := "al"
	one := []operator.CounterEntry{{Key: "user", Value: "alex"}}
	before := []operator.Counter{{
		Rule: "d.user", Key: "d_user_alex_", Algorithm: "fixed_window", Limit: 5,
		PeriodSeconds: 60, Used: 5, ResetAfterSeconds: 12.34, Refuses: true, RetryAfterSeconds: 12.34,
	}}
	after := []operator.Counter{{
		Rule: "d.user", Key: "d_user_alex_", Algorithm: "fixed_window", Limit: 5,
		PeriodSeconds: 60, Remaining: 5,
	}}
	for _, tt := range []struct {
		name   string
		report operator.CounterReport
		want   []string
	}{
		{"get", operator.CounterReport{
			CounterChange: operator.CounterChange{Action: "get", Descriptor: one},
			Counters:      before,
		}, []string{"USED", "d.user  5     5 in 1m  0", "is refused for 12.3s  fixed_window  d_user_alex_"}},
		{"reset", operator.CounterReport{
			CounterChange: operator.CounterChange{Action: "reset", Descriptor: one},
			Before:        before, Counters: after,
		}, []string{"5 -> 0", "passes"}},
		{"dry run", operator.CounterReport{CounterChange: operator.CounterChange{
			Action: "reset", Descriptor: one,
			DryRun: true,
		}, Counters: before}, []string{"dry run: nothing was changed"}},
		{"never", operator.CounterReport{
			CounterChange: operator.CounterChange{Action: "get", Descriptor: one},
			Counters: []operator.Counter{{
				Algorithm: "gcra", Limit: 3, Refuses: true, RetryAfterSeconds: -1, Shadow: true,
				Fallback: "local",
			}},
		}, []string{"3 at once", "is refused (shadow) (store does not answer: local)"}},
		{"a replica's share", operator.CounterReport{
			CounterChange: operator.CounterChange{Action: "get", Descriptor: one},
			Counters: []operator.Counter{{
				Algorithm: "fixed_window", Limit: 60, Share: 30, PeriodSeconds: 60, Used: 40, Refuses: true,
				RetryAfterSeconds: 32.4, Fallback: "local",
			}},
		}, []string{"  40    30 of 60 in 1m  0  ", "is refused for 32.4s (store does not answer: local)"}},
		{
			"calendar",
			operator.CounterReport{
				CounterChange: operator.CounterChange{Action: "get", Descriptor: one},
				Counters:      []operator.Counter{{Algorithm: "fixed_window", Limit: 5, CalendarWindow: "calendar day in UTC"}},
			},
			[]string{"  5 per calendar day in UTC  "},
		},
		{
			"pattern",
			operator.CounterReport{
				CounterChange: operator.CounterChange{
					Action:     "get",
					Descriptor: []operator.CounterEntry{{Key: "user", Prefix: &prefix}},
				}, Matching: 12,
				Names: []string{"d_user_al1_", "d_\x1b[2J"},
			},
			[]string{"12 counters match\n", "  d_user_al1_\n", `  "d_\x1b[2J"`, "  and 10 more\n"},
		},
	} {
		p := &port{answer: reportText(t, tt.report) + "\n"}
		args := []string{"get", "d", "user=alex"}
		if tt.report.IsPattern() {
			args[2] = "user=al*"
			p.answer = `{"progress":3}` + "\n" + p.answer
		}
		out, _, err := perform(t, p, false, "", args...)
		for _, want := range tt.want {
			if err != nil || !strings.Contains(out, want) {
				t.Errorf("%s: %v, no %q in\n%s", tt.name, err, want, out)
			}
		}
		if out, _, err := perform(t, p, false, "", append(args, "--json")...); err != nil || !json.Valid([]byte(out)) {
			t.Errorf("%s as JSON: %v\n%s", tt.name, err, out)
		}
	}
}

// In a terminal the command asks before it resets the counters of a pattern.
func TestQuestion(t *testing.T) {
	t.Parallel()
	prefix := "al"
	answer := reportText(t, operator.CounterReport{CounterChange: operator.CounterChange{
		Action:     "reset",
		Descriptor: []operator.CounterEntry{{Key: "user", Prefix: &prefix}},
	}, Matching: 2, Names: []string{"a", "b"}})
	for typed, changes := range map[string]int{"y\n": 2, "YES\n": 2, "n\n": 1, "\n": 1, "": 1} {
		p := &port{answer: answer + "\n"}
		out, errOut, err := perform(t, p, true, typed, "reset", "d", "user=al*")
		if len(p.changes) != changes || (err == nil) != (changes == 2) ||
			!strings.Contains(errOut, "Reset 2 counters? [y/N]") || !strings.Contains(p.changes[0], `"dry_run":true`) {
			t.Errorf("%q: sent %q, %v\n%s%s", typed, p.changes, err, out, errOut)
		}
		if changes == 2 && out != "2 counters reset\n" {
			t.Errorf("%q", out)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		port port
		args string
		want string
	}{
		{
			port{status: 422, answer: "no limit of domain d applies to user=alex"},
			"get d user=alex",
			"applies to user=alex: `ratelimit explain --domain d --descriptors user=alex --address 127.0.0.1:",
		},
		{port{status: 401, answer: "send DEBUG_TOKEN"}, "get d user=alex", "token"},
		{port{status: 429, answer: "too many wrong tokens"}, "get d user=alex", "too many wrong tokens"},
		{
			port{answer: `{"progress":3}` + "\n" + `{"error":"the store went away"}` + "\n"},
			"reset d user=al* --yes",
			"the store went away",
		},
		{port{answer: `{"progress":3}` + "\n"}, "reset d user=al* --yes", "no report"},
		{port{answer: "<html>\n"}, "reset d user=al* --yes", "lines of JSON"},
		{
			port{answer: `{"action":"reset","before":[{"used":0}],"counters":[{"used":0}]}` + "\n"},
			"reset shop user=eve,action=checkout",
			"found no counter of shop for user=eve,action=checkout",
		},
		{
			port{answer: `{"action":"reset","dry_run":true,"counters":[{"used":0}]}` + "\n"},
			"reset shop user=eve --dry-run",
			"found no counter of shop for user=eve",
		},
		{
			port{answer: `{"action":"reset","descriptor":[{"key":"user","prefix":"al"}]}` + "\n"},
			"reset shop user=al* --yes",
			"found no counter of shop for user=al*",
		},
		{
			port{answer: `{"action":"reset","warning":"other replicas could not be told"}` + "\n"},
			"reset d user=alex",
			"other replicas could not be told",
		},
	} {
		if _, _, err := perform(t, &tt.port, false, "", strings.Fields(tt.args)...); err == nil ||
			!strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v", tt.port, err)
		}
	}
}
