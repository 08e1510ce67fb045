package admin

import (
	"io"
	"strings"
	"testing"
	"time"

	"ratelimit/src/operator"
)

// The page has text for curl, JSON for programs, and the rules.
func TestCandidatePage(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	f := newFakeFigures()
	h := DebugPages{
		SortedFigures: func(func(string, int64) bool) {}, Figures: f.source(),
	}.Handler()
	check := func(path string, code int, want string) {
		t.Helper()
		if w := get(h, path); w.Code != code || strings.TrimSpace(w.Body.String()) != want ||
			w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s: got %d %v\n%s\nwant %d\n%s", path, w.Code, w.Header(), w.Body, code, want)
		}
	}
	check("/candidate", 404, "there are no candidate rules: set RUNTIME_CANDIDATE_SUBDIRECTORY to a directory beside "+
		"that of the rules")
	f.candidate = &operator.Candidate{
		Directory: "/rules/next", RefusedAt: at,
		Problems: []string{"a.yaml:1:1: bad", "b.yaml:2:1: bad"},
	}
	check("/candidate", 200, `candidate rules in /rules/next: there are none; put the next rules there to compare them with the live ones
newer ones were refused at 2026-11-23T12:00:00Z:
  a.yaml:1:1: bad
  b.yaml:2:1: bad`)
	f.candidate = &operator.Candidate{
		Directory: "/rules/next", Hash: "0123", Domains: 1, Rules: 3, Files: 1, LoadedAt: at, Since: at,
		NewDomains: []string{"e"}, RemovedDomains: []string{"f", "g"},
		Requests: operator.CandidateRequests{
			Same:                 90,
			CandidateDifferences: operator.CandidateDifferences{WouldDeny: 7, WouldAdmit: 2, WouldBeError: 1}, NotJudged: 5,
			NotSampled: 300,
		}, SampledPercent: 38.6,
		DifferingRules: []operator.CandidateRule{
			{
				Domain: "d", Rule: "d.user", LiveLimit: "10 per minute", CandidateLimit: "5 per minute",
				CandidateDifferences: operator.CandidateDifferences{WouldDeny: 7},
			},
			{
				Domain: "d", Rule: "d.ip", LiveLimit: "1 per day",
				CandidateDifferences: operator.CandidateDifferences{WouldAdmit: 2, WouldBeError: 1},
			},
		},
		DifferingRuleCount: 5,
		Subjects: []operator.CandidateSubject{{
			Result: "would_deny", Domain: "d", Rule: "d.user",
			Subject: "user=bob", Requests: 7,
		}},
		Examples: []operator.CandidateExample{{
			ID: 9, At: at, Result: "would_deny", Protocol: "grpc", Domain: "d",
			Rule: "d.user", Subject: "user=bob", RetryAfterSeconds: 2.5,
		}},
		WriteRules: func(w io.Writer) error { _, err := io.WriteString(w, "d.user: unit=DAY\n"); return err },
	}
	check("/candidate", 200, `candidate rules in /rules/next: 3 rules in 1 domain, hash 0123, loaded at 2026-11-23T12:00:00Z; judged beside the live rules, and not enforced
domains that only the candidate has: e
domains that the candidate removes, so that all their requests would be admitted: f, g

100 requests compared since 2026-11-23T12:00:00Z: 7 would be denied, 2 would be admitted, 1 would be errors, 90 have the same answer; 5 could not be compared
300 requests were not compared, to bound the cost: 38.6 % of the counters that only the candidate has are judged

RULE    LIVE           CANDIDATE     WOULD DENY  WOULD ADMIT  WOULD BE ERROR
d.user  10 per minute  5 per minute  7           0            0
d.ip    1 per day      none          0           2            1
and 3 rules more

SUBJECT (last hour)  REQUESTS  RESULT      RULE
user=bob             7         would_deny  d.user

EXAMPLE               RESULT      DOMAIN  SUBJECT   RULE
2026-11-23T12:00:00Z  would_deny  d       user=bob  d.user`)
	check("/candidate?format=json&limit=1", 200,
		`{"directory":"/rules/next","hash":"0123","domains":1,"rules":3,"files":1,"loaded_at":"2026-11-23T12:00:00Z","problems":[],`+
			`"new_domains":["e"],"removed_domains":["f","g"],"sampled_percent":38.6,"since":"2026-11-23T12:00:00Z","requests":{"same":90,"would_deny":7,"would_admit":2,"would_be_error":1,"not_judged":5,"not_sampled":300},`+
			`"differing_rules":[{"domain":"d","rule":"d.user","live_limit":"10 per minute","candidate_limit":"5 per minute","would_deny":7,"would_admit":0,"would_be_error":0}],"differing_rule_count":5,`+
			`"subjects":[{"result":"would_deny","domain":"d","rule":"d.user","subject":"user=bob","requests":7}],`+
			`"examples":[{"id":9,"at":"2026-11-23T12:00:00Z","result":"would_deny","protocol":"grpc","domain":"d","rule":"d.user","subject":"user=bob","retry_after_seconds":2.5}]}`)
	check("/candidate?format=rlconfig", 200, "d.user: unit=DAY")
	check("/candidate?format=xml", 400, `format="xml" is not allowed; it is text, json or rlconfig`)
	check("/candidate?limit=0", 400, `limit="0" is not allowed; it is a whole number from 1 to 1000`)
	if w := getWith(h, "/candidate", "Sec-Fetch-Site", "cross-site"); w.Code != 403 {
		t.Errorf("a page of another origin gets %d", w.Code)
	}
}
