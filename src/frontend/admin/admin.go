// Package admin answers what operators ask over HTTP: is it healthy, what is
// loaded, what has been counted. It knows nothing of the rest; whoever builds
// it hands in the functions that know.
package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Healthcheck answers 200 "OK" while reason returns "", else 500 and the
// reason. It must never block: orchestrators restart what is slow here.
func Healthcheck(reason func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if why := reason(); why != "" {
			http.Error(w, why, http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "OK")
	})
}

// Component is a part of the service, and whether it is ready.
type Component struct {
	Name string `json:"name"`
	// Why says why it is not ready; empty: it is.
	Why string `json:"why,omitempty"`
	// Note is what is worth knowing of it all the same.
	Note string `json:"note,omitempty"`
}

// Live answers 200 as long as there is somebody to answer.
func Live() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]bool{"live": true})
	})
}

// Ready answers 200 while all components are ready, else 503, and which are
// not, and why. It must never block either.
func Ready(components func() []Component) http.Handler {
	type component struct {
		Ready bool `json:"ready"`
		Component
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body := struct {
			Ready      bool        `json:"ready"`
			Components []component `json:"components"`
		}{Ready: true}
		status := http.StatusOK
		for _, c := range components() {
			body.Components = append(body.Components, component{c.Why == "", c})
			if c.Why != "" {
				body.Ready, status = false, http.StatusServiceUnavailable
			}
		}
		answer(w, status, body)
	})
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a caller that has gone needs no answer
}

// Token lets those requests through to next that show token, as a bearer or as
// the password of basic authentication, which browsers know; empty: all.
func Token(token string, next http.Handler) http.Handler {
	if token == "" {
		return next
	}
	want := sha256.Sum256([]byte(token)) // of one length, so that comparing tells nothing of it
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !isBearer {
			_, shown, _ = r.BasicAuth()
		}
		if got := sha256.Sum256([]byte(shown)); subtle.ConstantTimeCompare(got[:], want[:]) == 0 {
			w.Header().Set("WWW-Authenticate", `Basic realm="ratelimit", charset="UTF-8"`)
			http.Error(w, "show DEBUG_TOKEN: Authorization: Bearer <token>", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Hosts lets those requests through to next whose Host header is an IP address,
// localhost or one of names, which are in lower case. Others may come from a web page
// whose name was made to resolve to this address, with the browser of an operator
// (DNS rebinding).
func Hosts(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.Trim(host, "[]"))
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" && !slices.Contains(names, host) {
			http.Error(w, fmt.Sprintf("the Host header %q is no IP address, not localhost and not in DEBUG_ALLOWED_HOSTS", host), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Stat is one figure with its name.
type Stat struct {
	Name  string
	Value int64
}

// Debug is what the debug port shows.
type Debug struct {
	// Rules returns one line per rule, in a stable order.
	Rules func() []string
	// RulesYAML returns all that is known of the rules.
	RulesYAML func() ([]byte, error)
	// Stats returns all figures, sorted by name.
	Stats func() []Stat
	// Ready returns what Ready answers, with all that is known.
	Ready func() []Component
	// Explain says which rules a request meets; nil: that is not offered.
	Explain http.Handler
	// Pprof offers Go's profiles.
	Pprof bool
}

// Handler serves the debug port.
func (d Debug) Handler() http.Handler {
	mux := http.NewServeMux()
	var help []string
	handle := func(path, text string, h http.HandlerFunc) {
		mux.HandleFunc(path, h)
		help = append(help, path+": "+text)
	}
	handle("/rlconfig", "the rules in force, one per line; ?format=yaml for all that is known of them", d.rules)
	handle("/stats", "all counters and gauges; ?format=json for JSON", d.stats)
	handle("/readyz", "whether each component is ready, as on the port of requests, but with addresses, paths and problems", Ready(d.Ready).ServeHTTP)
	if d.Explain != nil {
		handle("/explain", "which rules a request meets, and why, charging nothing; ?domain=D&descriptors=key=value,key=value, or POST what /json takes; ?format=json for JSON", d.Explain.ServeHTTP)
	}
	if d.Pprof {
		handle("/debug/pprof/", "profiles of this process, and the list of them", pprof.Index)
		handle("/debug/pprof/profile", "CPU profile; ?seconds=30", pprof.Profile)
		handle("/debug/pprof/trace", "execution trace; ?seconds=1", pprof.Trace)
	}
	slices.Sort(help)
	index := strings.Join(help, "\n") + "\n"
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { plain(w, index) })
	return mux
}

func (d Debug) rules(w http.ResponseWriter, r *http.Request) {
	switch format := r.URL.Query().Get("format"); format {
	case "":
		var b strings.Builder
		for _, line := range d.Rules() {
			b.WriteString(line)
			b.WriteByte('\n')
		}
		plain(w, b.String())
	case "yaml":
		text, err := d.RulesYAML()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = w.Write(text) // a caller that has gone needs no answer
	default:
		unknownFormat(w, format, "yaml")
	}
}

func unknownFormat(w http.ResponseWriter, format, known string) {
	http.Error(w, fmt.Sprintf("format %q is not known; leave it out, or write %s", format, known), http.StatusBadRequest)
}

func (d Debug) stats(w http.ResponseWriter, r *http.Request) {
	stats := d.Stats()
	switch format := r.URL.Query().Get("format"); format {
	case "":
		var b strings.Builder
		for _, s := range stats {
			b.WriteString(s.Name)
			b.WriteString(": ")
			b.WriteString(strconv.FormatInt(s.Value, 10))
			b.WriteByte('\n')
		}
		plain(w, b.String())
	case "json":
		values := make(map[string]int64, len(stats))
		for _, s := range stats {
			values[s.Name] = s.Value
		}
		w.Header().Set("Content-Type", "application/json")
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		_ = enc.Encode(values) // a caller that has gone needs no answer
	default:
		unknownFormat(w, format, "json")
	}
}

func plain(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // a caller that has gone needs no answer
}
