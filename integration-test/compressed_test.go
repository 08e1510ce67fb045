package integration

import (
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	_ "google.golang.org/grpc/encoding/gzip" // for the client of this test

	"ratelimit/testbed/redistest"
)

// A client of grpc-go that compresses its calls with gzip is answered, over each engine, and counted in Redis like
// others.
func TestCompressedCalls(t *testing.T) {
	redis := redistest.Start(t, redistest.Options{})
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			rules := newRuleDir(t)
			rules.put(t, "d.yaml", "domain: "+engine+"\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 2}}]")
			u := startWith(t, rules, "GRPC_ENGINE="+engine, "REDIS_URL="+redis.Addr, "REDIS_TIMEOUT=5s")
			for i, want := range []rlsv3.RateLimitResponse_Code{
				rlsv3.RateLimitResponse_OK, rlsv3.RateLimitResponse_OK,
				rlsv3.RateLimitResponse_OVER_LIMIT,
			} {
				answer, err := rlsv3.NewRateLimitServiceClient(u.conn).ShouldRateLimit(t.Context(), request(engine, "ip=1"),
					grpc.UseCompressor("gzip"))
				if err != nil || answer.GetOverallCode() != want {
					t.Errorf("call %d: %v %v, want %v", i+1, answer, err, want)
				}
			}
		})
	}
}
