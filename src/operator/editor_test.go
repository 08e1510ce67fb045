package operator

import (
	"testing"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

// A change sets each counter of a descriptor: limits with the same key and other windows have counters of their own. A
// descriptor need not name a hold.
func TestDescriptorText(t *testing.T) {
	t.Parallel()
	prefix := func(text string) *string { return &text }
	for want, entries := range map[string][]CounterEntry{
		`user=eve,action="a,b"`: {{Key: "user", Value: "eve"}, {Key: "action", Value: "a,b"}},
		`user="al*"`:            {{Key: "user", Value: "al*"}},
		`user,alex`:             {{Key: "user"}, {Key: "alex"}},
		`user=eve,action=pay*`:  {{Key: "user", Value: "eve"}, {Key: "action", Prefix: prefix("pay")}},
		`user=*`:                {{Key: "user", Prefix: prefix("")}},
	} {
		if got := (&CounterChange{Descriptor: entries}).DescriptorText(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestHitsOfAChange(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"domain: d\ndescriptors: [{key: ip, rate_limits: [{unit: month, requests_per_unit: 1}, {unit: month, " +
			"calendar: true, time_zone: Europe/Berlin, requests_per_unit: 1}]}]": 2,
		"domain: d\ndescriptors: [{key: ip, rate_limit: {unit: day, requests_per_unit: 4, hold: 30s, hold_id: id}}]": 1,
	} {
		set := limitertest.Load(t, []filerules.File{{Name: "d.yaml", Data: []byte(text)}})
		e := Editor{Limiter: limiter.New(limiter.Config{})}
		e.Limiter.UseRules(set)
		used := uint64(3)
		c := &CounterChange{Action: ActionSet, Domain: "d", Descriptor: []CounterEntry{{Key: "ip", Value: "1"}}, Used: &used}
		b, err := e.Hits(c)
		if err != nil || len(b.Hits) != want || len(b.Verdicts) != want {
			t.Fatalf("%s: got %+v, %v, want %d hits", text, b, err, want)
		}
		for _, h := range b.Hits {
			if h.Op != algorithm.Force || h.Amount != used || h.Atomic || h.HoldID != (algorithm.HoldID{}) {
				t.Errorf("%s: got %+v", text, h)
			}
		}
	}
}
