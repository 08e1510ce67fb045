package algorithm_test

import (
	"fmt"
	"time"

	"ratelimit/src/algorithm"
)

// Ten a minute, by the counts of two windows. 15 s into the second minute a quarter of the
// previous one no longer counts.
func ExampleTakeSlidingCounter() {
	limit := algorithm.Limit{Kind: algorithm.SlidingWindowCounter, Max: 10, Period: time.Minute}
	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

	buckets, _ := algorithm.TakeSlidingCounter(&limit, algorithm.SlidingCounterState{}, at.UnixNano(), algorithm.Charge, 8)
	buckets, v := algorithm.TakeSlidingCounter(&limit, buckets, at.Add(75*time.Second).UnixNano(), algorithm.Charge, 3)
	fmt.Printf("before %d, after %d, %d remaining\n", v.Before, v.After, v.Remaining)
	_, v = algorithm.TakeSlidingCounter(&limit, buckets, at.Add(75*time.Second).UnixNano(), algorithm.Charge, 2)
	fmt.Printf("over %t, retry after %v\n", v.Over, v.RetryAfter)
	// Output:
	// before 6, after 9, 1 remaining
	// over true, retry after 7.5s
}

// Two in 10 s from the first hit on.
func ExampleTakeFirstHit() {
	limit := algorithm.Limit{Kind: algorithm.FirstHitWindow, Max: 2, Period: 10 * time.Second}
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

	var window algorithm.FirstHitState
	for _, seconds := range []int{3, 4, 12, 13} {
		var v algorithm.Outcome
		at := start.Add(time.Duration(seconds) * time.Second)
		window, v = algorithm.TakeFirstHit(&limit, window, at.UnixNano(), algorithm.Charge, 1)
		fmt.Printf("after %d s: over %t, retry after %v\n", seconds, v.Over, v.RetryAfter)
	}
	// Output:
	// after 3 s: over false, retry after 0s
	// after 4 s: over false, retry after 0s
	// after 12 s: over true, retry after 1s
	// after 13 s: over false, retry after 0s
}
