//go:build !race

package limiter_test

import (
	"strings"
	"testing"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// The race detector empties pools at random, so this runs without it: see
// `make test`.
func TestCheckDoesNotAllocate(t *testing.T) {
	for _, escape := range []bool{false, true} {
		l, a := start(t, limiter.Config{EscapeKeys: escape}), new(limiter.Answer)
		for _, tt := range []struct {
			what, rules, domain, ask string
		}{
			{"descriptors", testRules, "d", "ip=1_2 path=/pay,user=x file=/f/1"},
			{"an ordered list", orderedRules, "d", "ip=1_2,m=GET,x=y m=GET,ip=2 both=1 trial=1"},
			{
				"holds", heldRules, "d",
				"user=a,id=1 team=a,id=1:9 team=a,id=1,hold=settle:8 user=a,id=1,hold=release user=b,id=2-",
			},
			{"enforce_percent", enforceRules, "d", "user=user-0 user=user-1 none=x two=a team=a,member=b call=a,id=1"},
			{
				"a tree of limits", "schema: {user: {children: {'*': {limits: [15, 30, 60], children: {trade: {limits: [5, 10, " +
					"15]}}}}}}\n", "test", "user=alex,trade= user=eve,look=x",
			},
		} {
			l.UseRules(load(t, tt.rules))
			req := parse(tt.ask)
			req.Domain = []byte(tt.domain)
			check := func() {
				if err := l.Check(t.Context(), req, a); err != nil {
					t.Fatal(err)
				}
			}
			check()
			if n := testing.AllocsPerRun(100, check); n > 0 || len(a.Charges) < 3 {
				t.Errorf("%s: %v allocations per request, escaped %t, with %d charges", tt.what, n, escape, len(a.Charges))
			}
		}
	}
}

// A request of as many descriptors as are allowed reuses memory.
func TestLargeChecksDoNotAllocate(t *testing.T) {
	for _, c := range costs() {
		if !strings.Contains(c.name, "descriptors") {
			continue
		}
		if n := testing.AllocsPerRun(100, c.check(t, limiter.MaxDescriptors)); n > 0 {
			t.Errorf("%s: %v allocations per request", c.name, n)
		}
	}
	l := start(t, limiter.Config{})
	a, req := new(limiter.Answer), parse(strings.Repeat("ip=1 ", limiter.MaxDescriptors))
	for i := range req.Descriptors {
		d := &req.Descriptors[i]
		d.HasLimit, d.Limit = true, rules.Rate{Requests: 1, Unit: rules.UnitDay, UnitMultiplier: 1}
	}
	if n := testing.AllocsPerRun(100, func() {
		if err := l.Check(t.Context(), req, a); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("limits of the request: %v allocations", n)
	}
}

// A Many reuses its memory for other requests and another number of them.
func TestCheckManyDoesNotAllocate(t *testing.T) {
	l, m := start(t, limiter.Config{}), new(limiter.Many)
	requests := []*limiter.Request{
		parse("ip=1_2 path=/pay,user=x file=/f/1"), parse("ip=1"), parse("premium=x ip=2"),
		parse("nobody=1"),
	}
	size := 256
	check := func() {
		for i := range size {
			addRequest(m, requests[(i+size)%len(requests)])
		}
		l.CheckMany(t.Context(), m)
		for _, item := range m.Items() {
			if item.Err != nil {
				t.Fatal(item.Err)
			}
		}
		m.Reset(16)
		size = size%256 + 1
	}
	for range 256 * len(requests) {
		check()
	}
	if n := testing.AllocsPerRun(256, check); n > 0 {
		t.Errorf("%v allocations per batch", n)
	}
}
