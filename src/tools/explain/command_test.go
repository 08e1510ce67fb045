package explain_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"ratelimit/src/frontend/admin"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
	"ratelimit/src/quota"
	"ratelimit/src/tools/explain"
	"ratelimit/testbed/limitertest"
)

const bucketRules = `domain: q
quota_buckets: true
descriptors:
- {key: env, descriptors: [{key: name, rate_limit: {unit: minute, requests_per_unit: 600}}]}
- {key: closed, rate_limit: {unit: second, requests_per_unit: 0}}
- {key: free, rate_limit: {unlimited: true}}
`

// explainBucket runs `ratelimit explain` with args.
func explainBucket(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	var b bytes.Buffer
	cmd := explain.Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	cmd.SetArgs(args)
	err = cmd.ExecuteContext(t.Context())
	return b.String(), err
}

// A service says what the counter has, and which proxies have units.
func TestBucketOfService(t *testing.T) {
	t.Parallel()
	quotas := operator.Quotas{Buckets: []quota.BucketState{{
		DemandPerSecond: 12.5, Units: 90, ShortSeconds: 72, Unfairness: 0.25, LeftUnits: 1, LeftSeconds: 8.25, ProxyCount: 5,
		OtherProxyCount: 1,
		Proxies: []quota.ProxyState{
			{
				Peer: "10.0.0.7:4", DemandPerSecond: 10, Action: quota.AssignUnits.String(), Units: 90, AssignedSeconds: 0.5,
				ExpiresInSeconds: 10.4, ReportedSeconds: 2,
			},
			{
				Peer: "10.0.0.8:4", DemandPerSecond: 2.5, Action: quota.DenyAll.String(), AssignedSeconds: 30, ReportedSeconds: 31,
				IsSilent: true,
			},
			{
				Peer: "10.0.0.9:4", DemandPerSecond: 0, Action: quota.AllowAll.String(), AssignedSeconds: 1, ExpiresInSeconds: 1,
				ReportedSeconds: 1,
			},
			{Peer: "10.0.0.9:\x1b"},
		},
	}}}
	mux := http.NewServeMux()
	mux.Handle("/explain", admin.DebugPages{Limiter: limitertest.New(t, limiter.Config{}, bucketRules)}.Handler())
	mux.HandleFunc("/api/quotas", func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("bucket") != "name=web,env=prod" {
			http.Error(w, "no proxy has it", http.StatusNotFound)
			return
		}
		_ = json.NewEncoder(w).Encode(quotas)
	})
	server := httptest.NewServer(mux)
	defer server.Close()
	want := `    now 0 used, 600 left: passes
  divided among proxies by what they ask for: 600 units at once, 10 a second in the long run
  if 2 ask for more, each gets 5 a second; of 10, 1
  a new proxy gets up to 130 units; those without traffic keep 30 together
  now proxies ask for 12.5 a second and have 90 units: 5 of this replica, 1 of others
    for 1m12s one has refused more than a tenth of its requests; the worst-off gets 25 % less than its share
    proxies that are gone may use up to 1 unit for 8.3s more
    10.0.0.7:4 asks for 10 a second: 90 units, assigned 500ms ago, expires in 10s, reported 2s ago
    10.0.0.8:4 asks for 2.5 a second: no units left, assigned 30s ago, expired, reported 31s ago, silent
    10.0.0.9:4 asks for 0 a second: all pass, assigned 1s ago, expires in 1s, reported 1s ago
    "10.0.0.9:\x1b" asks for 0 a second: no assignment yet
    and 1 more, which ask for less
`
	got, err := explainBucket(t, "--url", server.URL, "--domain", "q", "--bucket", "name=web,env=prod")
	if err != nil || !strings.HasSuffix(got, want) {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	if got, err = explainBucket(t, "--url", server.URL, "--domain", "q", "--bucket", "free=x"); err != nil ||
		!strings.HasSuffix(got, "no limit refuses\n") {
		t.Errorf("%v\n%s", err, got)
	}
	for query, want := range map[string]string{
		"bucket=a=b":                 "the domain of the bucket is missing",
		"domain=q&bucket=a,,b":       "write key=value, separated by commas",
		"domain=q&bucket=a=b&hits=3": "hits=[\"3\"] makes no sense beside bucket",
		"domain=q&bucket=a=b,a=c":    "a is there twice",
	} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/explain?"+query, nil))
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: got %d %s, want 400 with %s", query, w.Code, w.Body, want)
		}
	}
}
