package admin

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/operator/explain"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
)

// maxExplained bounds the descriptors of a request to explain: the report may take a hundred times the bytes of an
// entry.
const maxExplained = 100

// explainHandler answers /explain with the decision that the limiter would make, and charges nothing. The request is
// the query of a GET, or the body of a POST in the form of /json.
func explainHandler(l *limiter.Limiter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q, err := readQuestion(w, r)
		var report *explain.Report
		switch {
		case err != nil:
		case q.bucket != nil:
			report, err = explain.QuotaBucket(r.Context(), l, q.domain, q.bucket, true)
		default:
			if report, err = explain.Request(r.Context(), l, q.request, true); err == nil {
				report.AddResets(q.request, addressFor(r))
			}
		}
		switch {
		case err != nil:
			rls.WriteError(w, err)
		case q.asJSON:
			w.Header().Set("Content-Type", "application/json")
			_ = output.WriteJSON(w, report) // The write fails only if the caller has gone.
		default:
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = io.WriteString(w, report.Text())
		}
	})
}

// addressFor returns the address of this port as commands of the sender of r take it; empty if that is their default.
func addressFor(r *http.Request) string {
	switch {
	case r.TLS != nil:
		return "https://" + r.Host
	case r.Host == "localhost:6070":
		return ""
	}
	return r.Host
}

func badRequest(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{limiter.ErrInvalidRequest}, args...)...)
}

// question is what a caller of /explain asks for: a request, or a bucket of a domain.
type question struct {
	request *limiter.Request // nil if bucket is set.
	domain  []byte           // of bucket.
	bucket  []rules.Entry
	asJSON  bool // true if the caller wants the report as JSON.
}

func readQuestion(w http.ResponseWriter, r *http.Request) (q question, err error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return q, badRequest("the query cannot be read: %v", err)
	}
	format := query.Get("format")
	if format != "" && format != "json" {
		return q, badRequest("format %q is not known; leave it out, or write json", format)
	}
	q.asJSON = format == "json" || strings.Contains(r.Header.Get("Accept"), "application/json")
	switch r.Method { // The debug port admits only GET, HEAD and POST.
	case http.MethodGet, http.MethodHead:
		if query.Has("bucket") {
			return q, q.readBucket(query)
		}
		q.request, err = parseQuery(query)
	default:
		query.Del("format")
		if len(query) > 0 {
			return q, badRequest("with POST the body has the whole request; leave out the query, but for format")
		}
		q.request, err = rls.ReadJSON(w, r)
	}
	if err == nil && len(q.request.Descriptors) > maxExplained {
		err = badRequest("%d descriptors; ask for %d at most at a time", len(q.request.Descriptors), maxExplained)
	}
	return q, err
}

func (q *question) readBucket(query url.Values) (err error) {
	const form = "write ?domain=D&bucket=key=value,key=value"
	for name, values := range query {
		if name != "bucket" && name != "domain" && name != "format" || len(values) > 1 {
			return badRequest("%s=%q makes no sense beside bucket; %s", name, values, form)
		}
	}
	if q.domain = []byte(query.Get("domain")); len(q.domain) == 0 {
		return badRequest("the domain of the bucket is missing; %s", form)
	}
	if q.bucket, err = callertext.ParseDescriptor(query.Get("bucket")); err != nil {
		return badRequest("bucket=%w", err)
	}
	return nil
}

func parseQuery(query url.Values) (*limiter.Request, error) {
	const form = "write ?domain=D&descriptors=key=value,key=value, descriptors once for each descriptor, and hits=N, " +
		"refund=true if needed"
	d := limiter.Descriptor{HasAmount: query.Has("hits")}
	for name, values := range query {
		var err error
		switch name {
		case "descriptors":
			continue
		case "domain", "format":
		case "hits":
			d.Amount, err = strconv.ParseUint(values[0], 10, 64)
		case "refund":
			d.IsRefund, err = strconv.ParseBool(values[0])
		default:
			return nil, badRequest("%q is not known; %s", name, form)
		}
		if err != nil || len(values) > 1 {
			return nil, badRequest("%s makes no sense: %q; %s", name, values, form)
		}
	}
	req := &limiter.Request{Domain: []byte(query.Get("domain"))}
	for _, text := range query["descriptors"] {
		var err error
		if d.Entries, err = callertext.ParseDescriptor(text); err != nil {
			return nil, badRequest("descriptors=%w", err)
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req, nil
}
