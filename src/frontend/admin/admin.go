// Package admin answers operators over HTTP: health, the loaded rules, the figures and
// profiles. It imports no other part of the service; the caller passes in functions.
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

// Healthcheck answers 200 "OK" while reason returns "", else 500 and the reason. reason
// must not block: orchestrators restart a process that answers slowly.
func Healthcheck(reason func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if why := reason(); why != "" {
			http.Error(w, why, http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "OK")
	})
}

// Component is the state of one part of the service.
type Component struct {
	Name string `json:"name"`
	// Why says why it is not ready; empty if it is.
	Why string `json:"why,omitempty"`
	// Note is further information, such as the number of domains.
	Note string `json:"note,omitempty"`
}

// Live always answers 200.
func Live() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]bool{"live": true})
	})
}

// Ready answers with the components: 200 if all are ready, else 503. components must not
// block.
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
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}

// Token passes requests to next that send token as a bearer token or as the password of
// basic authentication, which browsers support. An empty token passes all requests.
func Token(token string, next http.Handler) http.Handler {
	if token == "" {
		return next
	}
	want := sha256.Sum256([]byte(token)) // hashes have one length, so the comparison takes the same time
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		shown, isBearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !isBearer {
			_, shown, _ = r.BasicAuth()
		}
		if got := sha256.Sum256([]byte(shown)); subtle.ConstantTimeCompare(got[:], want[:]) == 0 {
			w.Header().Set("WWW-Authenticate", `Basic realm="ratelimit", charset="UTF-8"`)
			http.Error(w, "send DEBUG_TOKEN: Authorization: Bearer <token>", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Hosts passes requests to next whose Host header is an IP address, localhost or one of
// names, which are in lower case. This stops DNS rebinding: web pages whose host name
// resolves to this address could otherwise send requests from an operator's browser.
func Hosts(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.Trim(host, "[]"))
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" && !slices.Contains(names, host) {
			http.Error(w, fmt.Sprintf("the Host header %q is not an IP address, not localhost and not in DEBUG_ALLOWED_HOSTS", host), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Debug is the content of the debug port.
type Debug struct {
	// Rules writes one line per rule, in a stable order.
	Rules func(io.Writer) error
	// RulesYAML writes the rules with all their properties.
	RulesYAML func(io.Writer) error
	// Stats yields the names and values of all figures, sorted by name.
	Stats iter.Seq2[string, int64]
	// Ready returns the components for /readyz, with addresses and paths.
	Ready func() []Component
	// Explain serves /explain; nil: there is no such page.
	Explain http.Handler
	// Pprof enables Go's profiles.
	Pprof bool
}

// Handler serves the debug port.
func (d Debug) Handler() http.Handler {
	mux := http.NewServeMux()
	var help []string
	handle := func(path, text string, h http.Handler, methods ...string) {
		mux.Handle(path, only(h, methods...))
		help = append(help, path+": "+text)
	}
	handle("/rlconfig", "the loaded rules, one per line; ?format=yaml for all their properties", page{d.Rules, d.RulesYAML, "yaml", "application/yaml"})
	handle("/stats", "all counters and gauges; ?format=json for JSON", page{d.statsText, d.statsJSON, "json", "application/json"})
	handle("/readyz", "whether each component is ready, with addresses, paths and problems", Ready(d.Ready))
	if d.Explain != nil {
		handle("/explain", "which rules match a request, and why; charges nothing; ?domain=D&descriptors=key=value,key=value, or POST the body of /json; ?format=json for JSON", d.Explain, http.MethodPost)
	}
	if d.Pprof {
		handle("/debug/pprof/", "list of the profiles of this process", http.HandlerFunc(pprof.Index))
		handle("/debug/pprof/profile", "CPU profile; ?seconds=30", http.HandlerFunc(pprof.Profile))
		handle("/debug/pprof/trace", "execution trace; ?seconds=1", http.HandlerFunc(pprof.Trace))
	}
	slices.Sort(help)
	index := strings.Join(help, "\n") + "\n"
	mux.Handle("/{$}", only(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, index) // the client has gone
	})))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there is no such page; see / for the list", http.StatusNotFound)
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "Prometheus metrics have their own port: set USE_PROMETHEUS=true and PROMETHEUS_ADDR", http.StatusNotFound)
	})
	return mux
}

// only passes GET, HEAD and further methods to next.
func only(next http.Handler, further ...string) http.Handler {
	methods := append([]string{http.MethodGet, http.MethodHead}, further...)
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

// page is a page in plain text, and in one other format with ?format=.
type page struct {
	text, other         func(io.Writer) error
	format, contentType string // of other
}

// ServeHTTP streams the page in the requested format.
func (p page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch format := r.URL.Query().Get("format"); format {
	case "":
		stream(w, "text/plain; charset=utf-8", p.text)
	case p.format:
		stream(w, p.contentType, p.other)
	default:
		http.Error(w, fmt.Sprintf("unknown format %q; leave it out, or use %s", format, p.format), http.StatusBadRequest)
	}
}

func (d Debug) statsText(w io.Writer) error {
	for name, value := range d.Stats {
		_, _ = fmt.Fprintf(w, "%s: %d\n", name, value) // the buffer of stream keeps the error
	}
	return nil
}

func (d Debug) statsJSON(w io.Writer) error {
	separator := "{"
	for name, value := range d.Stats {
		text, err := json.Marshal(name)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(w, "%s\n  %s: %d", separator, text, value) // the buffer of stream keeps the error
		separator = ","
	}
	_, err := io.WriteString(w, strings.TrimPrefix(separator, ",")+"\n}\n")
	return err
}

// streamPause is how long a client may take to read 64 KiB of a long answer.
const streamPause = 10 * time.Second

// stream answers with the output of write, without holding all of it in memory.
func stream(w http.ResponseWriter, contentType string, write func(io.Writer) error) {
	w.Header().Set("Content-Type", contentType)
	to := &steady{ResponseWriter: w}
	out := bufio.NewWriterSize(to, 64<<10)
	switch err := write(out); {
	case err == nil:
		_ = out.Flush() // the client has gone
	case !to.started: // else the answer ends here
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// steady gives each write its own deadline, instead of one for the whole answer.
type steady struct {
	http.ResponseWriter
	started bool
}

func (s *steady) Write(p []byte) (int, error) {
	s.started = true
	_ = http.NewResponseController(s.ResponseWriter).SetWriteDeadline(time.Now().Add(streamPause)) // a connection without deadlines needs none
	return s.ResponseWriter.Write(p)
}
