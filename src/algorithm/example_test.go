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
		var v algorithm.Verdict
		count, v = algorithm.TakeFixed(&limit, count, at.UnixNano(), algorithm.Charge, amount)
		fmt.Printf("take %d: over %t, count %d, %d remaining, retry after %v\n", amount, v.Over, count, v.Remaining, v.RetryAfter)
	}
	// Output:
	// take 6: over false, count 6, 4 remaining, retry after 0s
	// take 3: over false, count 9, 1 remaining, retry after 0s
	// take 2: over true, count 11, 0 remaining, retry after 15s
}
