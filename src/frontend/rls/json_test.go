package rls

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
)

func post(h http.Handler, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(body)))
	return w
}

const oneIP = `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"1"}]}]}`

func TestJSON(t *testing.T) {
	h := start(t, nil).JSONHandler()
	nested := strings.Repeat(`{"a":`, 15_000) + "1" + strings.Repeat("}", 15_000)
	tooMany := `{"domain":"d","descriptors":[` + strings.Repeat("{},", limiter.MaxDescriptors) + `{}]}`
	steps := []struct {
		name string
		body string
		code int
		want string // is in the answer
	}{
		{"within", oneIP, 200, `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"per-ip","requestsPerUnit":2,"unit":"DAY"},"limitRemaining":1,"durationUntilReset":"`},
		{
			"original field names", `{"domain":"d","hits_addend":1,"descriptors":[{"entries":[{"key":"ip","value":"1"}]}]}`, 200,
			`"OK"`,
		},
		{"over", oneIP, 429, `"overallCode":"OVER_LIMIT"`},
		{
			"hits as text", `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"2"}],"hitsAddend":"2"}]}`, 200,
			`"OK"`,
		},
		{"empty", "", 400, "the body is not a RateLimitRequest"},
		{"blank", " \n", 400, "the body is not a RateLimitRequest"},
		{"not JSON", "domain=d", 400, "the body is not a RateLimitRequest"},
		{"long problem", `{"` + strings.Repeat("é", 1000) + `":1}`, 400, "é…"},
		{"text behind", oneIP + "x", 400, "the body is not a RateLimitRequest"},
		{"unknown field", `{"domain":"d","x":1}`, 400, "unknown field"},
		{"wrong type", `{"domain":5}`, 400, "the body is not a RateLimitRequest"},
		{"negative hits", `{"domain":"d","hitsAddend":-1}`, 400, "the body is not a RateLimitRequest"},
		{"too many hits", `{"domain":"d","hitsAddend":4294967296}`, 400, "the body is not a RateLimitRequest"},
		{
			"half a rune", `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"` + "\xff" + `"}]}]}`, 400,
			"invalid UTF-8",
		},
		{"null", "null", 400, "the body is not a RateLimitRequest"},
		{"nested", nested, 400, "the body is not a RateLimitRequest"},
		{"too many descriptors", tooMany, 413, "bad request: too large: 1001 descriptors, at most 1000 are allowed"},
		{
			"far too many", `{"descriptors":[` + strings.Repeat("{},", 300_000) + `{}]}`, 413,
			"bad request: too large: more than 1000 descriptors or 16000 entries",
		},
		{"empty object", "{}", 400, "bad request: the domain is empty"},
		{"no descriptors", `{"domain":"d"}`, 400, "bad request: there are no descriptors"},
		{
			"no unit", `{"domain":"d","descriptors":[{"limit":{"requestsPerUnit":1}}]}`, 400,
			"bad request: descriptor 0: limit: the unit",
		},
		{"large", `{"domain":"` + strings.Repeat("d", 1<<20) + `"}`, 413, "1 MiB"},
		{"large value", `{"domain":"d","descriptors":[{"entries":[{"key":"ip","value":"` + strings.Repeat("1",
			1_000_000) + `"}]}]}`, 200, `"limitRemaining":1`},
		{"and the next", oneIP, 429, `"overallCode":"OVER_LIMIT"`},
	}
	for _, st := range steps {
		t.Run(st.name, func(t *testing.T) {
			w := post(h, st.body)
			// protojson writes blanks at random into its error texts
			got := strings.ReplaceAll(w.Body.String(), "\u00a0", " ")
			if w.Code != st.code || !strings.Contains(got, st.want) {
				t.Errorf("got %d %.200s\nwant %d %s", w.Code, got, st.code, st.want)
			}
			wantType := "application/json"
			if st.code != 200 && st.code != 429 {
				wantType = "text/plain; charset=utf-8"
			}
			if got := w.Header().Get("Content-Type"); got != wantType {
				t.Errorf("content type %s", got)
			}
		})
	}
}

func TestJSONMethods(t *testing.T) {
	h := start(t, nil).JSONHandler()
	for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodDelete, http.MethodHead} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(method, "/json", strings.NewReader(oneIP)))
		if w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != http.MethodPost {
			t.Errorf("%s: %d, Allow %q", method, w.Code, w.Header().Get("Allow"))
		}
	}
}

func TestJSONFailures(t *testing.T) {
	for _, tt := range []struct {
		name  string
		store backend.Backend
		code  int
	}{
		{"store", broken{unanswered}, http.StatusServiceUnavailable},
		{"too much for the store", broken{overloaded}, http.StatusServiceUnavailable},
		{"misuse", broken{func(*backend.Batch) error { return errSecret }}, http.StatusInternalServerError},
		{"panic", broken{func(*backend.Batch) error { panic(errSecret) }}, http.StatusInternalServerError},
		{"deadline", broken{func(*backend.Batch) error { return context.DeadlineExceeded }}, http.StatusServiceUnavailable},
	} {
		f := start(t, tt.store)
		w := post(f.JSONHandler(), oneIP)
		if w.Code != tt.code || strings.Contains(w.Body.String(), "10.0.0.7") {
			t.Errorf("%s: got %d %s, want %d and no key", tt.name, w.Code, w.Body, tt.code)
		}
		if len(f.failed()) != 1 {
			t.Errorf("%s: told of %v", tt.name, f.failed())
		}
	}
	f := start(t, nil)
	f.cfg.Limiter = limiter.New(limiter.Config{})
	if w := post(f.JSONHandler(), oneIP); w.Code != http.StatusServiceUnavailable {
		t.Errorf("not ready: got %d", w.Code)
	}
}

// A body that breaks off is the caller's fault.
func TestJSONBrokenBody(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/json", io.MultiReader(strings.NewReader(oneIP[:20]), brokenReader{}))
	start(t, nil).JSONHandler().ServeHTTP(w, r)
	if w.Code != http.StatusBadRequest {
		t.Errorf("got %d", w.Code)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// FuzzJSON feeds any body: every answer has one of the documented codes, and a
// decision is valid JSON that agrees with its code.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{
		oneIP, "{}", "", "null", "[]", `{"domain":"d","descriptors":[{},{"limit":{"unit":"WEEK"}}]}`,
		`{"domain":"d","descriptors":[{"entries":[{}],"hitsAddend":18446744073709551615,"isNegativeHits":true}]}`,
		`{"domain":"d","descriptors":[{"limit":{"unit":7,"requestsPerUnit":4294967295,"unitMultiplier":4294967295}}]}`,
	} {
		f.Add([]byte(seed))
	}
	h := start(f, nil).JSONHandler()
	f.Fuzz(func(t *testing.T, body []byte) {
		w := post(h, string(body))
		switch w.Code {
		case http.StatusOK, http.StatusTooManyRequests:
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
			return
		default:
			t.Fatalf("%d for %q", w.Code, body)
		}
		resp, req := new(pb.RateLimitResponse), new(pb.RateLimitRequest)
		if !json.Valid(w.Body.Bytes()) {
			t.Fatalf("not JSON: %s", w.Body)
		}
		if err := protojson.Unmarshal(w.Body.Bytes(), resp); err != nil {
			t.Fatal(err)
		}
		if err := protojson.Unmarshal(body, req); err != nil {
			t.Fatalf("answered, but: %v", err)
		}
		if over := resp.GetOverallCode() == pb.RateLimitResponse_OVER_LIMIT; over != (w.Code == http.StatusTooManyRequests) {
			t.Errorf("%d beside %s", w.Code, w.Body)
		}
		if len(resp.GetStatuses()) != len(req.GetDescriptors()) {
			t.Errorf("%d statuses for %d descriptors", len(resp.GetStatuses()), len(req.GetDescriptors()))
		}
	})
}
