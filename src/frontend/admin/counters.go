package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"ratelimit/src/operator"
)

// Bounds on a change.
const (
	maxChangeBytes   = 64 << 10
	maxUserNameBytes = 64
	// maxPatterns bounds the patterns that are searched for at a time. A search reads the names of all counters in the
	// store.
	maxPatterns = 2
	// patternTimeout bounds the time of a change by a pattern.
	patternTimeout = 30 * time.Minute
	progressPause  = 500 * time.Millisecond
)

// ChangeCounters is operator.Editor.Change.
type ChangeCounters func(ctx context.Context, c operator.CounterChange, client operator.Client,
	progress func(matching int)) (*operator.CounterReport, error)

type countersAPI struct {
	change   ChangeCounters
	patterns chan struct{} // an element for each pattern that is searched for.
}

func newCountersAPI(c ChangeCounters) *countersAPI {
	return &countersAPI{c, make(chan struct{}, maxPatterns)}
}

// ServeHTTP reports the counters of the descriptor in the query of a GET, or performs the change in the body of a POST.
// With "Accept: application/x-ndjson" the answer to a pattern has a line for each progress before the report.
func (a *countersAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	var change operator.CounterChange
	var err error
	if r.Method == http.MethodPost {
		change, err = readBody[operator.CounterChange](w, r, "change of counters")
	} else {
		change, err = parseCounterQuery(r.URL.RawQuery)
	}
	if err == nil {
		err = change.Check()
	}
	if err != nil {
		writeRefusal(w, err)
		return
	}
	timeout := operator.ChangeTimeout
	if change.IsPattern() {
		timeout = patternTimeout
		select {
		case a.patterns <- struct{}{}:
			defer func() { <-a.patterns }()
		default:
			w.Header().Set("Retry-After", "5")
			writeRefusal(w, operator.Refuse(http.StatusTooManyRequests,
				"%d patterns are being searched for; try again later", maxPatterns))
			return
		}
	}
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	out := &reportWriter{w: w, lines: change.IsPattern() &&
		strings.Contains(r.Header.Get("Accept"), "application/x-ndjson")}
	out.extendDeadline(timeout)
	report, err := a.change(ctx, change, clientOf(r), out.progress)
	out.finish(report, err)
}

// clientOf returns the client that sent r: its address and, with basic authentication, its user.
func clientOf(r *http.Request) operator.Client {
	user, _, _ := r.BasicAuth()
	return operator.Client{Addr: r.RemoteAddr, User: user[:min(len(user), maxUserNameBytes)]}
}

type reportWriter struct {
	w     http.ResponseWriter
	lines bool // true if the answer is JSON lines, the last of which is the report.
	last  time.Time
}

// extendDeadline gives the handler this time: the server's timeouts are for short answers.
func (o *reportWriter) extendDeadline(d time.Duration) {
	c := http.NewResponseController(o.w)
	// It fails only in tests, for connections without deadlines.
	_ = c.SetWriteDeadline(time.Now().Add(d + chunkWriteTimeout))
	_ = c.SetReadDeadline(time.Now().Add(d + chunkWriteTimeout))
}

func (o *reportWriter) progress(matching int) {
	if !o.lines || time.Since(o.last) < progressPause {
		return
	}
	o.last = time.Now()
	o.writeLine(map[string]int{"progress": matching})
}

func (o *reportWriter) writeLine(v any) {
	o.w.Header().Set("Content-Type", "application/x-ndjson")
	_ = json.NewEncoder(o.w).Encode(v) // Encode fails only if the client has gone.
	_ = http.NewResponseController(o.w).Flush()
}

func (o *reportWriter) finish(report *operator.CounterReport, err error) {
	switch {
	case err != nil && !o.last.IsZero(): // The status is written already.
		o.writeLine(map[string]string{"error": err.Error()})
	case err != nil:
		writeRefusal(o.w, err)
	case o.lines:
		o.writeLine(report)
	default:
		writeJSON(o.w, http.StatusOK, report)
	}
}

// writeRefusal answers with the status of err; 503 if it is not the client's.
func writeRefusal(w http.ResponseWriter, err error) {
	status := http.StatusServiceUnavailable
	if e, ok := errors.AsType[*operator.Refusal](err); ok {
		status = e.Status
	}
	http.Error(w, err.Error(), status)
}

// readBody reads the body of a POST, which is what says.
func readBody[T any](w http.ResponseWriter, r *http.Request, what string) (c T, err error) {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxChangeBytes))
	d.DisallowUnknownFields()
	if err = d.Decode(&c); err == nil {
		if _, more := d.Token(); !errors.Is(more, io.EOF) {
			err = cmp.Or(more, errors.New("more than one object"))
		}
	}
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return c, operator.Refuse(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", maxChangeBytes)
	}
	if err != nil {
		return c, operator.BadChange("the body is no %s: %v", what, err)
	}
	return c, nil
}

// parseCounterQuery returns the get that a query asks for: domain=D&entry=key=value&entry=key=value. A value that ends
// with * is the start of values.
func parseCounterQuery(query string) (c operator.CounterChange, err error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return c, operator.BadChange("the query cannot be read: %v", err)
	}
	for name := range values {
		if name != "domain" && name != "entry" {
			return c, operator.BadChange("unknown parameter %.100q; write domain=D&entry=key=value&entry=key=value", name)
		}
	}
	if len(values["domain"]) > 1 {
		return c, operator.BadChange("give domain once")
	}
	c = operator.CounterChange{Action: operator.ActionGet, Domain: values.Get("domain")}
	for _, text := range values["entry"] {
		c.Descriptor = append(c.Descriptor, operator.ParseCounterEntry(text))
	}
	return c, nil
}
