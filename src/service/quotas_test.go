package service

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"ratelimit/testbed/redistest"
)

// quotaProxy is a stream of a proxy that asks for a bucket with each of some keys, again and again.
type quotaProxy struct {
	mu     sync.Mutex
	action map[string]string // the last action on each bucket: its units, or a blanket rule.
	count  map[string]int    // how many actions there were.
	err    error             // how the stream ended.
}

// connectProxy starts a proxy whose callers ask for far more than there is. It ends with the test.
func connectProxy(t *testing.T, addr string, keys ...string) *quotaProxy {
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
	p := &quotaProxy{action: make(map[string]string), count: make(map[string]int)}
	var ended sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		ended.Wait()
		_ = conn.Close()
	})
	report := &pb.RateLimitQuotaUsageReports{Domain: "d"}
	for _, key := range keys {
		report.BucketQuotaUsages = append(report.BucketQuotaUsages, &pb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: &pb.BucketId{Bucket: map[string]string{key: ""}}, NumRequestsDenied: 1000,
		})
	}
	ended.Go(func() {
		for tick := time.NewTicker(200 * time.Millisecond); stream.Send(report) == nil; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				tick.Stop()
				return
			}
		}
	})
	ended.Go(func() {
		for {
			message, err := stream.Recv()
			p.note(message, err)
			if err != nil {
				return
			}
		}
	})
	return p
}

func (p *quotaProxy) note(message *pb.RateLimitQuotaResponse, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
	for _, a := range message.GetBucketAction() {
		strategy := a.GetQuotaAssignmentAction().GetRateLimitStrategy()
		text := strategy.GetBlanketRule().String()
		if tokens := strategy.GetTokenBucket(); tokens != nil {
			text = fmt.Sprint(tokens.MaxTokens)
		}
		for key := range a.BucketId.Bucket {
			p.action[key] = text
			p.count[key]++
		}
	}
}

// state returns the last actions, and how many there were.
func (p *quotaProxy) state() (map[string]string, map[string]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.action), maps.Clone(p.count), p.err
}

// A stream lives on while its Redis is away: on_store_failure decides what the proxy gets. It gets units from Redis
// again when that is back.
func TestQuotasWithoutRedis(t *testing.T) {
	t.Parallel()
	eachEngine(t, func(t *testing.T, engine string) {
		t.Parallel()
		server := redistest.Start(t, redistest.Options{})
		modes := []string{"error", "deny", "allow", "local"}
		rules := "domain: d\nquota_buckets: true\ndescriptors:\n"
		for _, mode := range modes {
			rules += fmt.Sprintf("- {key: %s, rate_limit: {unit: second, requests_per_unit: 100, on_store_failure: %s}}\n",
				mode, mode)
		}
		s := launch(t, rules, engine, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=500ms", "REPLICAS=2")
		s.until("ready", s.healthy)
		p := connectProxy(t, s.address("grpc"), modes...)
		until := func(what string, want map[string]string) map[string]int {
			t.Helper()
			var count map[string]int
			s.until(what, func() bool {
				got, n, err := p.state()
				if err != nil {
					t.Fatalf("%s: the stream ended: %v", what, err)
				}
				count = n
				return maps.Equal(got, want)
			})
			return count
		}
		whole := map[string]string{"error": "100", "deny": "100", "allow": "100", "local": "100"}
		until("all have the limit", whole)
		server.Kill()
		before := until("on_store_failure decides",
			map[string]string{"error": "100", "deny": "DENY_ALL", "allow": "100", "local": "50"})
		s.until("more windows begin", func() bool { _, n, _ := p.state(); return n["allow"] > before["allow"]+4 })
		if _, after, _ := p.state(); after["error"] != before["error"] {
			t.Errorf("without Redis the proxy got %d new assignments of a rule with on_store_failure: error",
				after["error"]-before["error"])
		}
		server.Restart(t)
		until("all have the limit again", whole)
		s.until("all get units again", func() bool { _, n, _ := p.state(); return n["error"] > before["error"] })
	})
}

// Proxies get units of a limit that was changed at run time, and of the rule's limit again when the change ends.
func TestQuotasOfChangedLimits(t *testing.T) {
	t.Parallel()
	s := launch(t, "domain: d\nquota_buckets: true\ndescriptors:\n"+
		"- {key: user, rate_limit: {unit: second, requests_per_unit: 100}}\n"+
		"- {key: other, rate_limit: {unit: second, requests_per_unit: 100}}\n", "DEBUG_PORT=0")
	s.until("ready", s.healthy)
	p := connectProxy(t, s.address("grpc"), "user", "other")
	until := func(what string, want map[string]string) {
		t.Helper()
		s.until(what, func() bool {
			got, _, err := p.state()
			if err != nil {
				t.Fatalf("%s: the stream ended: %v", what, err)
			}
			return maps.Equal(got, want)
		})
	}
	until("both have the limit", map[string]string{"user": "100", "other": "100"})
	change := func(body string) {
		t.Helper()
		resp, err := http.Post("http://"+s.address("debug")+"/api/limits", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s", body, resp.StatusCode, text)
		}
	}
	change(`{"action": "set", "domain": "d", "subject": "user", "limit": "x3", "reason": "test", "for": "3s"}`)
	until("the change gives more", map[string]string{"user": "300", "other": "100"})
	until("the change has ended", map[string]string{"user": "100", "other": "100"})
	change(`{"action": "set", "domain": "d", "subject": "user", "limit": "ban", "reason": "test"}`)
	until("the ban gives nothing", map[string]string{"user": "DENY_ALL", "other": "100"})
	change(`{"action": "unset", "domain": "d", "subject": "user"}`)
	until("the limit is back", map[string]string{"user": "100", "other": "100"})
}
