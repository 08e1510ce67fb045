package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/tools/explain"
)

// explainOptions are the flags of `ratelimit explain`.
type explainOptions struct {
	askOptions
	config    string
	rules     rules.Options
	keyFormat string
	url       string
	request   string
	asJSON    bool
	timeout   time.Duration
}

func explainCommand(std stdio) *cobra.Command {
	var opt explainOptions
	cmd := &cobra.Command{
		Use:   "explain --config DIR|FILE | --url URL",
		Short: "Tell which rules a request meets, and why",
		Long: `explain follows a request through the rules: for each entry of a descriptor,
which rules were there, which was taken and why; where that ends, the limit, the
key it is counted under and what is charged; and where nothing is met, why not.

With --config it reads rule files, as check does. With --url it asks the debug
port of a running service, which also tells how the counters stand and whether
the request would pass now. Nothing is ever charged by that, and no statistics
count it. With --config keys have no prefix.

A descriptor is written key=value,key=value; repeat --descriptors for several in
one request. --request reads a RateLimitRequest as proto3 JSON instead.

--json prints one object; docs/tools.md has its fields. Exit status: 0, or 1 when
there is nothing to explain.`,
		Example: `  ratelimit explain --config examples/ratelimit/config --domain rl --descriptors foo=bar,baz=x
  ratelimit explain --url http://localhost:6070 --domain rl --descriptors foo=bar --hits 5
  ratelimit explain --config rules/ --request request.json --json
  curl 'localhost:6070/explain?domain=rl&descriptors=foo=bar,baz=x'`,
		Args: noWords,
		RunE: func(cmd *cobra.Command, _ []string) error {
			body, err := opt.body(cmd)
			if err == nil {
				err = opt.run(cmd.Context(), std, body)
			}
			if err != nil {
				return fmt.Errorf("explain: %w", err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&opt.config, "config", "", "directory or file with the rules")
	f.BoolVar(&opt.rules.MergeDomains, "merge-domain-configs", false, "with --config, allow one domain in several files")
	f.StringVar(&opt.keyFormat, "key-format", "v1", "with --config, how keys are written: v1, or v2")
	f.StringVar(&opt.url, "url", "", "the debug port of a service, http://localhost:6070")
	f.DurationVar(&opt.timeout, "timeout", 5*time.Second, "with --url, time limit")
	opt.askOptions.flags(f)
	f.StringVar(&opt.request, "request", "", "file with the request as JSON, - for stdin")
	f.BoolVar(&opt.asJSON, "json", false, "print one object")
	return cmd
}

// body is the request as proto3 JSON.
func (opt *explainOptions) body(cmd *cobra.Command) ([]byte, error) {
	if (opt.config == "") == (opt.url == "") {
		return nil, errors.New("name either rules with --config or a service with --url")
	}
	if opt.keyFormat != "v1" && opt.keyFormat != "v2" {
		return nil, fmt.Errorf("--key-format %s: write v1 or v2", opt.keyFormat)
	}
	if opt.request == "" {
		msg, err := opt.askOptions.request(cmd.Flags().Changed("hits"))
		if err != nil {
			return nil, err
		}
		return protojson.Marshal(msg)
	}
	for _, name := range []string{"domain", "descriptors", "hits", "refund"} {
		if cmd.Flags().Changed(name) {
			return nil, fmt.Errorf("--request has the whole request: leave out --%s", name)
		}
	}
	if opt.request == "-" {
		return io.ReadAll(cmd.InOrStdin())
	}
	return os.ReadFile(opt.request)
}

func (opt *explainOptions) run(ctx context.Context, std stdio, body []byte) error {
	var report *explain.Report
	var err error
	if opt.url != "" {
		report, err = opt.askService(ctx, body)
	} else {
		report, err = opt.askFiles(ctx, std, body)
	}
	if err != nil {
		return err
	}
	text := []byte(report.Text())
	if opt.asJSON {
		if text, err = reportJSON(report); err != nil {
			return err
		}
	}
	_, err = std.out.Write(text)
	return err
}

// askFiles explains by the rules of files, which no counters belong to.
func (opt *explainOptions) askFiles(ctx context.Context, std stdio, body []byte) (*explain.Report, error) {
	rules := loadPaths([]string{opt.config}, opt.rules)
	if rules.set == nil {
		rules.report(std.err)
		return nil, errors.New("the rules are not good; mend them first")
	}
	req, err := rls.ParseJSON(body)
	if err != nil {
		return nil, fmt.Errorf("the request is not a RateLimitRequest: %w", err)
	}
	nothing, err := memory.New(memory.Config{MaxBytes: memory.MinBytes})
	if err != nil {
		return nil, err
	}
	l := limiter.New(limiter.Config{Backend: nothing, EscapeKeys: opt.keyFormat == "v2"})
	l.Use(rules.set)
	var a limiter.Answer
	if err := l.Look(ctx, req, &a); err != nil {
		return nil, err
	}
	return explain.Of(req, &a, explain.Rules), nil
}

// maxReport bounds what is read of a service's answer.
const maxReport = 256 << 20

// askService asks the debug port of a service.
func (opt *explainOptions) askService(ctx context.Context, body []byte) (*explain.Report, error) {
	at := opt.url
	if !strings.Contains(at, "://") {
		at = "http://" + at
	}
	u, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path = "/explain"
	}
	ctx, cancel := context.WithTimeout(ctx, opt.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReport))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Redacted(), err)
	}
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound, http.StatusMethodNotAllowed:
		return nil, fmt.Errorf("%s does not explain (%s); name the debug port of a service, http://localhost:6070", u.Redacted(), resp.Status)
	default:
		return nil, fmt.Errorf("%s: %s: %s", u.Redacted(), resp.Status, bytes.TrimSpace(text[:min(len(text), 1000)]))
	}
	report := new(explain.Report)
	if err := json.Unmarshal(text, report); err != nil {
		return nil, fmt.Errorf("%s does not explain; is it the debug port of a service that can?", u.Redacted())
	}
	return report, nil
}

func reportJSON(r *explain.Report) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(r)
	return b.Bytes(), err
}

// maxExplained descriptors are explained at a time: each entry may have a
// hundred times its own size to tell.
const maxExplained = 100

// explainHandler answers /explain on the debug port: a look at what the limiter
// would decide, for GET with the request as a query and for POST with what /json
// takes.
func explainHandler(l *limiter.Limiter) http.Handler {
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
		report := explain.Of(req, &a, explain.Looked)
		if format != "json" && !strings.Contains(r.Header.Get("Accept"), "application/json") {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			_, _ = io.WriteString(w, report.Text()) // a caller that has gone needs no answer
			return
		}
		text, err := reportJSON(report)
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
	opt := askOptions{domain: query.Get("domain"), descriptors: query["descriptors"]}
	for name, values := range query {
		var err error
		switch name {
		case "descriptors":
			continue
		case "domain", "format":
		case "hits":
			opt.hits, err = strconv.ParseUint(values[0], 10, 64)
		case "refund":
			opt.refund, err = strconv.ParseBool(values[0])
		default:
			return nil, fmt.Errorf("%q is not known; %s", name, form)
		}
		if err != nil || len(values) > 1 {
			return nil, fmt.Errorf("%s makes no sense: %q; %s", name, values, form)
		}
	}
	msg, err := opt.message(query.Has("hits"))
	if err != nil {
		return nil, fmt.Errorf("descriptors=%w", err)
	}
	return rls.Request(msg), nil
}
