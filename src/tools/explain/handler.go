package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/tools/client"
)

// maxExplained descriptors are explained at a time: each entry may have a
// hundred times its own size to tell.
const maxExplained = 100

// Handler answers /explain on the debug port with what the limiter would decide, and
// charges nothing. GET has the request in the query, POST has the body of /json.
func Handler(l *limiter.Limiter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		req, asJSON, err := readRequest(w, r)
		var a limiter.Answer
		if err == nil {
			err = l.Look(r.Context(), req, &a)
		}
		if err != nil {
			rls.WriteError(w, err)
			return
		}
		report := Of(req, &a, true)
		kind, text := "text/plain; charset=utf-8", []byte(report.Text())
		if asJSON {
			kind = "application/json"
			if text, err = report.JSON(); err != nil {
				rls.WriteError(w, err)
				return
			}
		}
		w.Header().Set("Content-Type", kind)
		_, _ = w.Write(text) // a caller that has gone needs no answer
	})
}

func badRequest(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{limiter.ErrRequest}, args...)...)
}

// readRequest returns the request to explain, and whether the report is wanted as JSON.
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
	switch r.Method { // the debug port lets no others through
	case http.MethodGet, http.MethodHead:
		req, err = parseQuery(query)
	default:
		query.Del("format")
		if len(query) > 0 {
			return nil, false, badRequest("with POST the body has the whole request; leave out the query, but for format")
		}
		req, err = rls.ReadJSON(w, r)
	}
	if err == nil && len(req.Descriptors) > maxExplained {
		err = badRequest("%d descriptors; ask for %d at most at a time", len(req.Descriptors), maxExplained)
	}
	return req, asJSON, err
}

// parseQuery reads a request from the query of a URL.
func parseQuery(query url.Values) (*limiter.Request, error) {
	const form = "write ?domain=D&descriptors=key=value,key=value, descriptors once for each descriptor, and hits=N, refund=true if needed"
	d := limiter.Descriptor{HasHits: query.Has("hits")}
	for name, values := range query {
		var err error
		switch name {
		case "descriptors":
			continue
		case "domain", "format":
		case "hits":
			d.Hits, err = strconv.ParseUint(values[0], 10, 64)
		case "refund":
			d.Refund, err = strconv.ParseBool(values[0])
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

// JSON returns the report as an indented object.
func (r *Report) JSON() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(r)
	return b.Bytes(), err
}
