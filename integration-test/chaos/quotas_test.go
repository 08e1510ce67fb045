package chaos

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"ratelimit/testbed/harness"
)

const (
	proxyCount  = 2                      // proxies share each quota
	reportEvery = 250 * time.Millisecond // of a proxy
)

// units are what a proxy got of a key.
type units struct {
	key   int // of proxies.keys
	at    time.Time
	count int
}

// proxies are Envoys that use all units at once, and want more.
type proxies struct {
	keys  []key
	stop  context.CancelFunc
	ended sync.WaitGroup

	mu         sync.Mutex // guards what follows
	began      time.Time
	got        []units
	streamEnds []error
}

// connectProxies starts the proxies. Without keys they do nothing.
func connectProxies(t *testing.T, addr string, keys []key) *proxies {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	q := &proxies{keys: keys, stop: stop, began: time.Now()}
	t.Cleanup(q.end)
	if len(keys) == 0 {
		return q
	}
	for range proxyCount {
		conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		q.ended.Go(func() {
			used := make([]uint64, len(keys)) // what is not reported yet.
			for ctx.Err() == nil {
				err := q.stream(ctx, quotapb.NewRateLimitQuotaServiceClient(conn), used)
				q.mu.Lock()
				if ctx.Err() == nil {
					q.streamEnds = append(q.streamEnds, err)
				}
				q.mu.Unlock()
				select {
				case <-time.After(reportEvery):
				case <-ctx.Done():
				}
			}
		})
	}
	return q
}

// stream is one stream of a proxy, until it ends.
func (q *proxies) stream(ctx context.Context, client quotapb.RateLimitQuotaServiceClient, used []uint64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.StreamRateLimitQuotas(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	messages, failed := make(chan *quotapb.RateLimitQuotaResponse), make(chan error, 1)
	go func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case messages <- m:
			case <-ctx.Done():
				failed <- ctx.Err()
				return
			}
		}
	}()
	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	for {
		_ = stream.Send(q.report(used)) // Recv says why, if it fails.
		for waits := true; waits; {
			select {
			case <-tick.C:
				waits = false
			case m := <-messages:
				q.use(m, used)
			case err := <-failed:
				return err
			}
		}
	}
}

// report is a report of what was used since the last one, and that callers wanted more.
func (q *proxies) report(used []uint64) *quotapb.RateLimitQuotaUsageReports {
	report := &quotapb.RateLimitQuotaUsageReports{Domain: quotaDomain}
	for i, k := range q.keys {
		report.BucketQuotaUsages = append(report.BucketQuotaUsages, &quotapb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId:           &quotapb.BucketId{Bucket: map[string]string{k.rule.name: k.value}},
			NumRequestsAllowed: used[i], NumRequestsDenied: limit,
		})
		used[i] = 0
	}
	return report
}

// use uses the new units of a message: those that follow a DENY_ALL.
func (q *proxies) use(m *quotapb.RateLimitQuotaResponse, used []uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	wasEmptied := false
	for _, a := range m.BucketAction {
		strategy := a.GetQuotaAssignmentAction().GetRateLimitStrategy()
		if n := int(strategy.GetTokenBucket().GetMaxTokens()); wasEmptied && n > 0 {
			i := slices.IndexFunc(q.keys, func(k key) bool { return a.BucketId.Bucket[k.rule.name] == k.value })
			used[i] += uint64(n)
			q.got = append(q.got, units{i, time.Now(), n})
		}
		wasEmptied = strategy.GetBlanketRule() == typev3.RateLimitStrategy_DENY_ALL
	}
}

// end ends all streams, and waits for that.
func (q *proxies) end() {
	q.stop()
	q.ended.Wait()
}

// awaitUnits waits until the proxies have got units of each key since an instant, or for a deadline.
func (q *proxies) awaitUnits(since time.Time) {
	_ = harness.Retry(harness.Deadline, func() error { // judgeQuotas says what came of it.
		for i := range q.keys {
			if _, ok := q.firstUnits(i, since); !ok {
				return errNotYet
			}
		}
		return nil
	})
}

// firstUnits is when the proxies got the first units of a key since an instant.
func (q *proxies) firstUnits(k int, since time.Time) (time.Time, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	i := slices.IndexFunc(q.got, func(u units) bool { return u.key == k && !u.at.Before(since) })
	if i < 0 {
		return time.Time{}, false
	}
	return q.got[i].at, true
}

// judgeQuotas holds what the proxies got to the guarantee of quotas. Their streams end only with the service.
func (c *cell) judgeQuotas(q *proxies) {
	for i, k := range q.keys {
		got := slices.DeleteFunc(slices.Clone(q.got), func(u units) bool { return u.key != i })
		if f := fullestQuota(c.fault.allowance(k.rule), q.began, got); f.exceeded() {
			c.complain("%s, %s: proxies got %d units where %d may be", k.rule.name, k.value, f.admitted, f.most)
		}
		if first, ok := q.firstUnits(i, c.at.recovery); !ok || first.Sub(c.at.recovery) > mostRecovery {
			c.complain("%s, %s: proxies got no units within %v of the recovery", k.rule.name, k.value, mostRecovery)
		}
	}
	if len(q.streamEnds) > 0 && c.fault.restarts == 0 {
		c.complain("a stream of quotas ended: %v", q.streamEnds[0])
	}
}

// fullestQuota is the fullest row of windows, or the first that is too full. Units that arrive in a window were charged
// in it, or in the one before. When proxies began, there was none before.
func fullestQuota(a allowance, began time.Time, got []units) (worst fullness) {
	first, _ := window.windowAt(began)
	inWindow := make(map[int]int)
	last := 0
	for _, u := range got {
		start, _ := window.windowAt(u.at)
		last = int(start.Sub(first) / period)
		inWindow[last] += u.count
	}
	worst.most = int(a) * limit
	for from := 0; from <= last; from++ {
		f := fullness{}
		if from > 0 {
			f.most = int(a) * limit
		}
		for to := from; to <= last; to++ {
			f.admitted, f.most = f.admitted+inWindow[to], f.most+int(a)*limit
			if f.fuller(worst) {
				worst = f
			}
		}
	}
	return worst
}

// The oracle of quotas, by the units that arrive in each window.
func TestFullestQuota(t *testing.T) {
	t.Parallel()
	began, _ := window.windowAt(midnight)
	for _, tt := range []struct {
		a    allowance
		got  []int // in each window
		want fullness
	}{
		{1, []int{10, 20, 20}, fullness{50, 60}},
		{1, []int{20, 20, 20}, fullness{20, 20}},
		{1, []int{21}, fullness{21, 20}},
		{1, []int{0, 40, 20}, fullness{40, 40}}, // The first 20 arrive late.
		{1, []int{0, 40, 21}, fullness{61, 60}},
		{1, []int{0, 0, 0, 41}, fullness{41, 40}},
		{1, []int{0, 0, 0, 30, 30}, fullness{60, 60}},
		{2, []int{40, 40}, fullness{40, 40}},
		{2, []int{40, 41}, fullness{81, 80}},
	} {
		var got []units
		for i, n := range tt.got {
			got = append(got, units{at: began.Add(time.Duration(i)*period + time.Second), count: n})
		}
		if f := fullestQuota(tt.a, began.Add(time.Second/2), got); f != tt.want {
			t.Errorf("%d times the limit, %d: %v, want %v", tt.a, tt.got, f, tt.want)
		}
	}
}
