package admin

import (
	"fmt"
	"math"
	"mime"
	"net/http"
	"strings"

	"ratelimit/src/frontend/access"
)

// RequireToken passes requests to next if they send one of tokens, either as a bearer token or as the password
// of basic authentication, which browsers support. If tokens is nil, it passes all requests.
//
// A client that has sent too many wrong tokens gets 429 whatever it sends, so that it does not learn whether a guess is
// right. Requests without a token are not counted.
func RequireToken(tokens access.Secrets, attempts *access.Attempts, next http.Handler) http.Handler {
	if tokens == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !isBearer {
			_, sent, _ = r.BasicAuth()
		}
		if sent != "" {
			if wait := attempts.Add(r.RemoteAddr); wait > 0 {
				w.Header().Set("Retry-After", fmt.Sprint(int(math.Ceil(wait.Seconds()))))
				http.Error(w, "too many wrong tokens came from this address; wait as long as Retry-After says",
					http.StatusTooManyRequests)
				return
			}
			if access.IsSecret(sent, tokens) {
				attempts.Forgive(r.RemoteAddr)
				next.ServeHTTP(w, r)
				return
			}
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="ratelimit", charset="UTF-8"`)
		http.Error(w, "send DEBUG_TOKEN: Authorization: Bearer <token>", http.StatusUnauthorized)
	})
}

// protectFromSites refuses requests that a browser sends for a page of another origin, and keeps browsers from taking
// an answer for a script or for HTML. A page of another origin could not read an answer, but could hold all places of
// /api/events, or slow the process down with profiles. Links of other sites lead only to the operator's page.
func protectFromSites(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Content-Type-Options", "nosniff")
		site := r.Header.Get("Sec-Fetch-Site")
		isLink := r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
			r.Header.Get("Sec-Fetch-Dest") == "document"
		// Programs other than browsers send no such header.
		if site == "" || site == "none" || site == "same-origin" || isLink {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, fmt.Sprintf("a page of another origin sent this request (Sec-Fetch-Site: %.20q); only pages of this "+
			"port may", site), http.StatusForbidden)
	})
}

// protectChange passes requests that change something to next if they come from an operator:
//   - without a token, only clients on this host may change anything, and no proxy may stand between;
//   - browsers may send a change only from a page of this port;
//   - a change is JSON, which a form of another site cannot send.
//
// Requests with the methods GET and HEAD change nothing and pass.
func protectChange(hasToken bool, next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			next.ServeHTTP(w, r)
			return
		}
		mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		switch {
		case !hasToken && !isLocal(r):
			http.Error(w, "set DEBUG_TOKEN to change counters and limits from other hosts; without it, only programs on the "+
				"host of the service may, without a proxy", http.StatusForbidden)
		case protection.Check(r) != nil:
			http.Error(w, "a page of another origin sent this request; only pages of this port may change anything",
				http.StatusForbidden)
		case mediaType != "application/json":
			http.Error(w, fmt.Sprintf("the Content-Type %.100q is not application/json", r.Header.Get("Content-Type")),
				http.StatusUnsupportedMediaType)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isLocal reports whether a request comes from this host and no proxy says that it has passed it on.
func isLocal(r *http.Request) bool {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if r.Header.Get(name) != "" {
			return false
		}
	}
	return access.IsOnThisHost(r.RemoteAddr)
}
