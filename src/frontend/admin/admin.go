// Package admin answers what operators ask over HTTP: is it healthy, what is
// loaded, what has been counted. It knows nothing of the rest; whoever builds
// it hands in the functions that know.
package admin

import (
	"bufio"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"time"
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

// Debug is what the debug port shows.
type Debug struct {
	// Rules writes one line per rule, in a stable order.
	Rules func(io.Writer) error
	// RulesYAML writes all that is known of the rules.
	RulesYAML func(io.Writer) error
	// Stats yields all figures with their names, sorted by name.
	Stats iter.Seq2[string, int64]
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
		mux.Handle(path, only(h, http.MethodGet, http.MethodHead))
		help = append(help, path+": "+text)
	}
	handle("/rlconfig", "the rules in force, one per line; ?format=yaml for all that is known of them", d.rules)
	handle("/stats", "all counters and gauges; ?format=json for JSON", d.stats)
	handle("/readyz", "whether each component is ready, as on the port of requests, but with addresses, paths and problems", Ready(d.Ready).ServeHTTP)
	if d.Explain != nil {
		mux.Handle("/explain", only(d.Explain, http.MethodGet, http.MethodHead, http.MethodPost))
		help = append(help, "/explain: which rules a request meets, and why, charging nothing; ?domain=D&descriptors=key=value,key=value, or POST what /json takes; ?format=json for JSON")
	}
	if d.Pprof {
		handle("/debug/pprof/", "profiles of this process, and the list of them", pprof.Index)
		handle("/debug/pprof/profile", "CPU profile; ?seconds=30", pprof.Profile)
		handle("/debug/pprof/trace", "execution trace; ?seconds=1", pprof.Trace)
	}
	slices.Sort(help)
	index := strings.Join(help, "\n") + "\n"
	mux.Handle("/{$}", only(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { plain(w, index) }), http.MethodGet, http.MethodHead))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there is no such page; / lists those that there are", http.StatusNotFound)
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Prometheus metrics have a port of their own: set USE_PROMETHEUS=true, and PROMETHEUS_ADDR says which", http.StatusNotFound)
	})
	return mux
}

// only lets requests through to next that have one of methods.
func only(next http.Handler, methods ...string) http.Handler {
	allow := strings.Join(methods, ", ")
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(methods, r.Method) {
			w.Header().Set("Allow", allow)
			http.Error(w, "this page takes "+allow, http.StatusMethodNotAllowed)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (d Debug) rules(w http.ResponseWriter, r *http.Request) {
	switch format := r.URL.Query().Get("format"); format {
	case "":
		stream(w, "text/plain; charset=utf-8", d.Rules)
	case "yaml":
		stream(w, "application/yaml", d.RulesYAML)
	default:
		unknownFormat(w, format, "yaml")
	}
}

func unknownFormat(w http.ResponseWriter, format, known string) {
	http.Error(w, fmt.Sprintf("format %q is not known; leave it out, or write %s", format, known), http.StatusBadRequest)
}

func (d Debug) stats(w http.ResponseWriter, r *http.Request) {
	switch format := r.URL.Query().Get("format"); format {
	case "":
		stream(w, "text/plain; charset=utf-8", func(w io.Writer) error {
			for name, value := range d.Stats {
				if _, err := fmt.Fprintf(w, "%s: %d\n", name, value); err != nil {
					return err
				}
			}
			return nil
		})
	case "json":
		stream(w, "application/json", func(w io.Writer) error {
			before := "{"
			for name, value := range d.Stats {
				text, err := json.Marshal(name)
				if err != nil {
					return err
				}
				if _, err := fmt.Fprintf(w, "%s\n  %s: %d", before, text, value); err != nil {
					return err
				}
				before = ","
			}
			_, err := io.WriteString(w, strings.TrimPrefix(before, ",")+"\n}\n")
			return err
		})
	default:
		unknownFormat(w, format, "json")
	}
}

// streamPause is how long a reader of a long answer may take for 64 KiB of it.
const streamPause = 10 * time.Second

// stream answers with what write writes, which is not held in memory.
func stream(w http.ResponseWriter, contentType string, write func(io.Writer) error) {
	w.Header().Set("Content-Type", contentType)
	to := &steady{ResponseWriter: w}
	out := bufio.NewWriterSize(to, 64<<10)
	switch err := write(out); {
	case err == nil:
		_ = out.Flush() // a caller that has gone needs no answer
	case !to.began: // else the answer ends where it is
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// steady gives each write its own deadline, in place of one for the whole answer.
type steady struct {
	http.ResponseWriter
	began bool
}

func (s *steady) Write(p []byte) (int, error) {
	s.began = true
	_ = http.NewResponseController(s.ResponseWriter).SetWriteDeadline(time.Now().Add(streamPause)) // where it has none, there is none to move
	return s.ResponseWriter.Write(p)
}

func plain(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, text) // a caller that has gone needs no answer
}
