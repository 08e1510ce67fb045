package metrics

import (
	"slices"
	"testing"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

// TestLeaseMisses checks that decisions which needed the store are counted by rule, and nothing else.
func TestLeaseMisses(t *testing.T) {
	t.Parallel()
	set := load(t, testRules)
	r := New(Config{NearRatio: 1})
	r.UseRules(set)
	for i := range 5 {
		a := answer(set, i%2, 0, 1)
		a.Statuses[0].Charges[0].Verdict.LeaseMissed = i%2 == 0
		r.Record(&limiter.Request{Domain: []byte("d"), Descriptors: ask.Descriptors[:1]}, a)
	}
	if got := native(r, "ratelimit_lease_misses_total"); !slices.Equal(got, []string{"d/ip=3"}) {
		t.Errorf("got %q", got)
	}
}

// TestHoldFigures checks the figures of the holds of a rule, and that only rules with holds have them.
func TestHoldFigures(t *testing.T) {
	t.Parallel()
	set := load(t, "domain: d\ndescriptors:\n- {key: user, rate_limit: {unit: day, requests_per_unit: 4, hold: 30s, "+
		"hold_id: id}}\n"+
		"- {key: ip, rate_limit: {unit: minute, requests_per_unit: 9}}\n")
	r := New(Config{NearRatio: 1})
	r.UseRules(set)
	record := func(op algorithm.Op, v algorithm.Outcome) {
		a := answer(set, 0, 0, 1)
		c := &a.Statuses[0].Charges[0]
		c.Op, c.Verdict.Outcome, c.RequestedAmount = op, v, 3
		r.Record(&limiter.Request{Domain: []byte("d"), Descriptors: ask.Descriptors[:1]}, a)
	}
	figures := func() (list []string) {
		for _, name := range []string{
			"ratelimit_decisions_total", "ratelimit_holds_opened_total",
			"ratelimit_holds_closed_total", "ratelimit_holds_expired_total", "ratelimit_hold_charged_units_total",
			"ratelimit_hold_excess_units_total",
		} {
			for _, f := range native(r, name) {
				list = append(list, name[len("ratelimit_"):]+" "+f)
			}
		}
		return list
	}
	want := []string{
		"holds_opened_total d/user=0", "holds_closed_total d/user=0", "holds_expired_total d/user=0",
		"hold_charged_units_total d/user=0", "hold_excess_units_total d/user=0",
	}
	if got := figures(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	record(algorithm.Charge, algorithm.Outcome{Charged: true, After: 1, HoldOpened: true})
	record(algorithm.Charge, algorithm.Outcome{Charged: true, Before: 1, After: 1}) // Without a hold.
	// A repeated request is within the limit.
	record(algorithm.Charge, algorithm.Outcome{Before: 1, After: 1})
	record(algorithm.Charge, algorithm.Outcome{Charged: true, Before: 1, After: 2, HoldOpened: true})
	record(algorithm.Charge, algorithm.Outcome{
		Charged: true, After: 1, HoldOpened: true, HoldsExpired: 1,
		ExpiredUnits: 5,
	})
	record(algorithm.Force, algorithm.Outcome{Charged: true, Before: 1, HoldClosed: true})
	record(algorithm.Force, algorithm.Outcome{Charged: true, Before: 1, HoldExcess: 3}) // The hold has expired.
	record(algorithm.Refund, algorithm.Outcome{})
	want = []string{
		"decisions_total d/user refunded=1", "decisions_total d/user settled=2", "decisions_total d/user within=5",
		"holds_opened_total d/user=3",
		"holds_closed_total d/user=1", "holds_expired_total d/user=1", "hold_charged_units_total d/user=14",
		"hold_excess_units_total d/user=3",
	}
	if got := figures(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	holds := r.Holds()
	wantHolds := Holds{Open: 1, Expired: 1, Charged: 14}
	if h := holds[RuleName{"d", "d.user"}]; len(holds) != 1 || h == nil || *h != wantHolds {
		t.Errorf("%d rules have holds, that of users %+v", len(holds), h)
	}
}
