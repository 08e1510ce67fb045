package service

import (
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/operator/denials"
)

// With LOG_DENIALS a denied request is logged, at any level; without it, none is.
func TestLogDenials(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		vars []string
		want string // is in the log
	}{
		{
			[]string{"LOG_DENIALS=10", "LOG_LEVEL=error"},
			`level=info msg=denied domain=d rule=d.ip subject="ip=\"10.0.0.1,x\"" wait=`,
		},
		{[]string{"LOG_DENIALS=0", "LOG_LEVEL=trace"}, ""},
		{[]string{"LOG_LEVEL=trace"}, ""},
	} {
		s := launch(t, oneRule, tt.vars...)
		s.until("ready", s.healthy)
		for i, want := range []int{200, 200, 429} {
			if got := s.ask("10.0.0.1,x"); got != want {
				t.Errorf("request %d: got %d, want %d", i, got, want)
			}
		}
		if tt.want == "" {
			if s.logged("denied")() {
				t.Errorf("%v: a denial is in\n%s", tt.vars, s.log.String())
			}
			continue
		}
		s.until("logged", s.logged(tt.want))
		if n := strings.Count(s.log.String(), "denied"); n != 1 {
			t.Errorf("%v: %d lines", tt.vars, n)
		}
	}
}

// The fields of a line, as JSON.
func TestDenialLine(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		denial denials.Denial
		want   string
	}{
		{
			denials.Denial{Domain: "d", Rule: "d.ip", Descriptor: "ip=1", RetryAfter: 1500 * time.Millisecond},
			`{"domain":"d","level":"info","msg":"denied","rule":"d.ip","subject":"ip=1","wait":"1.5s"}`,
		},
		{
			denials.Denial{Domain: "d", Descriptor: `ip="\n"`, RetryAfter: algorithm.Never, SkippedDenials: 7},
			`{"domain":"d","level":"info","msg":"denied","rule":"limit of the request","skipped":7,"subject":"ip=\"\\n\"","wait":"never"}`,
		},
		{
			denials.Denial{Domain: "d", Rule: "d.ip", Descriptor: "ip=1", Fallback: backend.FallbackDeny},
			`{"domain":"d","level":"info","msg":"denied","reason":"the store does not answer","rule":"d.ip","subject":"ip=1","wait":"0s"}`,
		},
	} {
		var out buffer
		l := logrus.New()
		l.SetOutput(&out)
		l.SetFormatter(&logrus.JSONFormatter{DisableTimestamp: true})
		logDenial(l)(tt.denial)
		if got := strings.TrimSpace(out.String()); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
	}
}

func TestLogDenialsOfDivvy(t *testing.T) {
	s := launchDivvy(t, "bakery.ini", bakery, "LOG_DENIALS=1")
	s.until("answering", func() bool { return s.say("HIT closed=now\n", nil) == "OK false 0 -1\n" })
	s.until("logged", s.logged("subject=\"closed=now\" wait=never"))
}
