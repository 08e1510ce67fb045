package explain

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/src/backend/memory"
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
	f.StringVar(&opt.requestFile, "request", "", "file with the request as JSON, - for stdin")
	f.BoolVar(&opt.asJSON, "json", false, "print one object")
	opt.port.AddFlags(f)
	return cmd
}

// run explains the request and prints the report.
func (opt *options) run(cmd *cobra.Command) error {
	request, err := opt.requestJSON(cmd)
	if err != nil {
		return err
	}
	var report *Report
	if opt.url != "" {
		report, err = opt.askService(cmd.Context(), request)
	} else {
		report, err = opt.readRules(cmd.Context(), request, cmd.ErrOrStderr())
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

// requestJSON checks the flags and returns the request as proto3 JSON.
func (opt *options) requestJSON(cmd *cobra.Command) ([]byte, error) {
	if (opt.rulePath == "") == (opt.url == "") {
		return nil, errors.New("name either rules with --config or a service with --url")
	}
	if opt.keyFormat != "v1" && opt.keyFormat != "v2" {
		return nil, fmt.Errorf("--key-format %s: write v1 or v2", opt.keyFormat)
	}
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

// readRules explains a request by the rules in files, without counters. It prints the problems of the files.
func (opt *options) readRules(ctx context.Context, request []byte, problems io.Writer) (*Report, error) {
	loaded := check.Load([]string{opt.rulePath}, opt.ruleOptions)
	if loaded.Set == nil {
		loaded.Report(problems)
		return nil, errors.New("the rules have problems; fix them first")
	}
	req, err := rls.ParseJSON(request)
	if err != nil {
		return nil, fmt.Errorf("the request is not a RateLimitRequest: %w", err)
	}
	empty, err := memory.New(memory.Config{MaxBytes: memory.MinBytes})
	if err != nil {
		return nil, err
	}
	l := limiter.New(limiter.Config{Backend: empty, EscapeKeys: opt.keyFormat == "v2"})
	l.UseRules(loaded.Set)
	var answer limiter.Answer
	if err := l.DryRun(ctx, req, &answer); err != nil {
		return nil, err
	}
	return NewReport(req, &answer, false), nil
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
