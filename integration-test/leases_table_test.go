package integration

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"ratelimit/testbed/redistest"
)

// leaseTraffic is the requests on the counters of one limit a minute.
type leaseTraffic struct {
	limit, keys int
	kind        string // "hot", "zipf" or "cold"
	sticky      bool   // all requests of a counter come to one replica
}

func (l *leaseTraffic) name() string { return fmt.Sprintf("%s%d%t", l.kind, l.limit, l.sticky) }

// amount is the units of a request: large limits are used up by fewer requests.
func (l *leaseTraffic) amount() int { return max(1, l.limit/2000) }

// perMinute is how many requests there are: one and a half times what passes on the busiest counter, or two for each
// counter.
func (l *leaseTraffic) perMinute() int {
	busiest := float64(l.limit) * 1.5 / float64(l.amount())
	switch l.kind {
	case "zipf":
		sum := 0.0
		for n := range l.keys {
			sum += 1 / float64(n+1)
		}
		return int(busiest * sum)
	case "cold":
		return 2 * l.keys
	}
	return int(busiest)
}

// key returns the counter of request n.
func (l *leaseTraffic) key(n int) int {
	if l.kind != "zipf" {
		return n % l.keys
	}
	for { // Key k is wanted 1/(k+1) times as often as key 0.
		if k := rand.N(l.keys); rand.Float64() < 1/float64(k+1) {
			return k
		}
	}
}

func allLeaseTraffic() (all []leaseTraffic) {
	for _, limit := range []int{10, 60, 1_000, 100_000} {
		for _, sticky := range []bool{false, true} {
			all = append(all, leaseTraffic{limit, 1, "hot", sticky}, leaseTraffic{limit, 20, "zipf", sticky},
				leaseTraffic{limit, 200, "cold", sticky})
		}
	}
	return all
}

// tableWindow is a minute of a counter, and tableCount the units that were sent and admitted in it.
type tableWindow struct {
	traffic, key int
	start        time.Time
}

type tableCount struct{ sent, admitted, certain int }

// leaseTableRun sends all traffic to n replicas for three minutes.
type leaseTableRun struct {
	traffic  []leaseTraffic
	replicas []*upstream
	begun    time.Time

	mu      sync.Mutex
	windows map[tableWindow]*tableCount // guarded by mu
	errs    []error                     // guarded by mu
}

func (r *leaseTableRun) ask(t *testing.T, traffic, key int) {
	l := &r.traffic[traffic]
	replica := rand.N(len(r.replicas))
	if l.sticky {
		replica = key % len(r.replicas)
	}
	req := request("d", fmt.Sprintf("%s=%d", l.name(), key))
	req.HitsAddend = uint32(l.amount())
	sent := time.Now()
	answer, err := r.replicas[replica].call(t, req)
	answered := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	w := tableWindow{traffic, key, sent.Truncate(time.Minute)}
	n := r.windows[w]
	if n == nil {
		n = new(tableCount)
		r.windows[w] = n
	}
	if n.sent += l.amount(); answer.GetOverallCode() == rlsv3.RateLimitResponse_OK {
		if n.admitted += l.amount(); answered.Before(w.start.Add(time.Minute)) {
			n.certain += l.amount()
		}
	}
}

// drive sends all traffic for d, at an even pace.
func (r *leaseTableRun) drive(t *testing.T, d time.Duration) {
	var all sync.WaitGroup
	r.begun = time.Now()
	for i := range r.traffic {
		l := &r.traffic[i]
		all.Go(func() {
			var calls sync.WaitGroup
			defer calls.Wait()
			for n := 0; time.Since(r.begun) < d; n++ {
				time.Sleep(time.Until(r.begun.Add(time.Duration(n) * time.Minute / time.Duration(l.perMinute()))))
				calls.Go(func() { r.ask(t, i, l.key(n)) })
			}
		})
	}
	all.Wait()
}

// refused returns by traffic which part of the admissible units was refused in whole minutes. It reports windows above
// the limit.
func (r *leaseTableRun) refused(t *testing.T) []float64 {
	t.Helper()
	end := time.Now()
	admissible, admitted := make([]int, len(r.traffic)), make([]int, len(r.traffic))
	for w, n := range r.windows {
		limit := r.traffic[w.traffic].limit
		if n.certain > limit {
			t.Errorf("%s, key %d: %d units were admitted", r.traffic[w.traffic].name(), w.key, n.certain)
		}
		if w.start.Before(r.begun) || w.start.Add(time.Minute).After(end) {
			continue
		}
		admissible[w.traffic] += min(limit, n.sent)
		admitted[w.traffic] += min(limit, n.admitted)
	}
	parts := make([]float64, len(r.traffic))
	for i := range parts {
		parts[i] = 1 - float64(admitted[i])/float64(max(admissible[i], 1))
	}
	return parts
}

// TestLeasesRefuseFew sends hot, Zipf and cold traffic, spread and sticky, to 2, 4 and 8 replicas of one Redis, with
// limits of 10 to 100,000 a minute, for LEASES=1. It writes which part of what could pass is refused: the table of
// docs/leases.md.
func TestLeasesRefuseFew(t *testing.T) {
	if !leaseTable {
		t.Skip("set LEASES=1 for it: it takes ten minutes")
	}
	const most = 0.005
	for _, n := range []int{2, 4, 8} {
		t.Run(fmt.Sprint(n, " replicas"), func(t *testing.T) {
			server := redistest.Start(t, redistest.Options{})
			run := &leaseTableRun{traffic: allLeaseTraffic(), windows: make(map[tableWindow]*tableCount)}
			rules := newRuleDir(t)
			var text strings.Builder
			text.WriteString("domain: d\ncounting: leased\ndescriptors:\n")
			for _, l := range run.traffic {
				fmt.Fprintf(&text, "- {key: %s, rate_limit: {unit: minute, requests_per_unit: %d}}\n", l.name(), l.limit)
			}
			rules.put(t, "d.yaml", text.String())
			for range n {
				run.replicas = append(run.replicas, startWith(t, rules, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=5s",
					fmt.Sprint("REPLICAS=", n), "DISABLE_STATS=true"))
			}
			run.drive(t, time.Until(time.Now().Truncate(time.Minute).Add(3*time.Minute+time.Second)))
			if len(run.errs) > 0 {
				t.Fatalf("%d calls failed, one with %v", len(run.errs), run.errs[0])
			}
			for i, part := range run.refused(t) {
				l := &run.traffic[i]
				t.Logf("limit %d, %s, sticky %t: %.2f %% refused", l.limit, l.kind, l.sticky, 100*part)
				if part > most {
					t.Errorf("limit %d, %s, sticky %t: %.2f %% are refused, want at most %.1f %%", l.limit, l.kind, l.sticky,
						100*part, 100*most)
				}
			}
		})
	}
}
