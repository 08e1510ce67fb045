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
		l := start(t, limiter.Config{EscapeKeys: escape})
		req, a := parse("ip=1_2 path=/pay,user=x file=/f/1"), new(limiter.Answer)
		check := func() {
			if err := l.Check(t.Context(), req, a); err != nil {
				t.Fatal(err)
			}
		}
		check()
		if n := testing.AllocsPerRun(100, check); n > 0 {
			t.Errorf("%v allocations per request, escaped %t", n, escape)
		}
		l.UseRules(load(t, orderedRules))
		req = parse("ip=1_2,m=GET,x=y m=GET,ip=2 both=1 trial=1")
		check()
		if n := testing.AllocsPerRun(100, check); n > 0 {
			t.Errorf("%v allocations per request on an ordered list", n)
		}
		l.UseRules(load(t, heldRules))
		req = parse("user=a,id=1 team=a,id=1:9 team=a,id=1,hold=settle:8 user=a,id=1,hold=release user=b,id=2-")
		check()
		if n := testing.AllocsPerRun(100, check); n > 0 {
			t.Errorf("%v allocations per request with holds", n)
		}
		l.UseRules(load(t, enforceRules))
		req = parse("user=user-0 user=user-1 none=x two=a team=a,member=b call=a,id=1")
		check()
		if n := testing.AllocsPerRun(100, check); n > 0 {
			t.Errorf("%v allocations per request with enforce_percent", n)
		}
		l.UseRules(load(t, "schema: {user: {children: {'*': {limits: [15, 30, 60], children: {trade: {limits: [5, 10, "+
			"15]}}}}}}\n"))
		req = parse("user=alex,trade= user=eve,look=x")
		req.Domain = []byte("test")
		check()
		if n := testing.AllocsPerRun(100, check); n > 0 || len(a.Charges) != 3 {
			t.Errorf("%v allocations per request on a tree of limits, with %d charges", n, len(a.Charges))
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
