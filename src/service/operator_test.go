package service

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"ratelimit/src/operator"
	"ratelimit/testbed/redistest"
)

// api reads a page under /api into v.
func api[T any](s *service, path string) (v T) {
	s.t.Helper()
	code, body := s.get("debug", path)
	if code != http.StatusOK {
		s.t.Fatalf("%s: %d %s", path, code, body)
	}
	if err := json.Unmarshal([]byte(body), &v); err != nil {
		s.t.Fatalf("%s: %v: %s", path, err, body)
	}
	return v
}

// Requests of one subject are denied: /api says which subject, by which rule and over which protocol, and how often.
func TestOperatorFigures(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"h2", "grpc-go"} {
		s := launch(t, oneRule, "DIVVY_PORT=0", "DIVVY_DOMAIN=d", "GRPC_ENGINE="+engine)
		s.until("ready", s.healthy)
		for range 8 {
			if err := s.call([]string{"ip"}); err != nil {
				t.Fatal(err)
			}
		}
		s.ask("1")
		if got := s.say("HIT ip=1\n", nil); !strings.HasPrefix(got, "OK false") {
			t.Fatalf("HIT: got %q", got)
		}
		s.ask("calm")
		for kind, want := range map[string]string{"hot": "d.ip ip=1 10; d.ip ip=calm 1", "denied": "d.ip ip=1 8"} {
			for _, window := range []string{"minute", "hour"} {
				var got []string
				for _, x := range api[[]operator.Subject](s, "/api/top?kind="+kind+"&window="+window+"&domain=d&rule=d.ip") {
					got = append(got, fmt.Sprintf("%s %s %d", x.Rule, x.Subject, x.Hits))
				}
				if got := strings.Join(got, "; "); got != want {
					t.Errorf("%s of the %s: got %q, want %q", kind, window, got, want)
				}
			}
		}
		list := api[[]operator.Denial](s, "/api/denials")
		total, protocols := 0, []string{}
		for i, d := range list {
			total += 1 + int(d.Skipped)
			if protocols = append(protocols, d.Protocol); d.Domain != "d" || d.Rule != "d.ip" || d.Subject != "ip=1" ||
				d.Counter != "d_ip_1_" ||
				d.RetryAfterSeconds <= 0 || time.Since(d.At).Abs() > time.Minute || i > 0 && d.ID != list[i-1].ID+1 {
				t.Errorf("got %+v", d)
			}
		}
		if protocols = slices.Compact(protocols); total > 8 || !slices.Contains(protocols, "grpc") {
			t.Errorf("%d denials over %v", total, protocols)
		}
		s.until("rates", func() bool {
			r := api[operator.Rates](s, "/api/rates?search=IP")
			return r.MatchingRules == 1 && r.Rules[0].Rule == "d.ip" && r.Rules[0].Limit == "2 per year" &&
				r.Rules[0].Denied > 0 &&
				r.Total == r.Domains[0].PerSecond && r.Total == r.Rules[0].PerSecond
		})
		if r := api[operator.Rates](s, "/api/rates?search=other"); r.MatchingRules != 0 || r.Total.Denied == 0 {
			t.Errorf("got %+v", r)
		}
		if h := api[operator.History](s, "/api/history?domain=d&rule=d.ip"); h.StepSeconds != 10 || h.Start.IsZero() {
			t.Errorf("got %+v", h)
		}
		if code, _ := s.get("debug", "/api/history?domain=d&rule=d.none"); code != http.StatusNotFound {
			t.Errorf("history of an unknown rule: %d", code)
		}
	}
}

// The state names the rules in force, and what is wrong with newer ones. Subjects and denials are off if a setting says
// so.
func TestOperatorState(t *testing.T) {
	t.Parallel()
	s := launch(t, oneRule, "TOP_SUBJECTS_RULES=0", "RECENT_DENIALS=0")
	s.until("ready", s.healthy)
	for range 3 {
		s.ask("1")
	}
	if top, denied := api[[]operator.Subject](s, "/api/top"),
		api[[]operator.Denial](s, "/api/denials"); len(top)+len(denied) > 0 {
		t.Errorf("got %+v and %+v", top, denied)
	}
	st := api[operator.State](s, "/api/state")
	if !st.Ready || st.Store != "memory" || !st.StoreSince.IsZero() || st.Replicas != 1 || st.Rules.Domains != 1 ||
		st.Rules.Rules != 1 ||
		st.Rules.Files != 1 || st.Rules.Hash == "" || st.Rules.LoadedAt.IsZero() || len(st.Rules.Problems) > 0 ||
		st.StartedAt.IsZero() {
		t.Errorf("got %+v", st)
	}
	s.write("rules.yaml", "domain: d\ndescriptors: [{keyy: a}, {key: b, rate_limit: {}}]")
	s.until("refused", func() bool { return len(api[operator.State](s, "/api/state").Rules.Problems) > 1 })
	after := api[operator.State](s, "/api/state")
	if !strings.Contains(after.Rules.Problems[0], "rules.yaml:2:") || after.Rules.Hash != st.Rules.Hash ||
		!after.Rules.LoadedAt.Equal(st.Rules.LoadedAt) {
		t.Errorf("got %+v", after.Rules)
	}
}

// The state says which store there is, and since when it answers.
func TestOperatorStateOfRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	s := launch(t, oneRule, "BACKEND_TYPE=redis", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL="+server.Addr, "REPLICAS=3")
	s.until("ready", s.healthy)
	if st := api[operator.State](s, "/api/state"); st.Store != "redis" || time.Since(st.StoreSince).Abs() > time.Minute ||
		st.Replicas != 3 {
		t.Errorf("got %+v", st)
	}
}
