package limiter_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// countingStore remembers where its hits say that they are counted.
type countingStore struct{ got []string }

func (s *countingStore) Take(_ context.Context, b *backend.Batch) error {
	for i := range b.Hits {
		s.got = append(s.got, fmt.Sprint(b.Hits[i].Counting, " ", b.Hits[i].OnContention))
	}
	return nil
}

// TestCounting checks that hits say where they are counted: as their rule says, or without a rule as the domain does.
func TestCounting(t *testing.T) {
	t.Parallel()
	store := new(countingStore)
	l := limiter.New(limiter.Config{Backend: store})
	l.UseRules(load(t, `
domain: d
counting: leased
on_contention: refuse
descriptors:
- {key: own, rate_limit: {unit: day, requests_per_unit: 9, on_contention: wait}}
- {key: default, rate_limit: {unit: day, requests_per_unit: 9}}
- {key: exact, rate_limit: {unit: day, requests_per_unit: 9, counting: exact}}
- {key: log, rate_limit: {algorithm: sliding_window, unit: day, requests_per_unit: 9}}
`))
	req := &limiter.Request{Domain: []byte("d")}
	for _, key := range []string{"own", "default", "exact", "log", "none"} {
		d := limiter.Descriptor{Entries: []rules.Entry{{Key: []byte(key), Value: []byte("x")}}}
		if key == "none" {
			d.Limit = rules.Rate{Requests: 9, Unit: rules.ParseUnit("day"), UnitMultiplier: 1}
			d.HasLimit = true
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	if err := l.Check(t.Context(), req, new(limiter.Answer)); err != nil {
		t.Fatal(err)
	}
	const want = "leased wait, leased refuse, exact wait, exact wait, leased refuse"
	if got := strings.Join(store.got, ", "); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
