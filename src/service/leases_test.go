package service

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"ratelimit/src/operator"
	"ratelimit/testbed/redistest"
)

// spendingProxy is a proxy with one bucket, whose callers ask for far more than there is, until it calms down.
type spendingProxy struct {
	mu             sync.Mutex // guards the fields below
	isCalm         bool       // has no callers
	has            uint64     // units that it may still use
	used, reported uint64     // units
	assignments    int
}

// startSpending starts a proxy that uses a part of each assignment, at once. It ends with the test.
func startSpending(t *testing.T, addr, key string, part float64) *spendingProxy {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := pb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var ended sync.WaitGroup
	p := new(spendingProxy)
	t.Cleanup(func() {
		cancel()
		ended.Wait()
		_ = conn.Close()
	})
	ended.Go(func() {
		for stream.Send(p.report(key)) == nil {
			select {
			case <-time.After(200 * time.Millisecond):
			case <-ctx.Done():
				return
			}
		}
	})
	ended.Go(func() {
		for {
			message, err := stream.Recv()
			if err != nil {
				return
			}
			p.mu.Lock()
			for _, a := range message.BucketAction {
				p.has = uint64(a.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket().GetMaxTokens())
				if p.assignments++; !p.isCalm {
					uses := uint64(part * float64(p.has))
					p.used, p.has = p.used+uses, p.has-uses
				}
			}
			p.mu.Unlock()
		}
	})
	return p
}

func (p *spendingProxy) report(key string) *pb.RateLimitQuotaUsageReports {
	p.mu.Lock()
	defer p.mu.Unlock()
	usage := &pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
		BucketId: &pb.BucketId{Bucket: map[string]string{key: ""}}, NumRequestsAllowed: p.used - p.reported,
	}
	if p.reported = p.used; !p.isCalm {
		usage.NumRequestsDenied = 1000
	}
	return &pb.RateLimitQuotaUsageReports{
		Domain: "d", BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{usage},
	}
}

func (p *spendingProxy) state() (used, has uint64, assignments int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used, p.has, p.assignments
}

func (p *spendingProxy) calmDown() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.isCalm = true
}

// Quotas and hits of two replicas share a leased limit and never exceed it, and what a proxy leaves unused comes back.
func TestQuotasOfLeasedLimit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, redistest.Options{})
	for kind, limits := range map[string]string{
		"fixed_window":       "{unit: year, requests_per_unit: 2000}",
		"refused_hits_count": "{unit: year, requests_per_unit: 2000, count_blocked: true}",
		"first_hit_window":   "{unit: year, requests_per_unit: 2000, algorithm: first_hit_window}",
		"two_limits": "{unit: year, requests_per_unit: 2000}, " +
			"{unit: month, requests_per_unit: 2500, algorithm: first_hit_window}",
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			testQuotasOfLeasedLimit(t, server.Addr, kind, limits, kind == "refused_hits_count")
		})
	}
}

func testQuotasOfLeasedLimit(t *testing.T, redis, key, limits string, refusedHitsCount bool) {
	const most = 2000
	rules := "domain: d\nquota_buckets: true\ncounting: leased\ndescriptors: [{key: " + key + ", rate_limits: [" + limits + "]}]\n"
	var replicas [2]*service
	for i := range replicas {
		replicas[i] = launch(t, rules, "REDIS_URL="+redis, "REDIS_TIMEOUT=5s", "REPLICAS=2")
		replicas[i].until("ready", replicas[i].healthy)
	}
	proxies := []*spendingProxy{
		startSpending(t, replicas[0].address("grpc"), key, 1), startSpending(t, replicas[1].address("grpc"), key, 0.5),
		startSpending(t, replicas[0].address("grpc"), key, 0),
	}
	admitted := uint64(0)
	ask := func(n int) (isRefused bool) {
		t.Helper()
		for i := range n {
			code, err := replicas[i%2].post(key, "")
			if err != nil {
				t.Fatal(err)
			}
			if isRefused = code != http.StatusOK; !isRefused {
				admitted++
			}
		}
		return isRefused
	}
	sums := func() (used, has uint64) {
		used = admitted
		for _, p := range proxies {
			u, h, _ := p.state()
			used, has = used+u, has+h
		}
		return used, has
	}
	replicas[0].until("all proxies have units", func() bool {
		ask(2)
		return !slices.ContainsFunc(proxies, func(p *spendingProxy) bool { _, _, n := p.state(); return n == 0 })
	})
	replicas[0].until("nothing is left", func() bool { return ask(10) })
	used, left := sums() // Units may go from one proxy to another meanwhile, so left is about what they have.
	if used > most || left < most/20 {
		t.Errorf("%d units are used and proxies have %d, of %d", used, left, most)
	}
	for _, p := range proxies {
		p.calmDown()
	}
	if !refusedHitsCount { // Those would use up what comes back.
		replicas[0].until("hits use what the proxies do not need", func() bool {
			ask(10)
			now, _ := sums()
			return now >= used+left/4
		})
	}
	ask(20)
	if used, has := sums(); used > most {
		t.Errorf("%d units are used, %d by hits, and proxies have %d; %d may", used, admitted, has, most)
	}
}

// Callers of all protocols share a leased limit on two replicas: as much passes as it has, and what RESP gives back.
func TestProtocolsOfLeasedLimit(t *testing.T) {
	t.Parallel()
	const most = 500
	server := redistest.Start(t, redistest.Options{})
	var replicas [2]*service
	var resp [2]*respSession
	for i := range replicas {
		replicas[i] = launch(t, "domain: d\ncounting: leased\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 500}}]",
			"REDIS_URL="+server.Addr, "REDIS_TIMEOUT=5s", "REPLICAS=2", "RESP_PORT=0", "DIVVY_PORT=0", "DIVVY_DOMAIN=d")
		replicas[i].until("ready", replicas[i].healthy)
		resp[i] = replicas[i].redisClient(nil)
	}
	by := make(map[string]int)
	for refusedRounds := 0; refusedRounds < 3; refusedRounds++ {
		for i, s := range replicas {
			for _, n := range []int{5, 1} {
				if strings.HasPrefix(resp[i].ask(fmt.Sprintf("RATELIMIT d ip 1 HITS %d", n)), "*5 :0 ") {
					by["resp"] += n
					refusedRounds = 0
				}
			}
			if by["resp"] < most/4 {
				if got := resp[i].ask("RATELIMIT d ip 1 HITS 2 REFUND"); !strings.HasPrefix(got, "*5 :0 ") {
					t.Fatalf("a refund is answered %s", got)
				}
				by["refunds"] += 2
			}
			if n := strings.Count(s.say(strings.Repeat("HIT ip=1\n", 7), nil), "OK true "); n > 0 {
				by["divvy"] += n
				refusedRounds = 0
			}
			if s.ask("1") == http.StatusOK {
				by["json"]++
				refusedRounds = 0
			}
		}
	}
	if n := by["resp"] + by["divvy"] + by["json"] - by["refunds"]; n != most || len(by) != 4 {
		t.Errorf("%d of %d units pass: %v", n, most, by)
	}
	for _, s := range replicas { // The page of each has its lease.
		rates := api[operator.Rates](s, "/api/rates")
		if len(rates.Rules) != 1 || rates.Rules[0].Leases == nil || rates.Rules[0].Leases.Counters != 1 {
			t.Errorf("rates: %+v", rates.Rules)
		}
	}
}
