package service

import (
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"ratelimit/src/operator"
	"ratelimit/src/quota"
)

const quotaRules = `
domain: q
quota_buckets: true
descriptors:
  - key: env
    descriptors: [{key: name, rate_limit: {unit: year, requests_per_unit: 1000}}]
`

// quotaReport is a report of one bucket.
func quotaReport(allowed, denied uint64, bucket map[string]string) *pb.RateLimitQuotaUsageReports {
	return &pb.RateLimitQuotaUsageReports{
		Domain: "q",
		BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{{
			BucketId: &pb.BucketId{Bucket: bucket}, TimeElapsed: durationpb.New(time.Second), NumRequestsAllowed: allowed,
			NumRequestsDenied: denied,
		}},
	}
}

// What a proxy reports is in /api/quotas, in the rates, among subjects and denials, and in the metrics.
func TestQuotaUsage(t *testing.T) {
	t.Parallel()
	s := launch(t, quotaRules, "DISABLE_STATS=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0")
	s.until("ready", s.healthy)
	if st := api[operator.State](s, "/api/state"); st.Quotas != nil {
		t.Errorf("without proxies: %+v", st.Quotas)
	}
	conn, err := grpc.NewClient(s.address("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := pb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	send := func(allowed, denied uint64, bucket map[string]string) {
		t.Helper()
		if err := stream.Send(quotaReport(allowed, denied, bucket)); err != nil {
			t.Fatal(err)
		}
	}
	web := map[string]string{"name": "web", "env": "prod"}
	send(0, 1, web)
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	send(60, 40, web)
	send(7, 2, map[string]string{"other": "x"})
	s.until("all reports", func() bool {
		_, page := s.get("prometheus", "/metrics")
		return strings.Contains(page, `ratelimit_quota_requests_total{domain="q",result="denied",rule=""} 2`)
	})
	v := api[operator.Quotas](s, "/api/quotas?domain=q&bucket=name=web,env=prod")
	if len(v.Buckets) != 1 || len(v.Buckets[0].Proxies) != 1 {
		t.Fatalf("/api/quotas: %+v", v)
	}
	b, p := v.Buckets[0], v.Buckets[0].Proxies[0]
	if b.Bucket != "env=prod,name=web" || b.Rule != "q.env.name" || !slices.Equal(b.Limits, []string{"1000 per year"}) ||
		b.Action != quota.AssignUnits.String() || b.DemandPerSecond <= 0 || b.ProxyCount != 1 {
		t.Errorf("/api/quotas: %+v", b)
	}
	if !strings.HasPrefix(p.Peer, "127.0.0.1:") || p.Action != quota.AssignUnits.String() || p.Units == 0 ||
		p.ExpiresInSeconds <= 0 {
		t.Errorf("/api/quotas: %+v", p)
	}
	if all := api[operator.Quotas](s, "/api/quotas?limit=1"); all.Total.Proxies != 1 || all.Total.Buckets != 2 ||
		all.MatchingBuckets != 2 || len(all.Buckets) != 1 {
		t.Errorf("/api/quotas: %+v", all)
	}
	_, page := s.get("prometheus", "/metrics")
	for _, line := range []string{
		`ratelimit_quota_requests_total{domain="q",result="admitted",rule="env.name"} 60`,
		`ratelimit_quota_requests_total{domain="q",result="denied",rule="env.name"} 41`,
		`ratelimit_quota_requests_total{domain="q",result="admitted",rule=""} 7`, `ratelimit_quota_proxies 1`,
		`ratelimit_quota_buckets 2`,
	} {
		if !strings.Contains(page, line+"\n") {
			t.Errorf("%s is not in\n%s", line, page)
		}
	}
	if d := api[[]operator.Denial](s, "/api/denials"); len(d) == 0 || d[0].Subject != "env=prod,name=web" ||
		d[0].Rule != "q.env.name" || d[0].Protocol != "rlqs" || d[0].RetryAfterSeconds <= 0 {
		t.Errorf("denials: %+v", d)
	}
	if top := api[[]operator.Subject](s, "/api/top?kind=denied"); len(top) != 1 || top[0].Subject != "env=prod,name=web" ||
		top[0].Hits != 41 {
		t.Errorf("most denied: %+v", top)
	}
	if top := api[[]operator.Subject](s, "/api/top?kind=hot"); len(top) != 1 || top[0].Hits != 101 {
		t.Errorf("hottest: %+v", top)
	}
}
