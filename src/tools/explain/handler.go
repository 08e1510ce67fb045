package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/tools/client"
)

// maxExplained descriptors are explained at a time: each entry may have a
// hundred times its own size to tell.
const maxExplained = 100

// Handler answers /explain on the debug port with what the limiter would decide, and
// charges nothing. GET has the request in the query, POST has the body of /json.
func Handler(l *limiter.Limiter) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query, err := url.ParseQuery(r.URL.RawQuery)
		format := query.Get("format")
		switch {
		case err != nil:
			http.Error(w, "the query cannot be read: "+err.Error(), http.StatusBadRequest)
			return
		case format != "" && format != "json":
			http.Error(w, fmt.Sprintf("format %q is not known; leave it out, or write json", format), http.StatusBadRequest)
			return
		}
		var req *limiter.Request
		switch r.Method { // the debug port lets no others through
		case http.MethodGet, http.MethodHead:
			if req, err = parseQuery(query); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		default:
			query.Del("format")
			if len(query) > 0 {
				http.Error(w, "with POST the body has the whole request; leave out the query, but for format", http.StatusBadRequest)
				return
			}
			if req, err = rls.ReadJSON(w, r); err != nil {
				rls.WriteError(w, err)
				return
			}
		}
		if n := len(req.Descriptors); n > maxExplained {
			http.Error(w, fmt.Sprintf("%d descriptors; ask for %d at most at a time", n, maxExplained), http.StatusBadRequest)
			return
		}
		var a limiter.Answer
		if err := l.Look(r.Context(), req, &a); err != nil {
			rls.WriteError(w, err)
			return
		}
		report := Of(req, &a, true)
		if format != "json" && !strings.Contains(r.Header.Get("Accept"), "application/json") {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = io.WriteString(w, report.Text()) // a caller that has gone needs no answer
			return
		}
		text, err := report.JSON()
		if err != nil {
			http.Error(w, "internal error", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text)
	})
}

// parseQuery reads a request from the query of a URL.
func parseQuery(query url.Values) (*limiter.Request, error) {
	const form = "write ?domain=D&descriptors=key=value,key=value, descriptors as often as there are some, and hits=N, refund=true if needed"
	r := client.Request{Domain: query.Get("domain"), Descriptors: query["descriptors"], HasHits: query.Has("hits")}
	for name, values := range query {
		var err error
		switch name {
		case "descriptors":
			continue
		case "domain", "format":
		case "hits":
			r.Hits, err = strconv.ParseUint(values[0], 10, 64)
		case "refund":
			r.Refund, err = strconv.ParseBool(values[0])
		default:
			return nil, fmt.Errorf("%q is not known; %s", name, form)
		}
		if err != nil || len(values) > 1 {
			return nil, fmt.Errorf("%s makes no sense: %q; %s", name, values, form)
		}
	}
	msg, err := r.Message()
	if err != nil {
		return nil, fmt.Errorf("descriptors=%w", err)
	}
	req := &limiter.Request{Domain: []byte(msg.GetDomain())}
	for _, d := range msg.GetDescriptors() {
		one := limiter.Descriptor{HasHits: d.HitsAddend != nil, Hits: d.GetHitsAddend().GetValue(), Refund: d.GetIsNegativeHits()}
		for _, e := range d.GetEntries() {
			one.Entries = append(one.Entries, rules.Entry{Key: []byte(e.GetKey()), Value: []byte(e.GetValue())})
		}
		req.Descriptors = append(req.Descriptors, one)
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
