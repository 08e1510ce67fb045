package overrides

import (
	"strings"
	"testing"

	"ratelimit/src/rules"
)

func TestChanges(t *testing.T) {
	t.Parallel()
	const limits = `
domain: shop
descriptors:
  - {key: minute, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: gcra, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: gcra}}
  - {key: burst, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: gcra, burst: 4}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 10, calendar: true}}
  - {key: log, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: sliding_window}}
  - {key: calls, rate_limit: {requests_per_unit: 10, algorithm: concurrency, hold: 1m, hold_id: id}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: closed, rate_limit: {unit: minute, requests_per_unit: 0}}
`
	set := load(t, limits)
	for _, tt := range []struct{ rule, change, want string }{
		{"minute", "100/hour", "100 per hour"},
		{"minute", "100", "100 per minute"},
		{"minute", "x10", "100 per minute"},
		{"minute", "x0.25", "2 per minute"},
		{"minute", "x0.001", "1 per minute"},
		{"minute", "ban", "0 per minute"},
		{"minute", "281474976710656/second", "281474976710656 per second"},
		{"minute", "100000000000/month", "100000000000 per month"},
		{"minute", "x1000000", "10000000 per minute"},
		{"minute", "5 burst 2", "error: only gcra has a burst"},
		{"gcra", "100/minute", "100 per minute, 100 at once"},
		{"gcra", "x10", "100 per minute, 100 at once"},
		{"gcra", "100 burst 4", "100 per minute, 5 at once"},
		{"gcra", "ban", "0 per minute, 0 at once"},
		{"burst", "100/minute", "100 per minute, 5 at once"},
		{"burst", "x10", "100 per minute, 50 at once"},
		{"month", "100", "100 per calendar month from day 1 in UTC"},
		{"month", "x2", "20 per calendar month from day 1 in UTC"},
		{"month", "100/month", "100 per calendar month from day 1 in UTC"},
		{"month", "100/day", "error: it counts in windows of a calendar: write 100, without a unit"},
		{"log", "1000000000", "error: "},
		{"calls", "20", "20 at a time, each for at most 1m"},
		{"calls", "x3", "30 at a time, each for at most 1m"},
		{"calls", "20/minute", "error: concurrency has no unit: write 20"},
		{"free", "10/minute", "10 per minute"},
		{"free", "ban", "0 per second"},
		{"free", "10", "error: the rule is unlimited, so the limit needs a unit: write 10/minute"},
		{"free", "x2", "error: the rule is unlimited"},
		{"closed", "x10", "0 per minute"},
		{"closed", "10", "10 per minute"},
	} {
		c, err := ParseChange(tt.change)
		if err != nil {
			t.Errorf("%s: %v", tt.change, err)
			continue
		}
		if again, err := ParseChange(c.String()); err != nil || again != c {
			t.Errorf("%s is written %s, which is %v, %v", tt.change, c, again, err)
		}
		got, r := "", set.Rule("shop", "shop."+tt.rule)
		changed, err := c.Of(r)
		if err != nil {
			got = "error: " + err.Error()
			_, want, isError := strings.Cut(tt.want, "error: ")
			if !isError || !strings.Contains(got, want) {
				t.Errorf("%s of %s: %s, want %s", tt.change, tt.rule, got, tt.want)
			}
			continue
		}
		if got = changed.LimitText(); got != tt.want || !changed.Overridden || r.Overridden {
			t.Errorf("%s of %s: %s, want %s", tt.change, tt.rule, got, tt.want)
		}
		if changed.Index != r.Index || changed.FullName != r.FullName || changed.Descriptor != r.Descriptor {
			t.Errorf("%s of %s is counted for another rule", tt.change, tt.rule)
		}
	}
}

func TestChangesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                         "is not a number",
		"many":                     "is not a number of at most 281474976710656, as in 1000/minute, nor a factor, as in x10",
		"-1/minute":                "is not a number",
		"281474976710657":          "is not a number",
		"10/fortnight":             `the unit "fortnight" is not second, minute, hour, day, week, month or year`,
		"x0":                       "is not a number above 0",
		"x-1":                      "is not a number above 0",
		"xNaN":                     "is not a number above 0",
		"xInf":                     "is not a number above 0",
		"x1000001":                 "is not a number above 0 and up to 1000000",
		"10 burst x":               `the burst "x" is not a number`,
		"ban burst 3":              "is not a number",
		"10 burst 281474976710656": "the burst",
	} {
		if c, err := ParseChange(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %s", text, c, err, want)
		}
	}
}

// Whatever is written as a change is parsed, and applied to each rule, without a panic, and is written the same again.
func FuzzChange(f *testing.F) {
	set := load(f, "domain: shop\ndescriptors:\n  - {key: a, rate_limit: {unit: minute, requests_per_unit: 10, algorithm: gcra}}\n"+
		"  - {key: b, rate_limit: {unit: day, requests_per_unit: 281474976710656}}\n  - {key: c, rate_limit: {unlimited: true}}\n")
	for _, s := range []string{"10/minute", "x2.5", "ban", "7 burst 3", "x1e3", "0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ParseChange(text)
		if err != nil {
			return
		}
		if again, err := ParseChange(c.String()); err != nil || again != c {
			t.Fatalf("%q is written %q, which is %v, %v", text, c, again, err)
		}
		for _, r := range set.Rules() {
			changed, err := c.Of(r)
			if err != nil {
				continue
			}
			if err := changed.Limit.Validate(); err != nil || uint64(changed.Requests) != changed.Limit.Max {
				t.Fatalf("%q of %s: %+v, %v", text, r.FullName, changed.Limit, err)
			}
		}
	})
}

var _ rules.Adjuster = (*domainAdjuster)(nil)
