package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
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

// start returns a limiter over memory with testRules.
func start(tb testing.TB, cfg limiter.Config) *limiter.Limiter {
	tb.Helper()
	return limitertest.New(tb, cfg, testRules)
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// parse reads "ip=1 path=/pay,user=x": descriptors apart by blanks, entries by
// commas. A descriptor may end in ":n" for its hits and "-" for a refund.
func parse(text string) *limiter.Request {
	req := &limiter.Request{Domain: []byte("d"), Now: epoch}
	for _, field := range strings.Fields(text) {
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
		st := &a.Statuses[i]
		switch {
		case st.IsUnlimited():
			parts = append(parts, "unlimited")
		case st.BindingCharge == nil:
			parts = append(parts, "-")
		default:
			parts = append(parts, fmt.Sprintf("%s %d/%d", word[st.Over], st.BindingCharge.Verdict.Remaining,
				st.BindingCharge.Limit.Requests))
		}
	}
	return word[a.Over] + ": " + strings.Join(parts, ", ")
}

// play asks requests in turn, each of which has its answer behind it.
func play(t *testing.T, l *limiter.Limiter, ask []string) {
	t.Helper()
	var a limiter.Answer // used again and again, as front ends do
	for i := 0; i < len(ask); i += 2 {
		if err := l.Check(t.Context(), parse(ask[i]), &a); err != nil {
			t.Fatal(err)
		}
		if got := brief(&a); got != ask[i+1] {
			t.Errorf("request %d, %s:\n got %s\nwant %s", i/2+1, ask[i], got, ask[i+1])
		}
	}
}

// checks are requests in turn, each with its answer.
var checks = []struct {
	name string
	cfg  limiter.Config
	ask  []string // request, answer, request, answer ...
}{
	{"one descriptor", limiter.Config{}, []string{
		"ip=1", "ok: ok 1/2",
		"ip=1", "ok: ok 0/2",
		"ip=1", "over: over 0/2",
		"ip=2", "ok: ok 1/2",
	}},
	{"nothing matches", limiter.Config{}, []string{
		"nobody=1", "ok: -",
		"ip=1,port=2", "ok: -", // deeper than the rule
		"path=/pay,user=x,y=z", "ok: -",
	}},
	{"a banned value", limiter.Config{}, []string{"ip=10.0.0.7", "over: over 0/0"}},
	{"each descriptor has its own limit", limiter.Config{}, []string{
		"path=/pay path=/pay,user=x", "ok: ok 9/10, ok 0/1",
		"path=/pay path=/pay,user=x", "over: ok 8/10, over 0/1",
		"path=/pay,user=y", "ok: ok 0/1",
		"path=/payments", "ok: ok 9/10", // a wildcard counts each value apart
	}},
	{"the same descriptor twice counts twice", limiter.Config{}, []string{
		"ip=1 ip=1 ip=1", "over: ok 1/2, ok 0/2, over 0/2",
	}},
	{"unlimited and unmatched stop nothing", limiter.Config{}, []string{
		"staff=a ip=1 nobody=x", "ok: unlimited, ok 1/2, -",
	}},
	{"shadow mode never refuses", limiter.Config{}, []string{
		"trial=a", "ok: ok 0/1",
		"trial=a", "ok: ok 0/1",
		"trial=a ip=1", "ok: ok 0/1, ok 1/2",
	}},
	{"hits", limiter.Config{}, []string{
		"ip=1:0", "ok: ok 2/2",
		"ip=1:2", "ok: ok 0/2",
		"ip=1:0", "ok: ok 0/2",
		"ip=1:5", "over: over 0/2",
		"ip=1:0", "over: over 0/2", // refused hits count
		"ip=2:18446744073709551615", "over: over 0/2",
	}},
	{"refunds", limiter.Config{}, []string{
		"ip=1:2", "ok: ok 0/2",
		"ip=1-", "ok: ok 1/2",
		"ip=1:18446744073709551615-", "ok: ok 2/2",
		"nobody=1-", "ok: -",
		"ip=10.0.0.7-", "ok: ok 0/0",
	}},
	{"quota rules refuse together", limiter.Config{}, []string{
		"gold=a silver=a", "ok: ok 0/1, ok 1/2",
		"gold=a silver=a", "ok: over 0/1, ok 0/2",
		"gold=a silver=a", "over: over 0/1, over 0/2",
		"gold=a", "over: over 0/1", // alone it is like any other
		"gold=b ip=10.0.0.7", "over: ok 0/1, over 0/0",
	}},
	{"quota mode for all", limiter.Config{QuotaMode: true}, []string{
		"ip=10.0.0.7", "over: over 0/0",
		"ip=10.0.0.7 ip=1", "ok: over 0/0, ok 1/2",
		"ip=10.0.0.7 nobody=1", "ok: over 0/0, -",
		"ip=10.0.0.7 staff=1", "over: over 0/0, unlimited",
	}},
	{"shadow mode for all", limiter.Config{ShadowMode: true}, []string{
		"ip=10.0.0.7", "ok: over 0/0",
	}},
	{"values that share a threshold", limiter.Config{}, []string{
		"file=/f/1", "ok: ok 1/2",
		"file=/f/2", "ok: ok 0/2",
		"file=/f/3", "over: over 0/2",
	}},
	{"a rule that replaces another", limiter.Config{}, []string{
		"ip=1 premium=x ip=2 ip=10.0.0.7", "over: -, ok 8/9, -, over 0/0",
		"ip=1", "ok: ok 1/2", // nothing was charged to it
	}},
	{"all or nothing", limiter.Config{ChargeAllOrNothing: true}, []string{
		"ip=1 path=/pay,user=x", "ok: ok 1/2, ok 0/1",
		"ip=1 path=/pay,user=x", "over: ok 1/2, over 0/1",
		"ip=1 path=/pay,user=y", "ok: ok 0/2, ok 0/1",
		"ip=1", "over: over 0/2",
		"ip=1-", "ok: ok 1/2", // the refused one was not counted
		"ip=1- path=/pay,user=x", "over: ok 2/2, over 0/1",
	}},
}

func TestCheck(t *testing.T) {
	for _, tt := range checks {
		t.Run(tt.name, func(t *testing.T) {
			play(t, start(t, tt.cfg), tt.ask)
		})
	}
}

func TestRequestLimit(t *testing.T) {
	l := start(t, limiter.Config{})
	ask := func(text string, q rules.Rate) (limiter.Answer, error) {
		req := parse(text)
		for i := range req.Descriptors {
			req.Descriptors[i].HasLimit, req.Descriptors[i].Limit = true, q
		}
		var a limiter.Answer
		err := l.Check(t.Context(), req, &a)
		return a, err
	}
	for _, tt := range []struct {
		ask  string
		q    rules.Rate
		want string
	}{
		{"nobody=1", rules.Rate{Requests: 1, Unit: rules.UnitHour, UnitMultiplier: 1}, "ok: ok 0/1"},
		{"nobody=1", rules.Rate{Requests: 1, Unit: rules.UnitHour, UnitMultiplier: 1}, "over: over 0/1"},
		{"ip=1", rules.Rate{Requests: 9, Unit: rules.UnitMinute, UnitMultiplier: 1}, "ok: ok 8/9"}, // instead of the rule
		// whose counter it shares
		{"ip=1:0", rules.Rate{Requests: 2, Unit: rules.UnitMinute, UnitMultiplier: 1}, "ok: ok 1/2"},
		{"staff=1", rules.Rate{Requests: 0, Unit: rules.UnitWeek, UnitMultiplier: 1}, "over: over 0/0"},
		{
			"trial=1 trial=1 trial=1",
			rules.Rate{Requests: 2, Unit: rules.UnitYear, UnitMultiplier: 1},
			"over: ok 1/2, ok 0/2, over 0/2",
		},
		{"a=1", rules.Rate{Requests: 2, Unit: rules.UnitMinute, UnitMultiplier: 30}, "ok: ok 1/2"},
	} {
		a, err := ask(tt.ask, tt.q)
		if err != nil {
			t.Fatalf("%s: %v", tt.ask, err)
		}
		if got := brief(&a); got != tt.want {
			t.Errorf("%s with %+v:\n got %s\nwant %s", tt.ask, tt.q, got, tt.want)
		}
	}
	for _, bad := range []rules.Rate{
		{Requests: 1},
		{Requests: 1, Unit: 99, UnitMultiplier: 1},
		{Requests: 1, Unit: rules.UnitDay},
		{Requests: 1, Unit: rules.UnitYear, UnitMultiplier: 101},
		{Requests: 1, Unit: rules.UnitSecond, UnitMultiplier: math.MaxUint32},
	} {
		if _, err := ask("ip=1 nobody=2", bad); !errors.Is(err, limiter.ErrInvalidRequest) ||
			!strings.Contains(err.Error(), "descriptor 0") {
			t.Errorf("%+v: got %v", bad, err)
		}
	}
}

func TestErrors(t *testing.T) {
	l := start(t, limiter.Config{})
	small := start(t, limiter.Config{MaxDescriptors: 2})
	empty := limiter.New(limiter.Config{})
	good := parse("ip=1")
	for _, tt := range []struct {
		name string
		l    *limiter.Limiter
		req  limiter.Request
		want error
	}{
		{"no domain", l, limiter.Request{Descriptors: good.Descriptors}, limiter.ErrInvalidRequest},
		{"no descriptors", l, limiter.Request{Domain: good.Domain}, limiter.ErrInvalidRequest},
		{"too many descriptors", l, *parse(strings.Repeat("ip=1 ", limiter.MaxDescriptors+1)), limiter.ErrRequestTooLarge},
		{
			"too large is a bad request", l, *parse(strings.Repeat("ip=1 ", limiter.MaxDescriptors+1)),
			limiter.ErrInvalidRequest,
		},
		{"more than configured", small, *parse("ip=1 ip=2 ip=3"), limiter.ErrRequestTooLarge},
		{"as many as configured", small, *parse("ip=1 ip=2"), nil},
		{"no domain and no rules", empty, limiter.Request{Descriptors: good.Descriptors}, limiter.ErrInvalidRequest},
		{"no rules", empty, *good, limiter.ErrNoRules},
	} {
		if err := tt.l.Check(t.Context(), &tt.req, new(limiter.Answer)); !errors.Is(err, tt.want) {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
}

func TestUnknownDomain(t *testing.T) {
	l := start(t, limiter.Config{})
	req := parse("ip=1 ip=1 ip=1")
	req.Domain = []byte("unknown")
	req.Descriptors[0].HasLimit = true // even a limit without a unit is not looked at
	var a limiter.Answer
	if err := l.Check(t.Context(), req, &a); err != nil {
		t.Fatal(err)
	}
	if got := brief(&a); got != "ok: -, -, -" || a.Domain != nil {
		t.Errorf("got %s in %v", got, a.Domain)
	}
}

// seen keeps the batches that reach the store.
type seen struct {
	backend.Backend
	batches [][]backend.Hit
	keys    []string
	err     error
}

func (s *seen) Take(ctx context.Context, b *backend.Batch) error {
	s.batches = append(s.batches, append([]backend.Hit(nil), b.Hits...))
	for _, h := range b.Hits {
		s.keys = append(s.keys, string(h.Key))
	}
	if s.err != nil {
		for i := range b.Verdicts {
			b.Verdicts[i] = backend.Verdict{Err: s.err}
		}
		return nil
	}
	return s.Backend.Take(ctx, b)
}

func watch(t *testing.T) *seen {
	t.Helper()
	return &seen{Backend: limitertest.Store(t, memory.Config{})}
}

// The keys are envoyproxy/ratelimit's, but for the window's start.
func TestKeys(t *testing.T) {
	s := watch(t)
	l := start(t, limiter.Config{Backend: s, KeyPrefix: "p:"})
	if err := l.Check(t.Context(), parse("ip=1 nobody=2 path=/pay,user=x staff=a ip="), new(limiter.Answer)); err != nil {
		t.Fatal(err)
	}
	want := []string{"p:d_ip_1_", "p:d_path_/pay_user_x_", "p:d_ip__"}
	if len(s.batches) != 1 || strings.Join(s.keys, " ") != strings.Join(want, " ") {
		t.Errorf("%d batches with keys %q, want one with %q", len(s.batches), s.keys, want)
	}
}

// Every hit says what of its key belongs on one server, here in braces.
func TestTags(t *testing.T) {
	for escape, want := range map[bool]string{
		false: "{p:d_ip_1_2_} {p:d_path_/pay_}user_x_ {p:d_file_/f/*_} {p:d_a_1:2_}b_3_",
		true:  "{p:d_ip_1%5F2_} {p:d_path_/pay_}user_x_ {p:d_file_file:/f/*_} {p:d_a_1%3A2_}b_3_",
	} {
		s := watch(t)
		l := start(t, limiter.Config{Backend: s, KeyPrefix: "p:", EscapeKeys: escape})
		req := parse("ip=1_2 path=/pay,user=x file=/f/1 a=1,b=3")
		own := &req.Descriptors[3]
		own.Entries[0].Value = []byte("1:2")
		own.HasLimit, own.Limit = true, rules.Rate{Requests: 9, Unit: rules.UnitHour, UnitMultiplier: 5}
		if err := l.Check(t.Context(), req, new(limiter.Answer)); err != nil {
			t.Fatal(err)
		}
		var got []string
		for i, h := range s.batches[0] {
			got = append(got, "{"+s.keys[i][:h.TagLength]+"}"+s.keys[i][h.TagLength:])
		}
		if strings.Join(got, " ") != want {
			t.Errorf("escaped %t:\n got %s\nwant %s", escape, strings.Join(got, " "), want)
		}
	}
}

// What envoyproxy/ratelimit counts together: one entry whose value reads like
// two, and two entries.
func TestEscapedKeysAreApart(t *testing.T) {
	for escape, want := range map[bool]string{false: "over: ok 0/1, over 0/1", true: "ok: ok 0/1, ok 0/1"} {
		l := start(t, limiter.Config{EscapeKeys: escape})
		req, a := parse("a=x_b_y a=x,b=y"), new(limiter.Answer)
		for i := range req.Descriptors {
			req.Descriptors[i].HasLimit, req.Descriptors[i].Limit = true,
				rules.Rate{Requests: 1, Unit: rules.UnitHour, UnitMultiplier: 1}
		}
		if err := l.Check(t.Context(), req, a); err != nil {
			t.Fatal(err)
		}
		if got := brief(a); got != want {
			t.Errorf("escaped %t: got %s, want %s", escape, got, want)
		}
	}
}

func TestGroups(t *testing.T) {
	for _, allOrNothing := range []bool{false, true} {
		s := watch(t)
		l := start(t, limiter.Config{Backend: s, ChargeAllOrNothing: allOrNothing})
		if err := l.Check(t.Context(), parse("ip=1 trial=2 ip=3"), new(limiter.Answer)); err != nil {
			t.Fatal(err)
		}
		hits := s.batches[0]
		if together := hits[0].GroupID == hits[1].GroupID && hits[1].GroupID == hits[2].GroupID; together != allOrNothing ||
			hits[1].Atomic != allOrNothing {
			t.Errorf("all or nothing %t: got %+v", allOrNothing, hits)
		}
		if hits[0].NoVeto || !hits[1].NoVeto {
			t.Error("only the shadow rule has no veto")
		}
	}
}

func TestNothingToChargeSkipsTheStore(t *testing.T) {
	s := watch(t)
	l := start(t, limiter.Config{Backend: s})
	if err := l.Check(t.Context(), parse("staff=a nobody=b"), new(limiter.Answer)); err != nil || len(s.batches) != 0 {
		t.Errorf("%d batches, %v", len(s.batches), err)
	}
}

func TestStoreTrouble(t *testing.T) {
	s := watch(t)
	s.err = errors.New("connection refused")
	counted := &recorder{}
	l := start(t, limiter.Config{Backend: s, Recorders: []limiter.Recorder{counted}})
	err := l.Check(t.Context(), parse("ip=1"), new(limiter.Answer))
	if !errors.Is(err, limiter.ErrStoreFailed) || !errors.Is(err, s.err) {
		t.Errorf("got %v", err)
	}
	if counted.n != 1 {
		t.Errorf("recorded %d times, want once: failed requests count too", counted.n)
	}
}

// A caller that leaves gets no decision, and the store has not failed.
func TestCallerLeft(t *testing.T) {
	s := watch(t)
	s.err = fmt.Errorf("redis: %w", context.Canceled)
	l := start(t, limiter.Config{Backend: s})
	var a limiter.Answer
	err := l.Check(t.Context(), parse("ip=1"), &a)
	if !errors.Is(err, limiter.ErrCallerLeft) || errors.Is(err, limiter.ErrStoreFailed) {
		t.Errorf("got %v", err)
	}
	if st := &a.Statuses[0]; !st.CallerLeft || st.StoreFailed || !st.IsUndecided() {
		t.Errorf("got %+v", st)
	}
}

type recorder struct{ n int }

func (r *recorder) Record(*limiter.Request, *limiter.Answer) { r.n++ }

func TestUseSwapsTheRules(t *testing.T) {
	l := start(t, limiter.Config{})
	play(t, l, []string{"ip=1", "ok: ok 1/2"})
	l.UseRules(load(t, strings.Replace(testRules, "requests_per_unit: 2, name", "requests_per_unit: 5, name", 1)))
	play(t, l, []string{"ip=1", "ok: ok 3/5"}) // what was used before still counts
}
