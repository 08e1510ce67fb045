package algorithm_test

import (
	"fmt"
	"time"

	"ratelimit/src/algorithm"
)

// Ten a minute, charged in lumps. The state is a plain number that the caller
// keeps, and time is an argument.
func ExampleTakeFixed() {
	limit := algorithm.Limit{Max: 10, Period: time.Minute, CountBlocked: true}
	at := time.Date(2026, 1, 1, 12, 0, 45, 0, time.UTC)

	var count uint64
	for _, amount := range []uint64{6, 3, 2} {
		var v algorithm.Outcome
		count, v = algorithm.TakeFixed(&limit, count, at.UnixNano(), algorithm.Charge, amount)
		fmt.Printf("take %d: over %t, count %d, %d remaining, retry after %v\n", amount, v.Over, count, v.Remaining,
			v.RetryAfter)
	}
	// Output:
	// take 6: over false, count 6, 4 remaining, retry after 0s
	// take 3: over false, count 9, 1 remaining, retry after 0s
	// take 2: over true, count 11, 0 remaining, retry after 15s
}

// One every 6 s, three at once. What is kept of a bucket is two instants.
func ExampleTakeGCRA() {
	limit := algorithm.Limit{Kind: algorithm.GCRA, Max: 10, Period: time.Minute, Burst: 2}
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

	var bucket algorithm.GCRAState
	for _, amount := range []uint64{2, 2, 1} {
		var v algorithm.Outcome
		bucket, v = algorithm.TakeGCRA(&limit, bucket, at.UnixNano(), algorithm.Charge, amount)
		fmt.Printf("take %d: over %t, %d remaining, retry after %v, reset after %v\n", amount, v.Over, v.Remaining,
			v.RetryAfter, v.ResetAfter)
	}
	// Output:
	// take 2: over false, 1 remaining, retry after 0s, reset after 12s
	// take 2: over true, 1 remaining, retry after 6s, reset after 12s
	// take 1: over false, 0 remaining, retry after 0s, reset after 18s
}

// Two in any 10 s. The log belongs to the caller, too, and is written in place.
func ExampleTakeSliding() {
	limit := algorithm.Limit{Kind: algorithm.SlidingWindow, Max: 2, Period: 10 * time.Second}
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

	var log algorithm.Log
	for _, seconds := range []int{0, 1, 2, 10} {
		at := start.Add(time.Duration(seconds) * time.Second)
		v := algorithm.TakeSliding(&limit, &log, at.UnixNano(), algorithm.Charge, 1)
		fmt.Printf("after %d s: over %t, retry after %v\n", seconds, v.Over, v.RetryAfter)
	}
	// Output:
	// after 0 s: over false, retry after 0s
	// after 1 s: over false, retry after 0s
	// after 2 s: over true, retry after 8s
	// after 10 s: over false, retry after 0s
}
