//go:build linux

package siege

import (
	"fmt"
	"strings"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// Attacks on the counters in memory, and by work that grows faster than what asks
// for it.
var memoryAttacks = []attack{
	{
		letter: "F", name: "keys without end",
		does:  "25.8 million unique keys with the default `MEMORY_MAX_BYTES`",
		rules: floodRules, unhurried: true,
		prepare: func(x *trial, o *options) {
			o.group = -1 // the cap alone is as much as the group has
			o.env = append(o.env, fmt.Sprintf("MEMORY_MAX_BYTES=%d", memoryCap(x)))
		},
		strike: uniqueKeys, kept: 1 << 40, peak: 1 << 40,
	},
	{
		letter: "F", name: "a banned caller in a flood",
		does: "a counter that is over its limit, and 10 million keys of others with `MEMORY_MAX_BYTES` for a " +
			"tenth of them",
		rules: floodRules + "- {key: banned, rate_limit: {unit: day, requests_per_unit: 1}}\n", unhurried: true,
		prepare: func(x *trial, o *options) {
			o.env = append(o.env, fmt.Sprintf("MEMORY_MAX_BYTES=%d", pick(x, 2<<20, 32<<20)))
		},
		strike: bannedCaller, kept: 64 << 20,
	},
	{
		letter: "G", name: "20,000 hits in one group",
		does:  "1,000 descriptors with 20 limits each, all of which pass or fail together",
		env:   []string{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true", "MEMORY_MAX_BYTES=104857600"},
		rules: groupRules(), strike: oneGroup, kept: 108 << 20, // the cap on its counters, and 8 MiB
	},
	{
		letter: "G", name: "long values against wildcards",
		does: "values of 512 KiB against 200 wildcards that nearly match: refused, or twice the length costs twice " +
			"as much",
		rules: wildcardRules(), strike: longValues,
	},
}

const floodRules = "- {key: flood, rate_limit: {unit: day, requests_per_unit: 1000}}\n"

// memoryCap is MEMORY_MAX_BYTES for keys without end.
func memoryCap(x *trial) int64 { return pick[int64](x, 64<<20, 256<<20) }

func uniqueKeys(x *trial) {
	n := pick(x, 2_300_000, 25_800_000)
	x.floodKeys(n, nil)
	peak, err := x.service.peak()
	if err != nil {
		return // it is gone, and that is noticed
	}
	most := memoryCap(x) + 64<<20
	x.note("%d MiB at most were resident after %d keys, with a cap of %d", peak>>20, n, memoryCap(x)>>20)
	if peak > most {
		x.complain("%d MiB were resident, want at most %d", peak>>20, most>>20)
	}
}

// floodKeys charges n keys once, each new; between calls f is run.
func (x *trial) floodKeys(n int, f func() error) {
	list := x.wires(2, true)
	defer hangUp(list)
	each := n / longestDescriptors / max(len(list), 1)
	together(list, func(i int, w *wire) {
		keys := newFresh(longestDescriptors, "flood", uint64(i+1)<<40)
		for sent := 0; sent < each; sent += 50 {
			byStatus, err := w.flood(min(50, each-sent), 5, func(int) []byte { return keys.fill() })
			if err == nil && len(byStatus) > 1 {
				err = fmt.Errorf("calls by grpc-status: %v", byStatus)
			}
			if err == nil && i == 0 && f != nil {
				err = f()
			}
			if err != nil {
				x.complain("after %d of %d calls: %v", sent, each, err)
				return
			}
		}
	})
}

func bannedCaller(x *trial) {
	client := dial(x.T, x.service.grpc)
	ask := func() (pb.RateLimitResponse_Code, error) {
		answer, err := client.ShouldRateLimit(x.ctx, request([2]string{"banned", "mallory"}))
		return answer.GetOverallCode(), err
	}
	for range 3 {
		if _, err := ask(); err != nil {
			x.complain("%v", err)
			return
		}
	}
	asked := 0
	n := pick(x, 400_000, 10_000_000)
	// The counter is asked for rarely, so that it is not among those used last.
	quarter := time.Now()
	x.floodKeys(n, func() error {
		if time.Since(quarter) < pick(x, 300*time.Millisecond, 5*time.Second) {
			return nil
		}
		quarter = time.Now()
		asked++
		code, err := ask()
		if err == nil && code != pb.RateLimitResponse_OVER_LIMIT {
			err = fmt.Errorf("the banned caller has a fresh limit: it is answered %v", code)
		}
		return err
	})
	if code, err := ask(); err != nil || code != pb.RateLimitResponse_OVER_LIMIT {
		x.complain("after %d keys of others the banned caller is answered %v: %v", n, code, err)
	}
	x.note("a counter over its limit survived %d keys of others", n)
}

// groupRules is a rule with 20 limits that stand or fall together.
func groupRules() string {
	var b strings.Builder
	b.WriteString("- key: g\n  on_reject: none\n  rate_limits:\n")
	for i := range 20 {
		fmt.Fprintf(&b, "  - {period: %dh, requests_per_unit: 1000000000}\n", i+1)
	}
	return b.String()
}

// oneGroup compares the CPU for half as many hits with that for all: the ratio is
// 2 where work is linear, and 4 where each hit is compared with all others.
func oneGroup(x *trial) {
	list := x.wires(1, true)
	defer hangUp(list)
	if len(list) == 0 {
		return
	}
	halfKeys, wholeKeys := newFresh(500, "g", 1<<50), newFresh(1000, "g", 1<<51)
	// Half and whole calls take turns, so that the store and the machine are the same for both. All counters fit into the
	// store.
	const turns = 2
	var half, whole time.Duration
	for range turns {
		half += x.groupCost(list[0], halfKeys) / turns
		whole += x.groupCost(list[0], wholeKeys) / turns
	}
	ratio := whole.Seconds() / max(half.Seconds(), 0.0005)
	x.note("20,000 hits take %v of CPU, %.1f times half of them", whole.Round(time.Millisecond/10), ratio)
	if most := pick(x, 60*time.Millisecond, 20*time.Millisecond); whole > most {
		x.suspect("20,000 hits in one group take %v of CPU, want at most %v", whole.Round(time.Millisecond), most)
	}
	if ratio > pick(x, 3.0, 2.2) {
		x.suspect("twice the hits in a group cost %.1f times as much CPU (%v and %v)", ratio, half, whole)
	}
}

// groupCost is the CPU time of the service for a call of descriptors with 20
// limits. Values differ, as they do between subjects.
func (x *trial) groupCost(w *wire, keys *fresh) time.Duration {
	const calls = 10 // The kernel counts CPU time in steps of 10 ms.
	before, err := x.service.proc.CPU()
	if err == nil {
		_, err = w.flood(calls, 1, func(int) []byte { return keys.fill() })
	}
	after, err2 := x.service.proc.CPU()
	if err != nil || err2 != nil {
		x.complain("a group: %v, %v", err, err2)
	}
	return (after - before) / calls
}

// wildcardRules are wildcards that nearly match anywhere in a value of one letter.
func wildcardRules() string {
	var b strings.Builder
	for i := range 200 {
		fmt.Fprintf(&b, "- {key: path, value: \"a*aaaaaaa%03d*aaaaaaab*a\", rate_limit: {unit: hour, requests_per_unit: "+
			"1000}}\n", i)
	}
	return b.String()
}

// longValues holds the service to one of two: it refuses long values, or twice the
// length costs twice as much.
func longValues(x *trial) {
	list := x.wires(1, true)
	defer hangUp(list)
	if len(list) == 0 {
		return
	}
	const length = 512 << 10
	half, _ := x.valueCost(list[0], length/2)
	whole, byStatus := x.valueCost(list[0], length)
	if len(byStatus) == 1 && byStatus["3"] > 0 {
		x.note("values of 512 KiB are refused")
		return
	}
	ratio := whole.Seconds() / max(half.Seconds(), 0.001)
	x.note("a call with 7 values of 512 KiB takes %v of CPU, %.1f times that of half the length; calls by grpc-status: %v",
		whole.Round(time.Millisecond/10), ratio, byStatus)
	if ratio > pick(x, 3.0, 2.2) {
		x.suspect("twice the length of values costs %.1f times as much CPU (%v and %v)", ratio, half, whole)
	}
}

// valueCost is the CPU time of the service for a call with 7 values of this length.
func (x *trial) valueCost(w *wire, length int) (time.Duration, map[string]int) {
	content := same(7, "path", strings.Repeat("a", length))
	calls := pick(x, 5, 40)
	before, err := x.service.proc.CPU()
	if err != nil {
		return 0, nil // it is gone, and that is noticed
	}
	byStatus, err := w.flood(calls, 2, func(int) []byte { return content })
	after, cpuErr := x.service.proc.CPU()
	if err != nil || cpuErr != nil {
		x.complain("long values: %v, %v", err, cpuErr)
	}
	return (after - before) / time.Duration(calls), byStatus
}
