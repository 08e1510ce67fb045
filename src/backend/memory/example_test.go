package memory_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
)

// Two logins per account and minute, in virtual time.
func ExampleStore_Take() {
	store, err := memory.New(memory.Config{MaxBytes: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	limit := &algorithm.Limit{Kind: algorithm.SlidingWindow, Max: 2, Period: time.Minute}
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, seconds := range []int{0, 10, 20, 60} {
		batch := backend.Batch{
			Hits:     []backend.Hit{{Key: []byte("login alice"), Limit: limit, Amount: 1}},
			Verdicts: make([]backend.Verdict, 1),
			Now:      start.Add(time.Duration(seconds) * time.Second),
		}
		if err := store.Take(context.Background(), &batch); err != nil {
			log.Fatal(err)
		}
		v := batch.Verdicts[0]
		fmt.Printf("%2d s: over %t, %d remaining, retry after %v\n", seconds, v.Over, v.Remaining, v.RetryAfter)
	}
	// Output:
	//  0 s: over false, 1 remaining, retry after 0s
	// 10 s: over false, 0 remaining, retry after 0s
	// 20 s: over true, 0 remaining, retry after 40s
	// 60 s: over false, 0 remaining, retry after 0s
}

// A group of atomic hits is charged only if all of them pass.
func ExampleStore_Take_atomic() {
	store, err := memory.New(memory.Config{})
	if err != nil {
		log.Fatal(err)
	}
	perUser := &algorithm.Limit{Max: 5, Period: time.Hour}
	perIP := &algorithm.Limit{Max: 3, Period: time.Hour}
	batch := backend.Batch{
		Hits: []backend.Hit{
			{Key: []byte("user alice"), Limit: perUser, Amount: 4, Atomic: true},
			{Key: []byte("ip 192.0.2.1"), Limit: perIP, Amount: 4, Atomic: true},
		},
		Verdicts: make([]backend.Verdict, 2),
	}
	if err := store.Take(context.Background(), &batch); err != nil {
		log.Fatal(err)
	}
	for i, v := range batch.Verdicts {
		fmt.Printf("%s: over %t, charged %t\n", batch.Hits[i].Key, v.Over, v.Charged)
	}
	// Output:
	// user alice: over false, charged false
	// ip 192.0.2.1: over true, charged false
}
