package explain

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/admin"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/tools/check"
	"ratelimit/src/tools/client"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/debugport"
	"ratelimit/src/tools/output"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit explain`. Either rulePath or url is set.
type options struct {
	rulePath    string
	ruleOptions rules.Options
	keyFormat   string
	url         string // url is that of a service's debug port.
	port        debugport.Options
	request     client.Request
	bucket      string // bucket has the entries of a quota bucket, key=value,key=value; empty for a request.
	requestFile string // requestFile names a file that replaces request; "-" is stdin.
	asJSON      bool
}

// Command returns `ratelimit explain`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, func(cmd *cobra.Command, _ []string) error { return opt.run(cmd) })
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&opt.rulePath, "config", "", "directory or file with the rules")
	f.BoolVar(&opt.ruleOptions.MergeDomains, "merge-domain-configs", false, "with --config, allow one domain in several files")
	f.StringVar(&opt.keyFormat, "key-format", "v1", "with --config, how keys are written: v1, or v2")
	f.StringVar(&opt.url, "url", "", "the debug port of a service, http://localhost:6070")
	opt.request.AddFlags(f)
	f.StringVar(&opt.bucket, "bucket", "", "a quota bucket of the domain instead of a request, key=value,key=value")
	f.StringVar(&opt.requestFile, "request", "", "file with the request as JSON, - for stdin")
	f.BoolVar(&opt.asJSON, "json", false, "print one object")
	opt.port.AddFlags(f)
	return cmd
}

// run explains the request and prints the report.
func (opt *options) run(cmd *cobra.Command) error {
	if err := opt.check(cmd); err != nil {
		return err
	}
	var report *Report
	var err error
	switch {
	case opt.bucket != "" && opt.url != "":
		report, err = opt.askServiceForBucket(cmd.Context())
	case opt.bucket != "":
		report, err = opt.explainBucketOfFiles(cmd.Context(), cmd.ErrOrStderr())
	default:
		report, err = opt.explainRequest(cmd)
	}
	if err != nil {
		return err
	}
	if opt.asJSON {
		return output.WriteJSON(cmd.OutOrStdout(), report)
	}
	_, err = io.WriteString(cmd.OutOrStdout(), report.Text())
	return err
}

// check checks the flags.
func (opt *options) check(cmd *cobra.Command) error {
	if (opt.rulePath == "") == (opt.url == "") {
		return errors.New("name either rules with --config or a service with --url")
	}
	if opt.keyFormat != "v1" && opt.keyFormat != "v2" {
		return fmt.Errorf("--key-format %s: write v1 or v2", opt.keyFormat)
	}
	if opt.bucket == "" {
		return nil
	}
	if opt.request.Domain == "" {
		return errors.New("name the domain of the bucket with --domain")
	}
	for _, name := range []string{"descriptors", "path", "hits", "refund", "request"} {
		if cmd.Flags().Changed(name) {
			return fmt.Errorf("--bucket asks for a quota bucket, not for a request: leave out --%s", name)
		}
	}
	return nil
}

// explainRequest explains a request by rules in files, or by those of a service.
func (opt *options) explainRequest(cmd *cobra.Command) (*Report, error) {
	request, err := opt.requestJSON(cmd)
	if err != nil {
		return nil, err
	}
	if opt.url != "" {
		return opt.askService(cmd.Context(), request)
	}
	return opt.readRules(cmd.Context(), request, cmd.ErrOrStderr())
}

// requestJSON returns the request as proto3 JSON.
func (opt *options) requestJSON(cmd *cobra.Command) ([]byte, error) {
	if opt.requestFile == "" {
		msg, err := opt.request.FromFlags(cmd.Flags())
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
	if opt.requestFile == "-" {
		return io.ReadAll(cmd.InOrStdin())
	}
	return os.ReadFile(opt.requestFile)
}

// newLimiter returns a limiter with the rules in files, and without counters. It prints the problems of the files.
func (opt *options) newLimiter(problems io.Writer) (*limiter.Limiter, error) {
	loaded := check.Load([]string{opt.rulePath}, opt.ruleOptions)
	if loaded.Set == nil {
		loaded.Report(problems)
		return nil, errors.New("the rules have problems; fix them first")
	}
	empty, err := memory.New(memory.Config{MaxBytes: memory.MinBytes})
	if err != nil {
		return nil, err
	}
	l := limiter.New(limiter.Config{Backend: empty, EscapeKeys: opt.keyFormat == "v2"})
	l.UseRules(loaded.Set)
	return l, nil
}

// readRules explains a request by the rules in files.
func (opt *options) readRules(ctx context.Context, request []byte, problems io.Writer) (*Report, error) {
	l, err := opt.newLimiter(problems)
	if err != nil {
		return nil, err
	}
	req, err := rls.ParseJSON(request)
	if err != nil {
		return nil, fmt.Errorf("the request is not a RateLimitRequest: %w", err)
	}
	var answer limiter.Answer
	if err := l.DryRun(ctx, req, &answer); err != nil {
		return nil, err
	}
	return NewReport(req, &answer, false), nil
}

// explainBucketOfFiles explains a bucket by the rules in files.
func (opt *options) explainBucketOfFiles(ctx context.Context, problems io.Writer) (*Report, error) {
	entries, err := client.ParseEntries(opt.bucket)
	if err != nil {
		return nil, fmt.Errorf("--bucket %w", err)
	}
	l, err := opt.newLimiter(problems)
	if err != nil {
		return nil, err
	}
	return explainBucket(ctx, l, []byte(opt.request.Domain), entries, false)
}

// askServiceForBucket has a running service explain a bucket, and adds what its proxies have.
func (opt *options) askServiceForBucket(ctx context.Context) (*Report, error) {
	port, err := opt.port.NewClient(strings.TrimSuffix(opt.url, "/explain"))
	if err != nil {
		return nil, fmt.Errorf("--url: %w", err)
	}
	defer port.Close()
	report, query := new(Report), url.Values{"domain": {opt.request.Domain}, "bucket": {opt.bucket}}
	if err := port.Get(ctx, "/explain", query, report); err != nil {
		return nil, err
	}
	var quotas admin.Quotas
	var failed *debugport.Error
	switch err := port.Get(ctx, "/api/quotas", query, &quotas); {
	case errors.As(err, &failed) && failed.Status == http.StatusNotFound: // No proxy has the bucket.
	case err != nil:
		return nil, err
	case report.Bucket != nil && len(quotas.Buckets) > 0:
		report.Bucket.Now = &quotas.Buckets[0]
	}
	return report, nil
}

// askService has a running service explain a request.
func (opt *options) askService(ctx context.Context, request []byte) (*Report, error) {
	port, err := opt.port.NewClient(strings.TrimSuffix(opt.url, "/explain"))
	if err != nil {
		return nil, fmt.Errorf("--url: %w", err)
	}
	defer port.Close()
	if !json.Valid(request) {
		return nil, errors.New("the request is not JSON: write a RateLimitRequest as proto3 JSON")
	}
	report := new(Report)
	if err := port.Do(ctx, http.MethodPost, "/explain", nil, json.RawMessage(request), report); err != nil {
		return nil, err
	}
	return report, nil
}
