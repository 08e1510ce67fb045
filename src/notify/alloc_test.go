//go:build !race

package notify

import (
	"testing"

	"ratelimit/src/limiter"
)

// Only a subject that reaches a percentage allocates. The race detector allocates by itself.
func TestRecordDoesNotAllocate(t *testing.T) {
	n := New(Config{OnFailure: func(string, error) {}})
	defer n.sender.finish()
	for _, subject := range []string{"none=a", "user=a", "banned=a"} {
		req, a := decided(t, subject)
		n.Record(req, a) // The first time banned is found.
		if allocs := testing.AllocsPerRun(100, func() { n.Record(req, a) }); allocs > 0 {
			t.Errorf("%s: %v allocations", subject, allocs)
		}
	}
}

// decided returns a request about a descriptor with one entry, and its answer.
func decided(t testing.TB, subject string) (*limiter.Request, *limiter.Answer) {
	t.Helper()
	l := newLimiter(t, newMemory(t))
	req := &limiter.Request{
		Domain: []byte("d"), Now: epoch, Descriptors: []limiter.Descriptor{{Entries: entriesOf(subject)}},
	}
	a := new(limiter.Answer)
	if err := l.Check(t.Context(), req, a); err != nil {
		t.Fatal(err)
	}
	return req, a
}

// BenchmarkRecord measures what a request costs whose rule has no notify, whose subject has not reached a percentage,
// and whose subject is over the limit and known.
func BenchmarkRecord(b *testing.B) {
	for _, subject := range []string{"none=a", "user=a", "banned=a"} {
		b.Run(subject, func(b *testing.B) {
			n := New(Config{OnFailure: func(string, error) {}})
			defer n.sender.finish()
			req, a := decided(b, subject)
			b.ReportAllocs()
			for b.Loop() {
				n.Record(req, a)
			}
		})
	}
}
