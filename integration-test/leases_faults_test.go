package integration

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// leasedLimit is a limit of a year that three replicas lease from one Redis.
type leasedLimit struct {
	server   *redistest.Server
	rules    ruleDir
	replicas []*upstream
}

// startLeasedLimit starts the replicas, which expect each other. setting is more of the rate_limit.
func startLeasedLimit(t *testing.T, n, limit int, setting string) *leasedLimit {
	t.Helper()
	l := &leasedLimit{server: redistest.Start(t, redistest.Options{}), rules: newRuleDir(t)}
	l.set(t, limit, setting)
	for range n {
		l.replicas = append(l.replicas, startWith(t, l.rules, "REDIS_URL="+l.server.Addr, "REDIS_TIMEOUT=5s",
			fmt.Sprint("REPLICAS=", n)))
	}
	return l
}

func (l *leasedLimit) set(t *testing.T, limit int, setting string) {
	t.Helper()
	l.rules.put(t, "d.yaml", fmt.Sprintf("domain: d\ndescriptors:\n- {key: a, rate_limit: {requests_per_unit: %d, "+
		"counting: leased%s}}\n", limit, setting))
}

const ofYear = ", unit: year"

// hit sends a request for one unit to a replica, and reports whether it is admitted.
func (l *leasedLimit) hit(t *testing.T, replica int) bool {
	t.Helper()
	answer, err := l.replicas[replica].call(t, request("d", "a=1"))
	if err != nil {
		t.Fatal(err)
	}
	return answer.GetOverallCode() == rlsv3.RateLimitResponse_OK
}

// hits sends n requests to a replica, all of which must be admitted.
func (l *leasedLimit) hits(t *testing.T, replica, n int) {
	t.Helper()
	for i := range n {
		if !l.hit(t, replica) {
			t.Fatalf("request %d of %d to replica %d is refused", i+1, n, replica)
		}
	}
}

// taken returns what is counted in Redis.
func (l *leasedLimit) taken(t *testing.T) int {
	t.Helper()
	value := l.server.Do(t, "GET", fmt.Sprintf("d_a_1_%d", time.Now().Unix()/year*year))
	n, err := strconv.Atoi(fmt.Sprint(value))
	if err != nil {
		t.Fatalf("the counter is %v", value)
	}
	return n
}

// useUp sends requests to these replicas in turn until they have admitted want, and then as many as show that no more
// pass. It returns how many were admitted: less than want only if that does not happen in time.
func (l *leasedLimit) useUp(t *testing.T, want int, replicas ...int) (admitted int) {
	t.Helper()
	_ = harness.Retry(patience, func() error { // The caller compares what was admitted.
		for _, r := range replicas {
			if l.hit(t, r) {
				admitted++
			}
		}
		if admitted < want {
			return errors.New("some are missing")
		}
		return nil
	})
	for range 10 {
		for _, r := range replicas {
			if l.hit(t, r) {
				admitted++
			}
		}
	}
	return admitted
}

// The units of a replica that is stopped are back in the store before it ends, and those of one that is killed are lost
// until the window ends. Others use what is left, to the hit.
func TestLeasesOfEndedReplicas(t *testing.T) {
	t.Parallel()
	const limit = 200
	l := startLeasedLimit(t, 3, limit, ofYear)
	l.hits(t, 0, 5)
	if n := l.taken(t); n <= 5 {
		t.Fatalf("%d units are taken for 5 requests: there is no lease", n)
	}
	l.replicas[0].stop(t)
	if n := l.taken(t); n != 5 {
		t.Errorf("%d units are taken after the replica was stopped, want 5", n)
	}
	before := l.taken(t)
	l.hits(t, 1, 5)
	l.replicas[1].kill(t)
	lost := l.taken(t) - before - 5
	if lost <= 0 {
		t.Errorf("a replica that was killed had %d unused units", lost)
	}
	if want, n := limit-10-lost, l.useUp(t, limit-10-lost, 2); n != want {
		t.Errorf("%d more are admitted, want %d: all but the %d lost ones", n, want, lost)
	}
}

// In the window after a replica was killed, the others have the whole limit.
func TestLeasesAfterCrash(t *testing.T) {
	t.Parallel()
	const limit, period = 40, 3 * time.Second
	l := startLeasedLimit(t, 3, limit, fmt.Sprint(", period: ", period))
	l.hits(t, 0, 1)
	l.replicas[0].kill(t)
	harness.Await(t, patience, "a window admits the limit", func() error {
		start := time.Now().Truncate(period).Add(period)
		time.Sleep(time.Until(start))
		admitted := 0
		for n := 0; ; n++ {
			sent := time.Now()
			passes := l.hit(t, 1+n%2)
			if time.Since(start) >= period || sent.Before(start) {
				break
			}
			if passes {
				admitted++
			} else if admitted == limit {
				break
			}
		}
		if admitted > limit {
			return harness.Permanent{Err: fmt.Errorf("%d hits of a window were admitted, want %d", admitted, limit)}
		} else if admitted < limit {
			return fmt.Errorf("%d hits were admitted, want %d", admitted, limit)
		}
		return nil
	})
}

// After a limit is lowered or its counter is reset, replicas with units of it admit together what the limit says.
func TestLeasesOfChangedCounters(t *testing.T) {
	t.Parallel()
	const limit, lowered = 300, 100
	l := startLeasedLimit(t, 3, limit, ofYear)
	for r := range l.replicas {
		l.hits(t, r, 12)
	}
	l.set(t, lowered, ofYear)
	for _, u := range l.replicas {
		u.until(t, "the limit is lowered", func() error {
			answer, err := u.call(t, request("d", "a=2"))
			if err != nil {
				return err
			}
			if got := answer.GetStatuses()[0].GetCurrentLimit().GetRequestsPerUnit(); got != lowered {
				return fmt.Errorf("it is %d", got)
			}
			return nil
		})
	}
	if n := 36 + l.useUp(t, lowered-36, 0, 1, 2); n != lowered {
		t.Errorf("%d are admitted, want %d: the lowered limit", n, lowered)
	}

	reset := func() (held int) {
		taken := l.taken(t)
		if text, err := run("counter", "reset", "d", "a=1", "--address", l.replicas[0].debug); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		return taken
	}
	reset()
	for r := range l.replicas {
		l.hits(t, r, 5)
	}
	held := reset() - 15
	if held <= 0 {
		t.Errorf("replicas held %d unused units at the reset", held)
	}
	// Units that a replica could not give back in time were taken before the reset, and may be used after it.
	if n := l.useUp(t, lowered, 0, 1, 2); n < lowered || n > lowered+held {
		t.Errorf("%d are admitted after the reset, want %d, and %d more at most", n, lowered, held)
	}
}

// A Redis that is far away delays the first hit of a counter only: replicas take more units before they need them.
func TestLeasesFarStore(t *testing.T) {
	t.Parallel()
	for _, away := range []time.Duration{2 * time.Millisecond, 80 * time.Millisecond} {
		t.Run(away.String(), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, redistest.Options{})
			proxy := harness.StartProxy(t, server.Addr)
			proxy.Latency(away)
			rules := newRuleDir(t)
			rules.put(t, "d.yaml", "domain: d\ncounting: leased\n"+
				"descriptors: [{key: a, rate_limit: {unit: minute, requests_per_unit: 600}}]\n")
			var replicas []*upstream
			for range 3 {
				replicas = append(replicas, startWith(t, rules, "REDIS_URL="+proxy.Addr, "REDIS_TIMEOUT=5s", "REPLICAS=3"))
			}
			harness.Await(t, 80*time.Second, "hits in one minute that wait for no store", func() error {
				minute := time.Now().Truncate(time.Minute)
				if err := askAhead(t, server, replicas); err != nil && time.Now().Truncate(time.Minute).Equal(minute) {
					return harness.Permanent{Err: err}
				} else if err != nil {
					return fmt.Errorf("the minute ended: %w", err)
				}
				return nil
			})
		})
	}
}

// askAhead sends 90 hits to each of three replicas, which take a sixth of what is left of 600 units ahead. It returns
// an error if more than the first hit of a replica waited for the store, or the hits cost many commands.
func askAhead(t *testing.T, server *redistest.Server, replicas []*upstream) error {
	t.Helper()
	commands := func() (calls int) {
		_, _ = fmt.Sscanf(server.Info(t, "commandstats")["cmdstat_incrby"], "calls=%d,", &calls) // 0 before the first
		return calls
	}
	const each = 90
	var sent [3]int64
	for i, u := range replicas {
		sent[i] = u.stats(t)["ratelimit.leases.sent"]
	}
	before := commands()
	for n := range 3 * each {
		time.Sleep(2 * time.Millisecond) // so that 50 hits, a half of a lease, outlast the way to the store
		if _, err := replicas[n%3].call(t, request("d", "a=1")); err != nil {
			return err
		}
	}
	for i, u := range replicas {
		if n := u.stats(t)["ratelimit.leases.sent"] - sent[i]; n != 1 {
			return fmt.Errorf("replica %d: %d of %d hits waited for Redis, want 1", i, n, each)
		}
	}
	if n := commands() - before; n < 6 || n > each/3 {
		return fmt.Errorf("%d hits took %d INCRBY, want at least two leases a replica, and at most %d", 3*each, n, each/3)
	}
	return nil
}

// A hit for which the store has no units, while another replica holds some, waits until that gives them back, or is
// refused at once.
func TestOnContention(t *testing.T) {
	t.Parallel()
	const limit = 40
	for _, tt := range []struct {
		mode  string
		waits bool
	}{{"wait", true}, {"refuse", false}} {
		t.Run(tt.mode, func(t *testing.T) {
			t.Parallel()
			l := startLeasedLimit(t, 2, limit, ofYear+", on_contention: "+tt.mode)
			l.hits(t, 0, 1)
			admitted := 1
			for l.hit(t, 1) {
				admitted++
			}
			if tt.waits && admitted != limit {
				t.Errorf("a hit was refused after %d, want %d", admitted, limit)
			}
			if n := l.replicas[1].stats(t)["ratelimit.leases.waited"]; n > 0 && !tt.waits {
				t.Errorf("%d hits waited", n)
			}
			if n := admitted + l.useUp(t, limit-admitted, 0, 1); n != limit {
				t.Errorf("%d are admitted, want %d", n, limit)
			}
		})
	}
}
