package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	"ratelimit/src/rules"
	"ratelimit/src/tools/check"
	"ratelimit/src/tools/client"
	"ratelimit/src/tools/explain"
)

// explainOptions are the flags of `ratelimit explain`.
type explainOptions struct {
	ask       client.Request // the request, unless request names a file
	config    string
	rules     rules.Options
	keyFormat string
	url       string // of a service's debug port; empty: config has the rules
	request   string // file with the request, - for stdin; empty: flags have it
	asJSON    bool
	timeout   time.Duration
}

func explainCommand(std stdio) *cobra.Command {
	var opt explainOptions
	cmd := newCommand("explain", func(cmd *cobra.Command, _ []string) error {
		body, err := opt.body(cmd)
		if err != nil {
			return err
		}
		return opt.run(cmd.Context(), std, body)
	})
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&opt.config, "config", "", "directory or file with the rules")
	f.BoolVar(&opt.rules.MergeDomains, "merge-domain-configs", false, "with --config, allow one domain in several files")
	f.StringVar(&opt.keyFormat, "key-format", "v1", "with --config, how keys are written: v1, or v2")
	f.StringVar(&opt.url, "url", "", "the debug port of a service, http://localhost:6070")
	f.DurationVar(&opt.timeout, "timeout", 5*time.Second, "with --url, time limit")
	requestFlags(f, &opt.ask)
	f.StringVar(&opt.request, "request", "", "file with the request as JSON, - for stdin")
	f.BoolVar(&opt.asJSON, "json", false, "print one object")
	return cmd
}

// body checks the flags and returns the request as proto3 JSON.
func (opt *explainOptions) body(cmd *cobra.Command) ([]byte, error) {
	if (opt.config == "") == (opt.url == "") {
		return nil, errors.New("name either rules with --config or a service with --url")
	}
	if opt.keyFormat != "v1" && opt.keyFormat != "v2" {
		return nil, fmt.Errorf("--key-format %s: write v1 or v2", opt.keyFormat)
	}
	if opt.request == "" {
		opt.ask.HasHits = cmd.Flags().Changed("hits")
		msg, err := opt.ask.CheckedMessage()
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
		report, err = explain.Service(ctx, opt.url, body, opt.timeout)
	} else {
		report, err = opt.askFiles(ctx, std, body)
	}
	if err != nil {
		return err
	}
	text := []byte(report.Text())
	if opt.asJSON {
		if text, err = report.JSON(); err != nil {
			return err
		}
	}
	_, err = std.out.Write(text)
	return err
}

// askFiles explains with the rules of files. All counters are 0.
func (opt *explainOptions) askFiles(ctx context.Context, std stdio, body []byte) (*explain.Report, error) {
	rules := check.Load([]string{opt.config}, opt.rules)
	if rules.Set == nil {
		rules.Report(std.err)
		return nil, errors.New("the rules have problems; fix them first")
	}
	return explain.Files(ctx, rules.Set, body, opt.keyFormat == "v2")
}
