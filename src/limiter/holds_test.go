package limiter_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

const heldRules = `
domain: d
descriptors:
  - key: user
    rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: 30s, hold_id: id}
  - key: team
    rate_limits:
      - {unit: day, requests_per_unit: 100, hold: 60s, hold_id: id}
      - {unit: minute, requests_per_unit: 50}
  - key: gone
    rate_limit: {unit: day, requests_per_unit: 10, hold: 60s, hold_id: id, unsettled: release}
  - key: both
    on_reject: none
    rate_limits:
      - {algorithm: concurrency, requests_per_unit: 1, hold: 30s, hold_id: id}
      - {unit: minute, requests_per_unit: 3}
  - key: plain
    rate_limit: {unit: minute, requests_per_unit: 5}
`

const heldList = `
domain: d
rules:
  - {match: {user: "*"}, per: [user], shadow_mode: true, rate_limit: {algorithm: concurrency, requests_per_unit: 1, hold: 30s, hold_id: id}}
  - {match: {plan: "*"}, per: [plan], rate_limit: {unit: day, requests_per_unit: 10, hold: 60s, hold_id: call}}
  - {match: {}, rate_limit: {unit: day, requests_per_unit: 10}}
`

// chargesText has the charges of a: "take 2/4, settle 0 of 9".
func chargesText(a *limiter.Answer) string {
	var parts []string
	for i := range a.Charges {
		c := &a.Charges[i]
		text := fmt.Sprintf("%v %d/%d", c.Op, c.Verdict.After, c.Algorithm.Max)
		if c.IsCanary {
			text = "canary " + text
		}
		if c.Verdict.Over {
			text += " over"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// TestHolds checks what requests do to counters. Each step has the seconds since the start, a request, and its charges
// with the count after it.
func TestHolds(t *testing.T) {
	t.Parallel()
	type step struct {
		second        int
		request, want string
	}
	for _, tt := range []struct {
		name, rules string
		cfg         limiter.Config
		steps       []step
	}{
		{"slots", heldRules, limiter.Config{}, []step{
			{0, "user=al,id=1", "charge 1/2"},
			{0, "user=al,id=1", "charge 1/2"}, // A retry.
			{5, "user=al,id=2", "charge 2/2"},
			{5, "user=al,id=3", "charge 2/2 over"},
			{5, "user=bo,id=3", "charge 1/2"}, // Another user.
			{6, "user=al,id=1-", "refund 1/2"},
			{6, "user=al,id=1-", "refund 1/2"},
			{6, "user=al,id=1,hold=release", "refund 1/2"},
			{6, "user=al,id=3:0", "charge 1/2"}, // A look.
			{6, "user=al,id=4", "charge 2/2"},   // 1 is done, and 3 was refused.
			{35, "user=al,id=5", "charge 2/2"},  // 2 has expired.
			{35, "user=al,id=5,hold=settle:7", "force 1/2"},
		}},
		{"reserve and settle beside a plain limit", heldRules, limiter.Config{}, []step{
			{0, "team=a,id=1:40", "charge 40/100, charge 40/50"},
			{1, "team=a,id=1,hold=settle:0", "force 0/100"},
			{2, "team=a,id=2:5", "charge 5/100, charge 45/50"},
			{2, "team=a,id=2,hold=settle:30", "force 30/100"},
			{2, "team=a:5", "charge 35/100, charge 50/50"}, // A plain charge.
			{2, "team=a:5-", "refund 30/100, refund 45/50"},
			{3, "team=a,id=3:5", "charge 35/100, charge 50/50"},
			{3, "team=a,id=3:5-", "refund 30/100, refund 45/50"},
			{3, "team=a,id=4:5", "charge 35/100, charge 50/50"},
			{3, "team=a,id=4,hold=release", "refund 30/100"},
			{3, "team=a,id=5,hold=settle-", "refund 30/100"},
		}},
		{"what expires", heldRules, limiter.Config{}, []step{
			{0, "team=a,id=1:40 gone=a,id=1:4", "charge 40/100, charge 40/50, charge 4/10"},
			{60, "team=a:0 gone=a:0", "charge 40/100, charge 0/50, charge 0/10"},
			{61, "team=a,id=1,hold=settle:45 gone=a,id=1,hold=settle:5", "force 45/100, force 5/10"},
		}},
		{"all or none", heldRules, limiter.Config{}, []step{
			{0, "both=x,id=1", "charge 1/1, charge 1/3"},
			{0, "both=x,id=2", "charge 1/1 over, charge 1/3"},
			{0, "both=x,id=1,hold=release", "refund 0/1"},
			{0, "both=x,id=2", "charge 1/1, charge 2/3"},
		}},
		{"all or none of a request", heldRules, limiter.Config{ChargeAllOrNothing: true}, []step{
			{0, "user=al,id=1 plain=x:6", "charge 0/2, charge 0/5 over"},
			{0, "user=al,id=1 plain=x:2", "charge 1/2, charge 2/5"},
			{0, "user=al,id=1,hold=release plain=x:6", "refund 0/2, charge 2/5 over"},
		}},
		{"canaries", heldList, limiter.Config{}, []step{
			{0, "user=al", "charge 1/10"}, // The canary needs an id.
			{0, "user=al,id=1", "canary charge 1/1, charge 2/10"},
			{0, "user=al,id=2", "canary charge 1/1 over, charge 3/10"},
			{0, "user=al,id=1,hold=release", "canary refund 0/1, charge 4/10"},
			{0, "user=al,plan=p,call=7:4", "charge 4/10"},
			{0, "user=al,plan=p,call=7,id=1,hold=settle:9", "canary force 0/1, force 9/10"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := start(t, tt.cfg)
			l.UseRules(load(t, tt.rules))
			var a limiter.Answer
			for i, s := range tt.steps {
				req := parse(s.request)
				req.Now = epoch.Add(time.Duration(s.second) * time.Second)
				if err := l.Check(t.Context(), req, &a); err != nil {
					t.Fatal(err)
				}
				if got := chargesText(&a); got != s.want {
					t.Errorf("step %d, %s:\n got %s\nwant %s", i+1, s.request, got, s.want)
				}
			}
		})
	}
}

// TestInvalidHolds checks the errors of requests, and that the other requests of a Many are decided.
func TestInvalidHolds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ rules, request, want string }{
		{heldRules, "user=al", "bad request: descriptor 0: rule d.user: the entry id, which names the hold, is missing or " +
			"empty: send id=<an id of the call>"},
		{heldRules, "plain=x both=x", "bad request: descriptor 1: rule d.both: the entry id, which names the hold, is " +
			"missing or empty: send id=<an id of the call>"},
		{
			heldList, "plan=p,call=7,hold=keep",
			"bad request: descriptor 0: rule d.plan_*: hold=keep is unknown: send hold=settle or hold=release, or no such " +
				"entry to take a hold",
		},
	} {
		l := start(t, limiter.Config{})
		l.UseRules(load(t, tt.rules))
		many := limiter.Many{Now: epoch}
		valid := "plain=x"
		for _, text := range []string{valid, tt.request, valid} {
			many.Add().Request = *parse(text)
		}
		l.CheckMany(t.Context(), &many)
		items := many.Items()
		if err := items[1].Err; !errors.Is(err, limiter.ErrInvalidRequest) || err.Error() != tt.want {
			t.Errorf("%s:\n got %v\nwant %s", tt.request, err, tt.want)
		}
		if got := chargesText(&items[2].Answer); items[0].Err != nil || items[2].Err != nil ||
			!strings.HasPrefix(got, "charge 2/") {
			t.Errorf("beside %s: errors %v and %v, charges %s", tt.request, items[0].Err, items[2].Err, got)
		}
	}
}

// TestDryRunOfHolds checks that a dry run says what a request would do, and changes nothing.
func TestDryRunOfHolds(t *testing.T) {
	t.Parallel()
	l := start(t, limiter.Config{})
	l.UseRules(load(t, heldRules))
	var a limiter.Answer
	for _, tt := range []struct{ request, dryRun, check string }{
		{"user=al,id=1", "ok: ok 2/2", "ok: ok 1/2"},
		{"user=al,id=1", "ok: ok 1/2", "ok: ok 1/2"},
		{"user=al,id=2 user=al,id=2 user=al,id=3", "over: ok 1/2, ok 1/2, over 1/2", "over: ok 0/2, ok 0/2, over 0/2"},
		{"user=al,id=4", "over: over 0/2", "over: over 0/2"},
		{"user=al,id=2,hold=release user=al,id=9-", "ok: ok 0/2, ok 0/2", "ok: ok 1/2, ok 1/2"},
		{"team=a,id=1:9", "ok: ok 50/50", "ok: ok 41/50"},
		{"team=a,id=1,hold=settle:200", "ok: ok 91/100", "ok: ok 0/100"},
		{"team=a", "over: over 0/100", "over: over 0/100"},
	} {
		for range 2 {
			if err := l.DryRun(t.Context(), parse(tt.request), &a); err != nil || brief(&a) != tt.dryRun {
				t.Errorf("dry run of %s: got %s %v, want %s", tt.request, brief(&a), err, tt.dryRun)
			}
		}
		if err := l.Check(t.Context(), parse(tt.request), &a); err != nil || brief(&a) != tt.check {
			t.Errorf("%s: got %s %v, want %s", tt.request, brief(&a), err, tt.check)
		}
	}
}

// TestRequestsThatIgnoreHolds checks requests that look at counters: they need no hold.
func TestRequestsThatIgnoreHolds(t *testing.T) {
	t.Parallel()
	l := start(t, limiter.Config{})
	l.UseRules(load(t, heldRules))
	var a limiter.Answer
	if err := l.Check(t.Context(), parse("user=al,id=1 user=al,id=2"), &a); err != nil {
		t.Fatal(err)
	}
	for _, request := range []string{"user=al", "user=al,id=1", "user=al,id=7,hold=settle"} {
		req := parse(request)
		req.IgnoresHolds = true
		if err := l.DryRun(t.Context(), req, &a); err != nil || brief(&a) != "over: over 0/2" {
			t.Errorf("dry run of %s: %s %v", request, brief(&a), err)
		}
		batch := a.OwnBatch(req)
		if err := l.Prepare(t.Context(), l.Rules(), req, &a, batch); err != nil || len(batch.Hits) != 1 ||
			batch.Hits[0].HoldID != (algorithm.HoldID{}) {
			t.Errorf("hits of %s: %+v %v", request, batch.Hits, err)
		}
	}
}

// TestTimesOfHolds checks that times until a hold expires are whole microseconds, and whole seconds only beside fixed
// windows.
func TestTimesOfHolds(t *testing.T) {
	t.Parallel()
	l := start(t, limiter.Config{})
	l.UseRules(load(t, heldRules))
	var a limiter.Answer
	for _, tt := range []struct {
		after        time.Duration
		request      string
		retry, reset time.Duration
	}{
		{0, "user=al,id=1", 0, 30 * time.Second},
		{0, "user=al,id=2", 0, 30 * time.Second},
		{1500500 * time.Microsecond, "user=al,id=3", 28499500 * time.Microsecond, 28499500 * time.Microsecond},
		{1500500 * time.Microsecond, "user=al,id=3:3", algorithm.Never, 28499500 * time.Microsecond},
		{1500500 * time.Microsecond, "gone=a,id=1:10", 0, 24*time.Hour - time.Second},
		{2500500 * time.Microsecond, "gone=a,id=2", 59 * time.Second, 59 * time.Second},
	} {
		req := parse(tt.request)
		req.Now = epoch.Add(tt.after)
		if err := l.Check(t.Context(), req, &a); err != nil {
			t.Fatal(err)
		}
		if a.RetryAfter != tt.retry || a.Statuses[0].ResetAfter != tt.reset {
			t.Errorf("%s: retry after %v, reset after %v; want %v, %v", tt.request, a.RetryAfter, a.Statuses[0].ResetAfter,
				tt.retry, tt.reset)
		}
	}
}
