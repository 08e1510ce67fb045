package integration

import (
	"testing"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// With GODEBUG=fips140=only Go refuses each algorithm that FIPS 140-3 does not approve. The service starts and decides,
// over TLS and with Redis over TLS, scripts included: Redis names them by SHA-1.
func TestFIPS(t *testing.T) {
	const only = "GODEBUG=fips140=only"
	certs := harness.NewCertificates(t)
	store := redistest.Start(t, redistest.Options{TLS: certs})
	rules := newRuleDir(t)
	rules.put(t, "rules.yaml", `
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: script, rate_limit: {unit: year, requests_per_unit: 2, algorithm: gcra}}
`)
	env := append(rules.env(), only,
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+certs.Server.Cert, "GRPC_SERVER_TLS_KEY="+certs.Server.Key)
	for name, backend := range map[string][]string{
		"memory": nil,
		"Redis": {
			"REDIS_TIMEOUT=5s", "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + store.Addr, "REDIS_TLS=true",
			"REDIS_TLS_CACERT=" + certs.CA,
		},
	} {
		for _, engine := range engines {
			t.Run(name+","+engine, func(t *testing.T) {
				if name == "Redis" {
					store.Do(t, "FLUSHALL")
				}
				s := startService(t, append(append(env, "GRPC_ENGINE="+engine), backend...)...)
				conn, err := grpc.NewClient(s.grpc, grpc.WithTransportCredentials(credentials.NewTLS(certs.ClientConfig(t))))
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = conn.Close() }()
				caller := rlsv3.NewRateLimitServiceClient(conn)
				for n, want := range []rlsv3.RateLimitResponse_Code{
					rlsv3.RateLimitResponse_OK, rlsv3.RateLimitResponse_OK,
					rlsv3.RateLimitResponse_OVER_LIMIT,
				} {
					answer, err := caller.ShouldRateLimit(t.Context(), request("d", "plain=a", "script=a"))
					if err != nil {
						t.Fatal(err)
					}
					for i, status := range answer.Statuses {
						if status.Code != want {
							t.Errorf("request %d, descriptor %d: %v, want %v", n+1, i, status.Code, want)
						}
					}
				}
			})
		}
	}
}
