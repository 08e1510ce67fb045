package overrides

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"ratelimit/src/operator/callertext"
	"ratelimit/src/rules"
	"ratelimit/testbed/limitertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

var load = limitertest.Rules

// entries parses a descriptor such as user=eve,action=pay.
func entries(tb testing.TB, text string) []rules.Entry {
	tb.Helper()
	list, err := callertext.ParseDescriptor(text)
	if err != nil {
		tb.Fatal(err)
	}
	return list
}

// override returns a canonical override of the domain shop.
func override(tb testing.TB, subject, limit string) Override {
	tb.Helper()
	o, err := Override{
		Domain: "shop", Subject: subject, Limit: limit, Reason: "ticket 123", Who: "anna", Since: epoch,
	}.Canonical()
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

// set returns an Edit that sets o.
func set(o Override) Edit { return Edit{Override: o, By: "10.0.0.9:1234"} }

// unset returns an Edit that removes o.
func unset(o Override) Edit { return Edit{Override: o, Remove: true, By: "10.0.0.9:1234"} }

func commit(tb testing.TB, g *Registry, edits ...Edit) []Result {
	tb.Helper()
	results, err := g.Commit(tb.Context(), edits)
	if err != nil {
		tb.Fatal(err)
	}
	return results
}

// limitsOf returns the limits that set has for a descriptor, as "2 per minute, 3 per hour".
func limitsOf(tb testing.TB, set *rules.Set, descriptor string) (text string) {
	tb.Helper()
	var s rules.SearchScratch
	m := set.Domain([]byte("shop")).FindRule(entries(tb, descriptor), &s)
	if m == nil {
		return "no rule"
	}
	for i, r := range m.Limits {
		if i > 0 {
			text += ", "
		}
		if r.Overridden {
			text += "*"
		}
		text += r.LimitText()
	}
	return text
}
