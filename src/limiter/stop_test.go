package limiter_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

// worstRegexes are five expressions at the bounds of what a rule file may have. They compare each value for a long
// time.
var worstRegexes = func() string {
	var b strings.Builder
	b.WriteString("domain: d\ndescriptors:\n")
	for i := range 5 {
		fmt.Fprintf(&b, "- {key: k, regex: '(?:x?){490}y%d$', rate_limit: {unit: day, requests_per_unit: 1}}\n", i)
	}
	return b.String() + "- {key: k, rate_limit: {unit: day, requests_per_unit: 1000}}\n"
}()

// expensive is a request of n values for worstRegexes.
func expensive(n int, value func(i int) string) *limiter.Request {
	req := &limiter.Request{Domain: []byte("d")}
	for i := range n {
		text := value(i)
		text += strings.Repeat("x", match.MaxRegexValue-len(text))
		entries := []rules.Entry{{Key: []byte("k"), Value: []byte(text)}}
		req.Descriptors = append(req.Descriptors, limiter.Descriptor{Entries: entries})
	}
	return req
}

// A search for rules ends soon after the context of its request, with regular expressions, wildcards and ordered lists.
func TestSearchEndsWithContext(t *testing.T) {
	t.Parallel()
	var wildcards, list strings.Builder
	wildcards.WriteString("domain: d\ndescriptors:\n")
	list.WriteString("domain: d\nrules:\n")
	const limit = "rate_limit: {unit: day, requests_per_unit: 1}"
	for i := range 2000 {
		fmt.Fprintf(&wildcards, "- {key: k, value: 'x*x%d*x%dy*x', %s}\n", i, i, limit)
		fmt.Fprintf(&list, "- {name: r%d, match: {k: 'x*x%d*x%dy*x'}, %s}\n", i, i, i, limit)
	}
	long := expensive(100, func(i int) string { return fmt.Sprint(i) })
	for i := range long.Descriptors {
		long.Descriptors[i].Entries[0].Value = []byte(strings.Repeat("x", 100_000+i))
	}
	for name, tt := range map[string]struct {
		rules string
		req   *limiter.Request
	}{
		"regular expressions": {worstRegexes, expensive(5, func(i int) string { return fmt.Sprint(i) })},
		"wildcards":           {wildcards.String(), long},
		"an ordered list":     {list.String(), long},
	} {
		for _, many := range []bool{false, true} {
			l := start(t, limiter.Config{})
			l.UseRules(load(t, tt.rules))
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			err := error(nil)
			begun := time.Now()
			if many {
				m := new(limiter.Many)
				addRequest(m, tt.req)
				l.CheckMany(ctx, m)
				err = m.Items()[0].Err
			} else {
				err = l.Check(ctx, tt.req, new(limiter.Answer))
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s, many %t: %v after %v", name, many, err, time.Since(begun))
			}
		}
	}
}
