package admin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"ratelimit/src/frontend/access"
)

// newAttempts returns an Attempts without clients.
func newAttempts(t *testing.T) *access.Attempts {
	t.Helper()
	a, err := access.NewAttempts()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A client that guesses tokens learns nothing after some attempts, even if a guess is right. Other clients are not
// affected.
func TestGuessedTokens(t *testing.T) {
	t.Parallel()
	attempts := newAttempts(t)
	for range 7 { // Three are left of ten.
		attempts.Add("10.0.0.7")
		attempts.Add("2001:db8::/64")
	}
	h := RequireToken(access.Fixed("secret"), attempts, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for i, tt := range []struct {
		client, token string
		code          int
	}{
		{"10.0.0.7:1000", "secret", 200},
		{"10.0.0.7:1000", "", 401}, // It is no guess.
		{"10.0.0.7:1000", "a", 401},
		{"10.0.0.7:1001", "b", 401},
		{"10.0.0.7:1002", "secret", 200},
		{"10.0.0.7:1003", "c", 401},
		{"10.0.0.7:1004", "d", 429},
		{"10.0.0.7:1005", "secret", 429},
		{"10.0.0.7:1005", "", 401},
		{"10.0.0.8:1000", "secret", 200},
		{"[::ffff:10.0.0.7]:1006", "e", 429},
		{"[2001:db8::1]:1000", "a", 401},
		{"[2001:db8::2]:1000", "b", 401},
		{"[2001:db8::3]:1000", "c", 401},
		{"[2001:db8::4]:1000", "d", 429}, // It is in the same network.
		{"[2001:db8:0:1::1]:1000", "a", 401},
	} {
		r := httptest.NewRequest(http.MethodGet, "/stats", nil)
		if r.RemoteAddr = tt.client; tt.token != "" {
			r.Header.Set("Authorization", "Bearer "+tt.token)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != tt.code || (w.Header().Get("Retry-After") == "6") != (tt.code == 429) {
			t.Errorf("request %d of %s with %q: %d, Retry-After %q, want %d", i, tt.client, tt.token, w.Code,
				w.Header().Get("Retry-After"), tt.code)
		}
	}
}

// Only operators may change counters: no page of another site, no form, and without a token no other host.
func TestChangesAreProtected(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		hasToken bool
		client   string
		headers  string // name: value, separated by ;
		code     int
	}{
		{"a program, with a token", true, "10.0.0.7:1000", "Content-Type: application/json", 200},
		{"with a charset", true, "10.0.0.7:1000", "Content-Type: application/json; charset=utf-8", 200},
		{"a program on this host", false, "127.0.0.1:1000", "Content-Type: application/json", 200},
		{"IPv6", false, "[::1]:1000", "Content-Type: application/json", 200},
		{"IPv4 in IPv6", false, "[::ffff:127.0.0.1]:1000", "Content-Type: application/json", 200},
		{"another host", false, "10.0.0.7:1000", "Content-Type: application/json", 403},
		{
			"behind a proxy on this host", false, "127.0.0.1:1000",
			"Content-Type: application/json|X-Forwarded-For: 10.0.0.7", 403,
		},
		{"no address", false, "@", "Content-Type: application/json", 403},
		{
			"the page of this port", true, "10.0.0.7:1000",
			"Content-Type: application/json|Sec-Fetch-Site: same-origin|Origin: http://example.com", 200,
		},
		{"typed by a person", true, "10.0.0.7:1000", "Content-Type: application/json|Sec-Fetch-Site: none", 200},
		{"another site", true, "10.0.0.7:1000", "Content-Type: application/json|Sec-Fetch-Site: cross-site", 403},
		{
			"another site on this host", false, "127.0.0.1:1000",
			"Content-Type: application/json|Sec-Fetch-Site: cross-site", 403,
		},
		{"a sibling site", true, "10.0.0.7:1000", "Content-Type: application/json|Sec-Fetch-Site: same-site", 403},
		{
			"an old browser on another site", true, "10.0.0.7:1000",
			"Content-Type: application/json|Origin: http://evil.example", 403,
		},
		{"another port", true, "10.0.0.7:1000", "Content-Type: application/json|Origin: http://example.com:81", 403},
		{"a sandboxed page", true, "10.0.0.7:1000", "Content-Type: application/json|Origin: null", 403},
		{"a form", true, "10.0.0.7:1000", "Content-Type: text/plain", 415},
		{"a form on this host", false, "127.0.0.1:1000", "Content-Type: application/x-www-form-urlencoded", 415},
		{"no type", true, "10.0.0.7:1000", "", 415},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			changed := false
			h := protectChange(tt.hasToken, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { changed = true }))
			r := httptest.NewRequest(http.MethodPost, "http://example.com/api/counters", strings.NewReader("{}"))
			r.RemoteAddr = tt.client
			for line := range strings.SplitSeq(tt.headers, "|") {
				if name, value, ok := strings.Cut(line, ": "); ok {
					r.Header.Set(name, value)
				}
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != tt.code || changed != (tt.code == 200) {
				t.Errorf("%d %s, changed %t; want %d", w.Code, w.Body, changed, tt.code)
			}
		})
	}
}
