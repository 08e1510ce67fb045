package memcached

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend/redis"
	"ratelimit/src/backend/remote"
	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/remotetest"
)

// BenchmarkAgainstRedis compares the store, in one interleaved run, with that of
// package redis. The figures are CPU µs per hit of this process and the server
// together, and ratios to Redis: of that, of the server alone, and of the 50th and
// 99th percentile of the calls' durations. Only the ratios mean anything on a
// shared machine. See `make bench-memcached`.
func BenchmarkAgainstRedis(b *testing.B) {
	for _, w := range []struct {
		name          string
		keys, charges int
		kind          algorithm.Kind
	}{
		{"hot", 1, 1, algorithm.FixedWindow},
		{"100k", 100_000, 1, algorithm.FixedWindow},
		{"4charges", 100_000, 4, algorithm.FixedWindow},
		{"sliding", 100_000, 1, algorithm.SlidingWindowCounter},
	} {
		for _, inFlight := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/inflight=%d", w.name, inFlight), func(b *testing.B) {
				limit := window(1<<40, time.Hour)
				limit.Kind = w.kind
				for b.Loop() {
					against(b, limit, w.keys, w.charges, inFlight)
				}
			})
		}
	}
}

func against(b *testing.B, limit *algorithm.Limit, keys, charges, inFlight int) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	memcached, redisServer := memcachedtest.Start(b,
		memcachedtest.Options{Args: []string{"-m", "256"}}), redistest.Start(b, redistest.Options{})
	ours := open(b, Config{Servers: []string{memcached.Addr}})
	theirs, err := redis.New(redis.Config{Addr: redisServer.Addr, Config: remote.Config{Timeout: 5 * time.Second}})
	if err != nil {
		b.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() { _ = theirs.Run(ctx) })
	defer running.Wait()
	defer cancel()

	names := remotetest.Keys(keys)
	remotetest.Compare(b, inFlight, charges,
		remotetest.Caller{Call: remotetest.CallsOf(b, ours, limit, names, charges), Server: memcached.CPU},
		remotetest.Caller{Call: remotetest.CallsOf(b, theirs, limit, names, charges), Server: redisServer.CPU}, "redis")
	if stats := memcached.Stats(b); stats["curr_items"] != "0" {
		bytes, _ := strconv.ParseFloat(stats["bytes"], 64)
		items, _ := strconv.ParseFloat(stats["curr_items"], 64)
		b.ReportMetric(bytes/items, "bytes/counter")
	}
}
