//go:build !race

package limiter_test

import (
	"fmt"
	"runtime"
	"testing"
	"unsafe"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
)

// The charges of a request are counted before memory for them is allocated, so that none of it becomes garbage by
// growing.
func TestChargesAreAllocatedOnce(t *testing.T) {
	const perDescriptor, perCharge = 20,
		unsafe.Sizeof(limiter.Charge{}) + unsafe.Sizeof(backend.Hit{}) + unsafe.Sizeof(backend.Verdict{})
	for _, together := range []bool{false, true} {
		c := cost{cfg: limiter.Config{ChargeAllOrNothing: together}, make: func(n int) (string, *limiter.Request) {
			_, req := descriptors(func(i int) string { return fmt.Sprint("user-", i) })(n)
			return limits(perDescriptor), req
		}}
		l, req := c.open(t, limiter.MaxDescriptors)
		// The counters are made, and pools are filled.
		for range 2 {
			if err := l.Check(t.Context(), req, new(limiter.Answer)); err != nil {
				t.Fatal(err)
			}
		}
		var before, after runtime.MemStats
		const times = 4
		runtime.ReadMemStats(&before)
		for range times {
			if err := l.Check(t.Context(), req, new(limiter.Answer)); err != nil {
				t.Fatal(err)
			}
		}
		runtime.ReadMemStats(&after)
		got, charges := (after.TotalAlloc-before.TotalAlloc)/times, uint64(limiter.MaxDescriptors*perDescriptor)
		// More is for keys and for statuses. The store has room for the trials of a group.
		if most := charges * uint64(perCharge+96); got > most {
			t.Errorf("together %t: %d bytes were allocated for %d charges of %d bytes, want at most %d", together, got, charges,
				perCharge, most)
		}
	}
}
