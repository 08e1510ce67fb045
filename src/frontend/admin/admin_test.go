package admin

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"ratelimit/src/frontend/access"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
)

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w
}

func TestHealthcheck(t *testing.T) {
	reason := "no rules are loaded: a.yaml:3:5: unknown key"
	h := HealthcheckHandler(func() string { return reason })
	if w := get(h, "/healthcheck"); w.Code != 500 || !strings.Contains(w.Body.String(), reason) {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
	reason = ""
	if w := get(h, "/healthcheck"); w.Code != 200 || w.Body.String() != "OK" {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestReady(t *testing.T) {
	parts := []operator.Component{{Name: "rules", Note: "2 domains"}, {Name: "redis", NotReadyReason: `it "hangs"`}}
	h := ReadyHandler(func() []operator.Component { return parts })
	for _, want := range []struct {
		code int
		body string
	}{
		{503, `{"ready":false,"components":[{"ready":true,"name":"rules","note":"2 domains"},{"ready":false,"name":"redis","why":"it \"hangs\""}]}`},
		{200, `{"ready":true,"components":[{"ready":true,"name":"rules","note":"2 domains"},{"ready":true,"name":"redis"}]}`},
	} {
		w := get(h, "/readyz")
		if w.Code != want.code || strings.TrimSpace(w.Body.String()) != want.body ||
			w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("got %d %s %v, want %+v", w.Code, w.Body, w.Header(), want)
		}
		parts[1].NotReadyReason = ""
	}
	if w := get(LiveHandler(), "/livez"); w.Code != 200 || strings.TrimSpace(w.Body.String()) != `{"live":true}` {
		t.Errorf("got %d %s", w.Code, w.Body)
	}
}

func TestToken(t *testing.T) {
	inside := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("inside")) })
	for _, tt := range []struct {
		token, shown string
		code         int
	}{
		{"", "", 200},
		{"secret", "", 401},
		{"secret", "Bearer secret", 200},
		{"secret", "Bearer secre", 401},
		{"secret", "Bearer ", 401},
		{"secret", "bearer secret", 401},
		{"secret", "secret", 401},
		{"secret", "Basic " + base64.StdEncoding.EncodeToString([]byte("me:secret")), 200},
		{"secret", "Basic " + base64.StdEncoding.EncodeToString([]byte("secret:")), 401},
		{"secret", "Basic rubbish", 401},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if tt.shown != "" {
			r.Header.Set("Authorization", tt.shown)
		}
		w := httptest.NewRecorder()
		RequireToken(access.Fixed(tt.token), newAttempts(t), inside).ServeHTTP(w, r)
		if w.Code != tt.code || tt.code == 200 != (w.Body.String() == "inside") {
			t.Errorf("%q shows %q: got %d %s, want %d", tt.token, tt.shown, w.Code, w.Body, tt.code)
		}
	}
}

func TestDebug(t *testing.T) {
	fails := false
	debug := DebugPages{
		WriteRules: func(w io.Writer) error {
			_, err := io.WriteString(w, "d.ip: unit=MINUTE\nd.user: unit=DAY\n")
			return err
		},
		WriteRulesYAML: func(w io.Writer) error {
			_, err := io.WriteString(w, "- rule: d.ip\n")
			if fails {
				err = errors.New("no yaml today")
			}
			return err
		},
		SortedFigures: func(yield func(string, int64) bool) { _ = yield("a.hits", 12) && yield("b", -1) },
		Components: func() []operator.Component {
			return []operator.Component{{Name: "rules", NotReadyReason: "a.yaml:3:5: unknown key"}}
		},
		Limiter:      limiter.New(limiter.Config{}),
		PprofEnabled: true,
	}
	const index = `/debug/pprof/: list of the profiles of this process
/debug/pprof/profile: CPU profile; ?seconds=30
/debug/pprof/trace: execution trace; ?seconds=1
/explain: which rules match a request, and why; charges nothing; ?domain=D&descriptors=key=value,key=value, or bucket=key=value,key=value for a quota bucket, or POST the body of /json; ?format=json for JSON
/readyz: whether each component is ready, with addresses, paths and problems
/rlconfig: the loaded rules, one per line; ?format=yaml for all their properties
/stats: all counters and gauges; ?format=json for JSON
`
	for _, tt := range []struct {
		path string
		code int
		want string
	}{
		{"/", 200, index},
		{"/no-such-page", 404, "there is no such page; see / for the list\n"},
		{"/rlconfig/", 404, "there is no such page; see / for the list\n"},
		{"/json", 404, "there is no such page; see / for the list\n"},
		{
			"/metrics", 404, "Prometheus metrics are off: set USE_PROMETHEUS=true to have them on a port of their own, by " +
				"default at :9090/metrics\n",
		},
		{"/rlconfig", 200, "d.ip: unit=MINUTE\nd.user: unit=DAY\n"},
		{"/rlconfig?format=yaml", 200, "- rule: d.ip\n"},
		{"/rlconfig?format=xml", 400, "unknown format \"xml\"; leave it out, or use yaml\n"},
		{"/readyz", 503, `{"ready":false,"components":[{"ready":false,"name":"rules","why":"a.yaml:3:5: unknown key"}]}` + "\n"},
		{"/explain?domain=d&descriptors=a=b", 503, limiter.ErrNoRules.Error() + "\n"},
		{"/stats", 200, "a.hits: 12\nb: -1\n"},
		{"/stats?format=json", 200, "{\n  \"a.hits\": 12,\n  \"b\": -1\n}\n"},
		{"/stats?format=xml", 400, "unknown format \"xml\"; leave it out, or use json\n"},
	} {
		if w := get(debug.Handler(), tt.path); w.Code != tt.code || w.Body.String() != tt.want {
			t.Errorf("%s: got %d\n%swant %d\n%s", tt.path, w.Code, w.Body, tt.code, tt.want)
		}
	}
	if w := get(debug.Handler(), "/debug/pprof/goroutine?debug=1"); w.Code != 200 ||
		!strings.Contains(w.Body.String(), "goroutine profile") {
		t.Errorf("pprof: %d", w.Code)
	}
	fails = true
	if w := get(debug.Handler(), "/rlconfig?format=yaml"); w.Code != 500 || w.Body.String() != "no yaml today\n" {
		t.Errorf("a failure: %d %s", w.Code, w.Body)
	}
	debug.PprofEnabled, debug.Limiter = false, nil
	for _, path := range []string{"/explain", "/debug/pprof/", "/debug/pprof/heap"} {
		if w := get(debug.Handler(), path); w.Code != 404 {
			t.Errorf("%s is off: got %d", path, w.Code)
		}
	}
	if w := get(debug.Handler(), "/"); strings.Contains(w.Body.String(), "/explain") {
		t.Error("what is not there is in the list")
	}
	if w := get(debug.Handler(), "/debug/pprof/goroutine?debug=1"); strings.Contains(w.Body.String(),
		"goroutine profile") {
		t.Error("pprof is off and answers")
	}
}

// Each page takes the methods that make sense for it, and says which.
func TestDebugMethods(t *testing.T) {
	t.Parallel()
	none := func(io.Writer) error { return nil }
	debug := DebugPages{
		WriteRules: none, WriteRulesYAML: none, SortedFigures: func(func(string, int64) bool) {},
		Components: func() []operator.Component { return nil },
		Limiter:    limiter.New(limiter.Config{}), PprofEnabled: true,
	}
	const reads = "GET, HEAD"
	for _, page := range []struct{ path, allow string }{
		{"/", reads},
		{"/rlconfig", reads},
		{"/stats", reads},
		{"/readyz", reads},
		{"/debug/pprof/", reads},
		{"/debug/pprof/heap", reads},
		{"/explain", "GET, HEAD, POST"},
	} {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"} {
			w := httptest.NewRecorder()
			debug.Handler().ServeHTTP(w, httptest.NewRequest(method, page.path, nil))
			if slices.Contains(strings.Split(page.allow, ", "), method) {
				// The request to explain is missing.
				if want := map[bool]int{false: 200, true: 400}[page.path == "/explain"]; w.Code != want {
					t.Errorf("%s %s: got %d", method, page.path, w.Code)
				}
			} else if w.Code != 405 || w.Header().Get("Allow") != page.allow || !strings.Contains(w.Body.String(), page.allow) {
				t.Errorf("%s %s: got %d, Allow: %s, %s", method, page.path, w.Code, w.Header().Get("Allow"), w.Body)
			}
		}
	}
	w := httptest.NewRecorder()
	debug.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/nothing", nil))
	if w.Code != 404 {
		t.Errorf("POST of an unknown path: %d", w.Code)
	}
}

func TestHosts(t *testing.T) {
	t.Parallel()
	h := AllowHosts([]string{"debug.example"}, LiveHandler())
	for host, want := range map[string]int{
		"127.0.0.1": 200, "127.0.0.1:6070": 200, "10.1.2.3:80": 200, "[::1]:6070": 200, "[::1]": 200,
		"[fe80::1%25eth0]:6070": 200,
		"localhost":             200, "LocalHost:6070": 200, "debug.example": 200, "Debug.Example:6070": 200,
		"ratelimit-debug.ns.svc": 200, "ratelimit-debug.ns.svc:6070": 200, "Pod-0.ratelimit.ns.svc.cluster.local": 200,
		"svc": 403, "attacker.svc.example": 403, "xsvc": 403, "cluster.local": 403, "attacker.cluster.local.example": 403,
		"": 403, "attacker.example": 403, "attacker.example:6070": 403, "127.0.0.1.attacker.example": 403,
		"localhost.attacker.example:6070": 403, "debug.example.": 403, "1": 403,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want || want == 403 && !strings.Contains(w.Body.String(), "DEBUG_ALLOWED_HOSTS") {
			t.Errorf("host %q: %d %s, want %d", host, w.Code, w.Body, want)
		}
	}
}
