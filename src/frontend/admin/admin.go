// Package admin serves pages for operators over HTTP: health, the loaded rules, the figures and
// profiles. The caller passes in functions.
package admin

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/operator"
)

// HealthcheckHandler answers 200 and "OK" while reason returns an empty string, else 500 and the reason.
// reason must not block, because orchestrators restart a process that answers slowly.
func HealthcheckHandler(reason func() string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if why := reason(); why != "" {
			http.Error(w, why, http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, "OK")
	})
}

// LiveHandler always answers 200.
func LiveHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]bool{"live": true})
	})
}

// ReadyHandler answers 200 with the components if all are ready, else 503. components must not block.
func ReadyHandler(components func() []operator.Component) http.Handler {
	type component struct {
		Ready bool `json:"ready"`
		operator.Component
	}
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		body := struct {
			Ready      bool        `json:"ready"`
			Components []component `json:"components"`
		}{Ready: true}
		status := http.StatusOK
		for _, c := range components() {
			body.Components = append(body.Components, component{c.NotReadyReason == "", c})
			if c.NotReadyReason != "" {
				body.Ready, status = false, http.StatusServiceUnavailable
			}
		}
		writeJSON(w, status, body)
	})
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // Encode fails only if the client has gone.
}

// clusterSuffixes end the names of services and pods in a Kubernetes cluster. Nobody can register such names in the
// public DNS.
var clusterSuffixes = []string{".svc", ".cluster.local"}

// AllowHosts passes requests to next if their Host header is an IP address, localhost, a name of a cluster or one of
// names, which must be in lower case. This stops DNS rebinding: otherwise, a web page whose host name resolves to this
// address could send requests from an operator's browser.
func AllowHosts(names []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.Trim(host, "[]"))
		isOfCluster := slices.ContainsFunc(clusterSuffixes,
			func(suffix string) bool { return strings.HasSuffix(host, suffix) })
		if _, err := netip.ParseAddr(host); err != nil && host != "localhost" && !isOfCluster &&
			!slices.Contains(names, host) {
			http.Error(w, fmt.Sprintf("the Host header %q is not an IP address, localhost, a name of a cluster (*.svc, "+
				"*.cluster.local) or of this host: add it to DEBUG_ALLOWED_HOSTS", host), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// DebugPages holds the sources of the pages on the debug port.
type DebugPages struct {
	// WriteRules writes one line per rule, in a stable order.
	WriteRules func(io.Writer) error
	// WriteRulesYAML writes the rules with all their properties.
	WriteRulesYAML func(io.Writer) error
	// SortedFigures yields the names and values of all figures, sorted by name.
	SortedFigures iter.Seq2[string, int64]
	// Components returns the components for /readyz, with addresses and paths.
	Components func() []operator.Component
	// Limiter explains requests at /explain. If it is nil, there is no such page.
	Limiter *limiter.Limiter
	// Figures is the source of the operator's page and of /api. If it is nil, there are no such pages.
	Figures *operator.Figures
	// SumFigures are the sums of several replicas, which the page and /api show if asked to. It is nil if there are none.
	SumFigures *operator.SumFigures
	// ChangeCounters serves /api/counters. If it is nil, there is no such page.
	ChangeCounters ChangeCounters
	// Limits serves /api/limits. If it is nil, there is no such page.
	Limits Limits
	// Record serves /api/record. If it is nil, there is no such page.
	Record Record
	// HasToken says that the port requires a token. Without one, only clients on this host may change counters and record
	// requests.
	HasToken bool
	// MetricsAddr and MetricsPath are where Prometheus' scrapes are answered. MetricsAddr is nil if they are not.
	MetricsAddr net.Addr
	MetricsPath string
	// PprofEnabled adds the pages with Go's profiles.
	PprofEnabled bool
}

// Handler returns the handler of the debug port.
func (d DebugPages) Handler() http.Handler {
	mux := http.NewServeMux()
	var help []string
	handle := func(path, text string, h http.Handler, methods ...string) {
		mux.Handle(path, allowMethods(h, methods...))
		help = append(help, path+": "+text)
	}
	handle("/rlconfig", "the loaded rules, one per line; ?format=yaml for all their properties",
		formattedPage{d.WriteRules, d.WriteRulesYAML, "yaml", "application/yaml"})
	handle("/stats", "all counters and gauges; ?format=json for JSON",
		formattedPage{d.writeStatsText, d.writeStatsJSON, "json", "application/json"})
	handle("/readyz", "whether each component is ready, with addresses, paths and problems", ReadyHandler(d.Components))
	if d.Limiter != nil {
		handle("/explain", "which rules match a request, and why; charges nothing; "+
			"?domain=D&descriptors=key=value,key=value, or bucket=key=value,key=value for a quota bucket, or POST the body of "+
			"/json; ?format=json for JSON", explainHandler(d.Limiter), http.MethodPost)
	}
	if d.ChangeCounters != nil {
		handle("/api/counters", "counters of a descriptor, as JSON; ?domain=D&entry=key=value&entry=key=value, or POST a "+
			"change", protectChange(d.HasToken, newCountersAPI(d.ChangeCounters)), http.MethodPost)
	}
	if d.Limits != nil {
		handle("/api/limits", "limits changed at run time, as JSON; ?domain=D&history=true, format=yaml for "+
			"rules, or POST a change", protectChange(d.HasToken, &limitsAPI{d.Limits}), http.MethodPost)
	}
	if d.Record != nil {
		handle("/api/record", "live requests and their answers, as lines of JSON for `ratelimit simulate`; "+
			"?sample=10%&by=KEY&domain=D&for=1m&max_bytes=N", recordAPI{d.Record, d.HasToken})
	}
	if d.Figures != nil {
		api := figuresAPI{d.Figures, d.SumFigures}
		for _, page := range api.pages() {
			handle(page.path, page.help, page)
		}
		handle("/candidate", "which requests the candidate rules would answer differently; ?limit=20, ?format=json for "+
			"JSON, ?format=rlconfig for the candidate rules",
			candidatePage{api})
		handle("/api/events", "the same figures each second, and each sampled denial, as server-sent events",
			newEventStream(api))
		help = append(help, "/: this list; in a browser, the operator's page")
		addPageFiles(mux)
	}
	if d.PprofEnabled {
		handle("/debug/pprof/", "list of the profiles of this process", http.HandlerFunc(pprof.Index))
		handle("/debug/pprof/profile", "CPU profile; ?seconds=30", http.HandlerFunc(pprof.Profile))
		handle("/debug/pprof/trace", "execution trace; ?seconds=1", http.HandlerFunc(pprof.Trace))
	}
	slices.Sort(help)
	index := strings.Join(help, "\n") + "\n"
	var root http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, index) // WriteString fails only if the client has gone.
	})
	if d.Figures != nil {
		root = forBrowsers(pageFile(pageIndex), root)
	}
	mux.Handle("/{$}", allowMethods(root))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "there is no such page; see / for the list", http.StatusNotFound)
	})
	mux.HandleFunc("/metrics", d.redirectScrape)
	return protectFromSites(mux)
}

// redirectScrape redirects to the port that answers Prometheus' scrapes, or says how to have one.
func (d DebugPages) redirectScrape(w http.ResponseWriter, r *http.Request) {
	if d.MetricsAddr == nil {
		http.Error(w, "Prometheus metrics are off: set USE_PROMETHEUS=true to have them on a port of their own, "+
			"by default at :9090/metrics", http.StatusNotFound)
		return
	}
	host, port, _ := net.SplitHostPort(d.MetricsAddr.String()) // The address of a TCP listener has a port.
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = (&url.URL{Host: r.Host}).Hostname()
	}
	at := url.URL{Scheme: "http", Host: net.JoinHostPort(host, port), Path: d.MetricsPath}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Location", at.String())
	w.WriteHeader(http.StatusTemporaryRedirect)
	_, _ = fmt.Fprintf(w, "Prometheus metrics are at %s\n", &at) // Fprintf fails only if the client has gone.
}

// allowMethods passes requests to next if their method is GET, HEAD or one of further.
func allowMethods(next http.Handler, further ...string) http.Handler {
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

// formattedPage serves a page as plain text, or in the format that ?format= names.
type formattedPage struct {
	writeText, writeOtherFormat   func(io.Writer) error
	otherFormat, otherContentType string
}

func (p formattedPage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch format := r.URL.Query().Get("format"); format {
	case "":
		streamPage(w, "text/plain; charset=utf-8", p.writeText)
	case p.otherFormat:
		streamPage(w, p.otherContentType, p.writeOtherFormat)
	default:
		http.Error(w, fmt.Sprintf("unknown format %q; leave it out, or use %s", format, p.otherFormat), http.StatusBadRequest)
	}
}

func (d DebugPages) writeStatsText(w io.Writer) error {
	for name, value := range d.SortedFigures {
		_, _ = fmt.Fprintf(w, "%s: %d\n", name, value) // streamPage passes a bufio.Writer, which keeps the error until Flush.
	}
	return nil
}

func (d DebugPages) writeStatsJSON(w io.Writer) error {
	separator := "{"
	for name, value := range d.SortedFigures {
		text, err := json.Marshal(name)
		if err != nil {
			return err
		}
		// streamPage passes a bufio.Writer, which keeps the error until Flush.
		_, _ = fmt.Fprintf(w, "%s\n  %s: %d", separator, text, value)
		separator = ","
	}
	_, err := io.WriteString(w, strings.TrimPrefix(separator, ",")+"\n}\n")
	return err
}

// chunkWriteTimeout is how long a client may take to read 64 KiB of a page.
const chunkWriteTimeout = 10 * time.Second

// streamPage answers with the output of write. It does not hold all of the output in memory.
func streamPage(w http.ResponseWriter, contentType string, write func(io.Writer) error) {
	w.Header().Set("Content-Type", contentType)
	chunks := &chunkWriter{ResponseWriter: w}
	buffer := bufio.NewWriterSize(chunks, 64<<10)
	if err := write(buffer); err == nil {
		_ = buffer.Flush() // Flush fails only if the client has gone.
	} else if !chunks.hasWritten {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

// chunkWriter gives each write its own deadline. The server's write timeout is for a whole answer.
type chunkWriter struct {
	http.ResponseWriter
	hasWritten bool // true if a part of the answer was written, so the status is final.
}

func (c *chunkWriter) Write(p []byte) (int, error) {
	c.hasWritten = true
	deadline := time.Now().Add(chunkWriteTimeout)
	// It fails only in tests, for connections without deadlines.
	_ = http.NewResponseController(c.ResponseWriter).SetWriteDeadline(deadline)
	return c.ResponseWriter.Write(p)
}
