// Package explain is the command that tells which rules a request matches, and why.
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

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/src/backend/memory"
	"ratelimit/src/frontend/rls"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/operator/debugport"
	"ratelimit/src/operator/explain"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/tools/check"
	"ratelimit/src/tools/client"
	"ratelimit/src/tools/command"
	"ratelimit/src/tools/reach"
)

//go:embed help.txt
var help string

// options are the flags of `ratelimit explain`.
type options struct {
	rulePath    string // empty to ask the service.
	ruleOptions compile.Options
	escapeKeys  bool
	service     reach.Service
	request     client.Request
	bucket      string // the entries of a quota bucket, key=value,key=value; empty for a request.
	requestFile string // names a file that replaces request; "-" is stdin.
	asJSON      bool

	requestJSON []byte        // set by check, from request.
	entries     []rules.Entry // set by check: those of bucket.
}

// Command returns `ratelimit explain`.
func Command() *cobra.Command {
	var opt options
	cmd := command.New(help, opt.check, func(cmd *cobra.Command, _ []string) error { return opt.run(cmd) })
	f := cmd.Flags()
	f.StringVar(&opt.rulePath, "config", "", "directory or file with the rules")
	f.BoolVar(&opt.ruleOptions.MergeDomains, "merge-domain-configs", false,
		"with --config, allow one domain in several files")
	command.KeyFormat(cmd, &opt.escapeKeys, "with --config, how keys are written: v1, or v2")
	opt.request.AddFlags(f)
	f.StringVar(&opt.bucket, "bucket", "", "a quota bucket of the domain instead of a request, key=value,key=value")
	f.StringVar(&opt.requestFile, "request", "", "file with the request as JSON, - for stdin")
	f.BoolVar(&opt.asJSON, "json", false, "print one object")
	opt.service.AddAnyReplicaFlags(f)
	return cmd
}

// check checks the arguments and flags, and parses what they ask for.
func (opt *options) check(cmd *cobra.Command, args []string) (err error) {
	f := cmd.Flags()
	if opt.rulePath != "" && f.Changed("address") {
		return errors.New("name either rules with --config or a service with --address")
	}
	if err := command.NoArguments(cmd, args); err != nil {
		return err
	}
	leaveOut := func(why string, names ...string) error {
		for _, name := range names {
			if f.Changed(name) {
				return fmt.Errorf("%s: leave out --%s", why, name)
			}
		}
		return nil
	}
	switch {
	case opt.bucket != "" && opt.request.Domain == "":
		return errors.New("name the domain of the bucket with --domain")
	case opt.bucket != "":
		if opt.entries, err = callertext.ParseDescriptor(opt.bucket); err != nil {
			return fmt.Errorf("--bucket %w", err)
		}
		return leaveOut("--bucket asks for a quota bucket, not for a request", "descriptors", "path", "hits", "refund",
			"request")
	case opt.requestFile != "":
		return leaveOut("--request has the whole request", "domain", "descriptors", "hits", "refund")
	}
	msg, err := opt.request.FromFlags(f)
	if err != nil {
		return err
	}
	opt.requestJSON, err = protojson.Marshal(msg)
	return err
}

func (opt *options) run(cmd *cobra.Command) error {
	report, err := opt.explain(cmd)
	switch {
	case err != nil:
		return err
	case opt.asJSON:
		return output.WriteJSON(cmd.OutOrStdout(), report)
	}
	_, err = io.WriteString(cmd.OutOrStdout(), report.Text())
	return err
}

// explain explains the request or the bucket by rules in files, or by those of a service.
func (opt *options) explain(cmd *cobra.Command) (report *explain.Report, err error) {
	request := opt.requestJSON
	switch opt.requestFile {
	case "":
	case "-":
		request, err = io.ReadAll(cmd.InOrStdin())
	default:
		request, err = os.ReadFile(opt.requestFile)
	}
	if err != nil {
		return nil, err
	}
	if opt.rulePath != "" {
		l, err := opt.newLimiter(cmd.ErrOrStderr())
		switch {
		case err != nil:
			return nil, err
		case opt.bucket != "":
			return explain.QuotaBucket(cmd.Context(), l, []byte(opt.request.Domain), opt.entries, false)
		}
		return explainRequest(cmd.Context(), l, request)
	}
	report = new(explain.Report)
	return report, opt.service.AskAny(cmd, func(ctx context.Context, c *debugport.Client, _ int) error {
		switch {
		case opt.bucket != "":
			return opt.askForBucket(ctx, c, report)
		case !json.Valid(request):
			return errors.New("the request is not JSON: write a RateLimitRequest as proto3 JSON")
		}
		return c.Do(ctx, http.MethodPost, "/explain", nil, json.RawMessage(request), report)
	})
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
	l := limiter.New(limiter.Config{Backend: empty, EscapeKeys: opt.escapeKeys})
	l.UseRules(loaded.Set)
	return l, nil
}

func explainRequest(ctx context.Context, l *limiter.Limiter, request []byte) (*explain.Report, error) {
	req, err := rls.ParseJSON(request)
	if err != nil {
		return nil, fmt.Errorf("the request is not a RateLimitRequest: %w", err)
	}
	return explain.Request(ctx, l, req, false)
}

// askForBucket has a running service explain a bucket, and adds what its proxies have.
func (opt *options) askForBucket(ctx context.Context, c *debugport.Client, report *explain.Report) error {
	query := url.Values{"domain": {opt.request.Domain}, "bucket": {opt.bucket}}
	if err := c.Get(ctx, "/explain", query, report); err != nil {
		return err
	}
	var quotas operator.Quotas
	var failed *debugport.Error
	switch err := c.Get(ctx, "/api/quotas", query, &quotas); {
	case errors.As(err, &failed) && failed.Status == http.StatusNotFound: // No proxy has the bucket.
	case err != nil:
		return err
	case report.Bucket != nil && len(quotas.Buckets) > 0:
		report.Bucket.Now = &quotas.Buckets[0]
	}
	return nil
}
