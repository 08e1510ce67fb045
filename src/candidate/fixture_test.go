package candidate_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend/memory"
	"ratelimit/src/candidate"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

const testRules = `
domain: d
descriptors:
  - key: ip
    rate_limit: {unit: minute, requests_per_unit: 2, name: per-ip}
  - key: ip
    value: 10.0.0.7
    rate_limit: {unit: day, requests_per_unit: 0}
  - key: path
    value: /pay*
    rate_limit: {unit: hour, requests_per_unit: 10, unit_multiplier: 6}
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 1}
  - key: staff
    rate_limit: {unlimited: true}
  - key: trial
    rate_limit: {unit: minute, requests_per_unit: 1}
    shadow_mode: true
  - key: gold
    rate_limit: {unit: minute, requests_per_unit: 1}
    quota_mode: true
  - key: silver
    rate_limit: {unit: minute, requests_per_unit: 2}
    quota_mode: true
  - key: file
    value: /f/*
    share_threshold: true
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: premium
    rate_limit: {unit: minute, requests_per_unit: 9, replaces: [{name: per-ip}]}
`

var load = limitertest.Rules

// start returns a Judge over memory with testRules.
func start(tb testing.TB, cfg candidate.Config) *candidate.Judge {
	tb.Helper()
	if cfg.Limiter.Backend == nil {
		cfg.Limiter.Backend = limitertest.Store(tb, memory.Config{})
	}
	j := candidate.New(cfg)
	j.UseRules(load(tb, testRules))
	return j
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// parse reads "ip=1 path=/pay,user=x": descriptors apart by blanks, entries by
// commas. A descriptor may end in ":n" for its hits and "-" for a refund.
func parse(text string) *limiter.Request {
	req := &limiter.Request{Domain: []byte("d"), Now: epoch}
	for field := range strings.FieldsSeq(text) {
		var d limiter.Descriptor
		if rest, ok := strings.CutSuffix(field, "-"); ok {
			field, d.IsRefund = rest, true
		}
		if rest, n, ok := strings.Cut(field, ":"); ok {
			field, d.HasAmount = rest, true
			if _, err := fmt.Sscan(n, &d.Amount); err != nil {
				panic(err)
			}
		}
		for pair := range strings.SplitSeq(field, ",") {
			key, value, _ := strings.Cut(pair, "=")
			d.Entries = append(d.Entries, rules.Entry{Key: []byte(key), Value: []byte(value)})
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req
}

// brief is an answer in one line: "over: ok 1/2, over 0/2, -".
func brief(a *limiter.Answer) string {
	word := map[bool]string{false: "ok", true: "over"}
	var parts []string
	for i := range a.Statuses {
		if c := a.Statuses[i].BindingCharge; c == nil {
			parts = append(parts, "-")
		} else {
			parts = append(parts, fmt.Sprintf("%s %d/%d", word[a.Statuses[i].Over], c.Verdict.Remaining, c.Limit.Requests))
		}
	}
	return word[a.Over] + ": " + strings.Join(parts, ", ")
}

// addRequest adds a copy of req to m.
func addRequest(m *limiter.Many, req *limiter.Request) {
	item := m.Add()
	descriptors := append(item.Request.Descriptors, req.Descriptors...)
	item.Request = *req
	item.Request.Descriptors = descriptors
}
