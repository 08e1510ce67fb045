package integration

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"ratelimit/testbed/memcachedtest"
	"ratelimit/testbed/redistest"
)

// leaseTable, if set, makes the tests of leases try all limits and traffic, for a few minutes.
var leaseTable = os.Getenv("LEASES") != ""

// leaseRule is a limit that replicas share, some of which count it with leases.
type leaseRule struct {
	name, setting string        // setting is the start of the rate_limit
	limit, keys   int           // keys is how many counters are asked for in turn
	window        time.Duration // 0: one that outlasts the test
	refill        time.Duration // how long a gcra takes to gain a unit; 0 for windows
	onlyOurs      bool          // envoyproxy/ratelimit has no such limit
	sticky        bool          // all hits of a counter come to one replica
}

var leaseRules = []leaseRule{
	{name: "sec10", setting: "unit: second", limit: 10, keys: 1, window: time.Second},
	{name: "sec60", setting: "unit: second", limit: 60, keys: 1, window: time.Second},
	{name: "hot", setting: "unit: year", limit: 600, keys: 1},
	{name: "many", setting: "unit: year", limit: 10, keys: 20},
	{name: "sticky", setting: "unit: year", limit: 60, keys: 4, sticky: true},
	{name: "first", setting: "algorithm: first_hit_window, unit: year", limit: 60, keys: 1, onlyOurs: true},
	{
		name: "bucket", setting: "algorithm: gcra, burst: 59, period: 60s", limit: 60, keys: 1, refill: time.Second,
		onlyOurs: true,
	},
}

var longLeaseRules = []leaseRule{
	{name: "min1000", setting: "unit: minute", limit: 1000, keys: 1, window: time.Minute},
	{name: "min60", setting: "unit: minute", limit: 60, keys: 1, window: time.Minute},
	{name: "min10", setting: "unit: minute", limit: 10, keys: 20, window: time.Minute},
	{name: "minSticky", setting: "unit: minute", limit: 60, keys: 8, window: time.Minute, sticky: true},
	{name: "sec1000", setting: "unit: second", limit: 1000, keys: 1, window: time.Second},
}

// leaseRuleFile returns the rules as a file. counting is leased or exact.
func leaseRuleFile(counting string, list []leaseRule) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: d\ncounting: %s\ndescriptors:\n", counting)
	for _, r := range list {
		fmt.Fprintf(&b, "- {key: %s, rate_limit: {%s, requests_per_unit: %d}}\n", r.name, r.setting, r.limit)
	}
	return b.String()
}

// leaseCall is a call that was answered.
type leaseCall struct {
	rule, key      int
	sent, answered time.Time
	admitted       bool
}

// leaseFleet is what shares one store: three replicas with leases, one that counts exactly, and perhaps the commands of
// envoyproxy/ratelimit.
type leaseFleet struct {
	rules    []leaseRule
	leased   []*upstream
	exact    *upstream
	original func(key string, limit int) (admitted bool, err error) // nil: the store has none

	mu    sync.Mutex
	calls []leaseCall // guarded by mu
	errs  []error     // guarded by mu
}

// startLeases starts the replicas of a fleet.
func startLeases(t *testing.T, list []leaseRule, env ...string) *leaseFleet {
	t.Helper()
	f := &leaseFleet{rules: list}
	env = append(env, "REDIS_TIMEOUT=5s", "REDIS_PERSECOND_TIMEOUT=5s", "MEMCACHE_TIMEOUT=5s", "DISABLE_STATS=true")
	leased, exact := newRuleDir(t), newRuleDir(t)
	leased.put(t, "d.yaml", leaseRuleFile("leased", list))
	exact.put(t, "d.yaml", leaseRuleFile("exact", list))
	for range 3 {
		f.leased = append(f.leased, startWith(t, leased, env...))
	}
	f.exact = startWith(t, exact, env...)
	return f
}

// originalOn returns the commands of envoyproxy/ratelimit for one hit. index returns which of the servers has a key.
func originalOn(
	t *testing.T, index func(key string) int, servers ...*redistest.Server,
) func(key string, limit int) (bool, error) {
	t.Helper()
	clients := make([]*redistest.Client, len(servers))
	for i, s := range servers {
		clients[i] = s.Client(t)
	}
	var mu sync.Mutex
	return func(key string, limit int) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		client := clients[index(key)]
		n, err := client.Do("INCRBY", key, 1)
		if err != nil {
			return false, err
		}
		if _, err := client.Do("EXPIRE", key, 366*24*3600); err != nil {
			return false, err
		}
		count, ok := n.(int64)
		if !ok {
			return false, fmt.Errorf("INCRBY %s: %v", key, n)
		}
		return count <= int64(limit), nil
	}
}

// ask sends a hit on a counter to one member of the fleet, and records the answer.
func (f *leaseFleet) ask(t *testing.T, rule, key int) {
	r := &f.rules[rule]
	c := leaseCall{rule: rule, key: key, sent: time.Now()}
	members := len(f.leased)
	if f.exact != nil {
		members++
	}
	if f.original != nil && !r.onlyOurs {
		members++
	}
	member, err := rand.N(members), error(nil)
	if r.sticky {
		member = key % members
	}
	if member > len(f.leased) {
		length := int64(year)
		if r.window > 0 {
			length = int64(r.window / time.Second)
		}
		name := fmt.Sprintf("d_%s_%d_%d", r.name, key, c.sent.Unix()/length*length)
		c.admitted, err = f.original(name, r.limit)
	} else {
		replica := f.exact
		if member < len(f.leased) {
			replica = f.leased[member]
		}
		var answer *rlsv3.RateLimitResponse
		answer, err = replica.call(t, request("d", fmt.Sprintf("%s=%d", r.name, key)))
		c.admitted = answer.GetOverallCode() == rlsv3.RateLimitResponse_OK
	}
	c.answered = time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.errs = append(f.errs, err)
		return
	}
	f.calls = append(f.calls, c)
}

// drive sends hits to all counters for d, at an even pace: half as many again as pass, and in long windows that much in
// half of d.
func (f *leaseFleet) drive(t *testing.T, d time.Duration) {
	var all sync.WaitGroup
	begun := time.Now()
	for i, r := range f.rules {
		window := r.window
		if window == 0 {
			window = d / 2
		}
		pause := window * 2 / 3 / time.Duration(r.limit*r.keys)
		all.Go(func() {
			var calls sync.WaitGroup
			defer calls.Wait()
			for n := 0; time.Since(begun) < d; n++ {
				time.Sleep(time.Until(begun.Add(time.Duration(n) * pause)))
				calls.Go(func() { f.ask(t, i, n%r.keys) })
			}
		})
	}
	all.Wait()
	for _, err := range f.errs {
		t.Fatalf("%d calls failed, one with %v", len(f.errs), err)
	}
}

// leaseWindow is a window of a counter.
type leaseWindow struct {
	rule, key int
	start     time.Time // zero for a window that outlasts the test
}

// leaseCount is what was sent and admitted in a window. certain counts the admitted hits that were answered in it.
type leaseCount struct{ sent, admitted, certain int }

// windows returns what was counted in the windows that calls were sent in from begin to end.
func (f *leaseFleet) windows(begin, end time.Time) map[leaseWindow]*leaseCount {
	counts := make(map[leaseWindow]*leaseCount)
	for _, c := range f.calls {
		w, length := leaseWindow{rule: c.rule, key: c.key}, f.rules[c.rule].window
		if length > 0 {
			w.start = c.sent.Truncate(length)
			if w.start.Before(begin) || w.start.Add(length).After(end) {
				continue
			}
		}
		n := counts[w]
		if n == nil {
			n = new(leaseCount)
			counts[w] = n
		}
		n.sent++
		if c.admitted {
			n.admitted++
			if length == 0 || c.answered.Before(w.start.Add(length)) {
				n.certain++
			}
		}
	}
	return counts
}

// judge checks that no window of a counter has more than its limit. It returns the least share of the admissible hits
// of a rule that were admitted.
func (f *leaseFleet) judge(t *testing.T) (least float64) {
	t.Helper()
	begin, end := f.calls[0].sent, f.calls[0].answered
	for _, c := range f.calls {
		if c.sent.Before(begin) {
			begin = c.sent
		}
		if c.answered.After(end) {
			end = c.answered
		}
	}
	admissible, admitted := make([]int, len(f.rules)), make([]int, len(f.rules))
	for w, n := range f.windows(begin, end) {
		r, most := &f.rules[w.rule], f.rules[w.rule].limit
		if r.refill > 0 {
			most += int(end.Sub(begin)/r.refill) + 1
		}
		if n.certain > most {
			t.Errorf("%s %d from %v: %d hits were admitted, want at most %d", r.name, w.key, w.start, n.certain, most)
		}
		admissible[w.rule] += min(r.limit, n.sent)
		admitted[w.rule] += min(n.admitted, r.limit)
	}
	least = 1
	for i, r := range f.rules {
		share := float64(admitted[i]) / float64(max(admissible[i], 1))
		t.Logf("%s: %d admitted of %d (%.1f %%)", r.name, admitted[i], admissible[i], 100*share)
		if r.window == 0 || r.window >= time.Minute { // Shorter windows end while calls wait for a busy machine.
			least = min(least, share)
		}
	}
	return least
}

func firstServer(string) int { return 0 }

// sharedLeaseStores start the stores that replicas with leases share, and the replicas.
var sharedLeaseStores = map[string]func(*testing.T, []leaseRule) *leaseFleet{
	"redis": func(t *testing.T, list []leaseRule) *leaseFleet {
		server := redistest.Start(t, redistest.Options{})
		f := startLeases(t, list, "REDIS_URL="+server.Addr)
		f.original = originalOn(t, firstServer, server)
		return f
	},
	"split": func(t *testing.T, list []leaseRule) *leaseFleet {
		server, perSecond := redistest.Start(t, redistest.Options{}), redistest.Start(t, redistest.Options{})
		f := startLeases(t, list, "REDIS_URL="+server.Addr, "REDIS_PERSECOND=true", "REDIS_PERSECOND_URL="+perSecond.Addr)
		f.original = originalOn(t, func(key string) int {
			if strings.HasPrefix(key, "d_sec") {
				return 1
			}
			return 0
		}, server, perSecond)
		return f
	},
	"sentinel": func(t *testing.T, list []leaseRule) *leaseFleet {
		s := redistest.StartSentinel(t, redistest.SentinelOptions{})
		f := startLeases(t, list, "REDIS_TYPE=sentinel",
			"REDIS_URL="+s.PrimaryName+","+strings.Join(s.SentinelAddrs, ","))
		f.original = originalOn(t, firstServer, s.Primary(t))
		return f
	},
	"cluster": func(t *testing.T, list []leaseRule) *leaseFleet {
		cluster := redistest.StartCluster(t, redistest.ClusterOptions{})
		f := startLeases(t, list, "REDIS_TYPE=cluster", "REDIS_URL="+strings.Join(cluster.Addrs, ","))
		const slots = 16384
		nodes := make([]*redistest.Server, 3)
		for i := range nodes {
			nodes[i] = cluster.NodeForSlot(t, (slots*i+slots/2)/3)
		}
		f.original = originalOn(t, func(key string) int { return redistest.KeySlot(key) * 3 / slots }, nodes...)
		return f
	},
	"memcached": func(t *testing.T, list []leaseRule) *leaseFleet {
		list = slices.DeleteFunc(slices.Clone(list), func(r leaseRule) bool { return r.onlyOurs })
		return startLeases(t, list, "BACKEND_TYPE=memcache",
			"MEMCACHE_HOST_PORT="+memcachedtest.Start(t, memcachedtest.Options{}).Addr)
	},
}

// A hit that an exact replica or envoyproxy/ratelimit refuses counts, and so takes a unit that a lease gives back.
const (
	wantOfLeased = 0.995
	wantOfMixed  = 0.85
)

// mostlyAdmitted calls each until that share of the admissible hits was admitted, at most three times: a busy machine
// may keep replicas from giving back units before the last hit comes.
func mostlyAdmitted(t *testing.T, want float64, each func() (least float64)) {
	t.Helper()
	least := 0.0
	for range 3 {
		if least = each(); least >= want || t.Failed() {
			return
		}
	}
	t.Errorf("%.1f %% of the admissible hits were admitted, want at least %.1f %%", 100*least, 100*want)
}

// Replicas with leases, one without and envoyproxy/ratelimit's commands share counters, and admit no hit more than the
// limit, whatever the store.
func TestLeasesShareCounters(t *testing.T) {
	t.Parallel()
	for name, start := range sharedLeaseStores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mostlyAdmitted(t, wantOfMixed, func() float64 {
				f := start(t, leaseRules)
				f.drive(t, 4*time.Second)
				return f.judge(t)
			})
		})
	}
}

// Replicas that all have leases admit what one would alone.
func TestLeasesLoseNothing(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"redis", "memcached"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mostlyAdmitted(t, wantOfLeased, func() float64 {
				f := sharedLeaseStores[name](t, leaseRules)
				f.exact.stop(t)
				f.exact, f.original = nil, nil
				f.drive(t, 4*time.Second)
				return f.judge(t)
			})
		})
	}
}

// All limits and windows of a minute, for LEASES=1.
func TestLeasesTable(t *testing.T) {
	if !leaseTable {
		t.Skip("set LEASES=1 for it: it takes ten minutes")
	}
	for name, start := range sharedLeaseStores {
		t.Run(name, func(t *testing.T) {
			mostlyAdmitted(t, wantOfMixed, func() float64 {
				f := start(t, longLeaseRules)
				f.drive(t, 125*time.Second)
				return f.judge(t)
			})
		})
	}
}
