package explain

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/tools/client"
	"ratelimit/src/tools/output"
)

// maxDescriptors bounds the descriptors of a request to explain: the report may take a hundred times the bytes of an entry.
const maxDescriptors = 100

// Handler answers /explain on the debug port with the decision that the limiter would make, and charges nothing. The request is the
// query of a GET, or the body of a POST in the form of /json.
func Handler(l *limiter.Limiter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, asJSON, err := readRequest(w, r)
		var answer limiter.Answer
		if err == nil {
			err = l.DryRun(r.Context(), req, &answer)
		}
		if err != nil {
			rls.WriteError(w, err)
			return
		}
		report := NewReport(req, &answer, true)
		if asJSON {
			w.Header().Set("Content-Type", "application/json")
			_ = output.WriteJSON(w, report) // The write fails only if the caller has gone.
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, report.Text())
	})
}

func badRequest(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{limiter.ErrInvalidRequest}, args...)...)
}

// readRequest returns the request to explain. asJSON reports whether the caller wants the report as JSON.
func readRequest(w http.ResponseWriter, r *http.Request) (req *limiter.Request, asJSON bool, err error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, false, badRequest("the query cannot be read: %v", err)
	}
	format := query.Get("format")
	if format != "" && format != "json" {
		return nil, false, badRequest("format %q is not known; leave it out, or write json", format)
	}
	asJSON = format == "json" || strings.Contains(r.Header.Get("Accept"), "application/json")
	switch r.Method { // The debug port admits only GET, HEAD and POST.
	case http.MethodGet, http.MethodHead:
		req, err = parseQuery(query)
	default:
		query.Del("format")
		if len(query) > 0 {
			return nil, false, badRequest("with POST the body has the whole request; leave out the query, but for format")
		}
		req, err = rls.ReadJSON(w, r)
	}
	if err == nil && len(req.Descriptors) > maxDescriptors {
		err = badRequest("%d descriptors; ask for %d at most at a time", len(req.Descriptors), maxDescriptors)
	}
	return req, asJSON, err
}

func parseQuery(query url.Values) (*limiter.Request, error) {
	const form = "write ?domain=D&descriptors=key=value,key=value, descriptors once for each descriptor, and hits=N, refund=true if needed"
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
		if d.Entries, err = client.ParseEntries(text); err != nil {
			return nil, badRequest("descriptors=%w", err)
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req, nil
}
