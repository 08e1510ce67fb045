//go:build linux

package siege

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Attacks on what counts: callers that ask for much at once, stores that answer
// too much or name too many servers.
var storeAttacks = []attack{
	greedy(redis, "sliding_window"),
	greedy(redis, "gcra"),
	greedy(redis, "fixed_window"),
	greedy(memcached, "sliding_window_counter"),
	greedy(memcached, "fixed_window"),
	greedy(memory, "sliding_window"),
	{
		letter: "B", name: "large calls while Redis stands still",
		does: "calls of 1,000 descriptors, 100 at a time over each of 16 connections, while Redis answers " +
			"nothing",
		store: redis, rules: "- {key: greedy, rate_limit: {algorithm: sliding_window, unit: hour, requests_per_unit: 1000}}\n",
		tolerant: true, strike: pausedCrowd,
	},
	{
		letter: "J", name: "Redis answers too much",
		does:  "a proxy adds one reply to those of Redis",
		store: redis, rules: countRules, tolerant: true, quiet: true, prepare: throughChatterbox(":1\r\n"),
		strike: extraReplies,
	},
	{
		letter: "J", name: "Memcached answers too much", does: "the same with Memcached",
		store: memcached, rules: countRules, tolerant: true, quiet: true, prepare: throughChatterbox("1\r\n"),
		strike: extraReplies,
	},
	{
		letter: "K", name: "a cluster of 16,384 nodes",
		does:  "a fake Redis that names a node for each slot, none of which is there",
		rules: "- {key: local, rate_limit: {unit: hour, requests_per_unit: 1000000000}}\n", quiet: true,
		prepare: beforeFakeCluster, strike: hugeCluster,
	},
}

// algorithmOn is an algorithm as rules name it, with what they need on Memcached.
func algorithmOn(store storeName, algorithm string) string {
	if store == memcached && algorithm != "fixed_window" {
		return algorithm + ", count_blocked: true"
	}
	return algorithm
}

// greedy callers ask for 1,000 counters at a time, again and again.
func greedy(store storeName, algorithm string) attack {
	return attack{
		letter: "B", name: fmt.Sprintf("1,000 descriptors on %s, %s", store, algorithm),
		does:  "2, 3 and 16 callers of such calls",
		store: store, rules: fmt.Sprintf(
			"- {key: greedy, rate_limit: {algorithm: %s, unit: hour, requests_per_unit: 1000}}\n",
			algorithmOn(store, algorithm)),
		kept: 200 << 20, // their counters, with memory
		onlyFull: algorithm == "gcra" || store == redis && algorithm == "fixed_window" ||
			algorithm == "sliding_window_counter",
		strike: func(x *trial) {
			counts := []int{16}
			if x.full {
				counts = []int{2, 3, 16}
			}
			most := 10 * time.Millisecond
			if store == redis && algorithm == "fixed_window" {
				// Redis takes 500,000 increments a second, so the callers, the service and
				// Redis share the two cores of the machine, and all wait for their turn there.
				most = 50 * time.Millisecond
			}
			for _, callers := range counts {
				x.greed(callers, most)
			}
			if store == memory {
				return
			}
			if opened, err := x.service.metric("ratelimit_store_breaker_opened_total"); err != nil || opened > 0 {
				x.suspect("the breaker opened %v times: %v", opened, err)
			}
		},
	}
}

// greed fails if the neighbour's p99 is above most meanwhile.
func (x *trial) greed(callers int, most time.Duration) {
	begun := time.Now()
	end := begun.Add(pick(x, 1500*time.Millisecond, 8*time.Second))
	list := x.wires(callers, true)
	defer hangUp(list)
	var answered, refused atomic.Int64
	together(list, func(i int, w *wire) {
		keys := newFresh(longestDescriptors, "greedy", uint64(i)<<40)
		for time.Now().Before(end) {
			byStatus, err := w.flood(1, 1, func(int) []byte { return keys.fill() })
			if err != nil {
				x.suspect("a greedy caller was cut off: %v", err)
				return
			}
			answered.Add(int64(byStatus["0"]))
			refused.Add(int64(1 - byStatus["0"]))
		}
	})
	q := x.neighbour.between(begun, time.Now())
	x.note("%d callers: %d of their calls were answered, %d not; the neighbour's p99 %v, %d of %d failed",
		callers, answered.Load(), refused.Load(), q.p99.Round(time.Millisecond/10), q.failed, q.calls)
	if x.full && q.p99 > most {
		x.suspect("with %d callers the neighbour's p99 is %v, want at most %v", callers, q.p99, most)
	}
}

// pausedCrowd has much wait for a store that does not answer.
func pausedCrowd(x *trial) {
	x.server.Pause()
	defer x.server.Resume()
	end := time.Now().Add(pick(x, 1500*time.Millisecond, 8*time.Second))
	list := x.wires(pick(x, 8, 16), true)
	defer hangUp(list)
	const atOnce = 100
	content := same(longestDescriptors, "greedy", "a")
	together(list, func(_ int, w *wire) {
		for time.Now().Before(end) {
			if _, err := w.flood(atOnce, atOnce, func(int) []byte { return content }); err != nil {
				return // it was too much, and the connection is closed for it
			}
		}
	})
}

// countRules has limits that tell counters apart.
const countRules = `- {key: counter, value: a, rate_limit: {unit: day, requests_per_unit: 1000000}}
- {key: counter, value: b, rate_limit: {unit: day, requests_per_unit: 2000000}}
- {key: counter, value: c, rate_limit: {unit: day, requests_per_unit: 3000000}}
- {key: counter, value: d, rate_limit: {unit: day, requests_per_unit: 4000000}}
`

// throughChatterbox puts a proxy before the store that adds this reply.
func throughChatterbox(reply string) func(x *trial, o *options) {
	return func(x *trial, o *options) {
		c, err := startChatterbox(x.T, x.store, reply)
		if err != nil {
			x.Fatal(err)
		}
		x.state = c
		x.reach(o, c.addr)
	}
}

// extraReplies has callers that know what their counters are: each call adds one.
// What had no answer may have counted.
func extraReplies(x *trial) {
	c := x.state.(*chatterbox)
	client := dial(x.T, x.service.grpc)
	stop := make(chan struct{})
	var callers sync.WaitGroup
	var answers, shifted atomic.Int64
	for i, value := range []string{"a", "b", "c", "d"} {
		callers.Go(func() {
			limit, counted, unknown := uint32(1_000_000*(i+1)), uint32(0), uint32(0)
			for {
				select {
				case <-stop:
					return
				default:
				}
				answer, err := client.ShouldRateLimit(x.ctx, request([2]string{"counter", value}))
				if err != nil {
					if status.Code(err) != codes.Unavailable {
						x.complain("a call was answered with %v", err)
					}
					unknown++
					continue
				}
				counted++
				answers.Add(1)
				left := answer.GetStatuses()[0].GetLimitRemaining()
				if left > limit-counted || left < limit-counted-unknown {
					shifted.Add(1)
					x.complain("counter %s has %d of %d left after %d calls and %d that may have counted: that is another's count",
						value, left, limit, counted, unknown)
					return
				}
			}
		})
	}
	added := 0
	for range pick(x, 8, 40) {
		time.Sleep(pick(x, 100*time.Millisecond, 250*time.Millisecond))
		n, err := c.interject()
		if err != nil {
			x.complain("after one reply too many: %v", err)
			break
		}
		added += n
	}
	close(stop)
	callers.Wait()
	if added == 0 || answers.Load() < 100 {
		x.suspect("%d replies were added and %d calls answered: that was no attack", added, answers.Load())
	}
	x.note("%d replies were added, while %d calls were answered", added, answers.Load())
}

// hugeCluster sees what became of the layout.
func hugeCluster(x *trial) {
	f := x.state.(*fakeCluster)
	time.Sleep(pick(x, 3*time.Second, 10*time.Second))
	if f.asked.Load() == 0 {
		x.complain("the service did not ask for the layout")
	}
	if v := x.result.vitals[0]; v.Goroutines > mostGoroutines {
		x.complain("%d goroutines, want at most %d", v.Goroutines, mostGoroutines)
	}
	longest := 0
	for _, line := range x.service.lines() {
		longest = max(longest, len(line))
	}
	x.note("the longest line of the log has %d bytes", longest)
	if most := 8 << 10; longest > most {
		x.complain("a line of the log has %d bytes, want at most %d", longest, most)
	}
}

var errStillOpen = errors.New("the connection is still open")
