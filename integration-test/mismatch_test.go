package integration

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"strings"
	"testing"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
)

// The log says what is wrong when only one of the service and Redis uses TLS.
func TestRedisTLSMismatch(t *testing.T) {
	c := harness.NewCertificates(t)
	plain, secure := redistest.Start(t, redistest.Options{}), redistest.Start(t, redistest.Options{TLS: c})
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 2}}]")
	for _, tt := range []struct {
		name string
		env  []string
		want string
	}{
		{
			"plain client",
			[]string{"REDIS_URL=" + secure.Addr},
			"Redis at " + secure.Addr + " speaks TLS and the service does not: set REDIS_TLS=true, or name a port without TLS",
		},
		{
			"plain client with a password",
			[]string{"REDIS_URL=" + secure.Addr, "REDIS_AUTH=secret"},
			"Redis at " + secure.Addr + " speaks TLS and the service does not",
		},
		{
			"TLS client",
			[]string{"REDIS_URL=" + plain.Addr, "REDIS_TLS=true", "REDIS_TLS_CACERT=" + c.CA},
			"Redis at " + plain.Addr + " does not speak TLS and the service does: set REDIS_TLS=false, or name the port for TLS",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := runService(t, append(append(rules.env(), tt.env...), "DISABLE_STATS=true")...)
			s.untilLogged(t, tt.want)
			s.readLog(t)
			if status, _ := s.healthcheck(t); status != http.StatusInternalServerError {
				t.Errorf("/healthcheck is %d", status)
			}
			if n := strings.Count(s.log(t), tt.want); n > 1 {
				t.Errorf("it is said %d times", n)
			}
		})
	}
}

// The log says what is wrong when a client of the gRPC port speaks another protocol, once a minute at most, over each
// engine.
func TestWrongProtocol(t *testing.T) {
	c := harness.NewCertificates(t)
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 2}}]")
	withTLS := []string{
		"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT=" + c.Server.Cert,
		"GRPC_SERVER_TLS_KEY=" + c.Server.Key,
	}
	send := func(address, text string) {
		conn, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = conn.Write([]byte(text)) // the service may close the connection
		_, _ = conn.Read(make([]byte, 100))
		_ = conn.Close()
	}
	for _, tt := range []struct {
		name string
		env  []string
		act  func(address string)
		want string
	}{
		{"HTTP/1.1", nil, func(address string) {
			send(address, "POST /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit HTTP/1.1\r\nhost: ratelimit\r\n\r\n")
		}, "the client speaks HTTP/1.1, and gRPC needs HTTP/2: give Envoy's cluster `typed_extension_protocol_options` " +
			"with `http2_protocol_options`"},
		{"TLS", nil, func(address string) {
			conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true})
			if err == nil {
				_ = conn.Close()
			}
		}, "the client speaks TLS, and this port does not: turn TLS off in the client, or set GRPC_SERVER_USE_TLS=true"},
		{
			"plain text", withTLS, func(address string) { send(address, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") },
			"the client does not speak TLS, and this port does: turn TLS on in the client, or set GRPC_SERVER_USE_TLS=false",
		},
	} {
		for _, engine := range engines {
			t.Run(tt.name+"/"+engine, func(t *testing.T) {
				t.Parallel()
				s := startService(t, append(append(rules.env(), tt.env...), "GRPC_ENGINE="+engine, "DISABLE_STATS=true")...)
				for range 5 {
					tt.act(s.grpc)
				}
				s.untilLogged(t, tt.want)
				if n := strings.Count(s.log(t), "could not answer"); n != 1 {
					t.Errorf("it is said %d times", n)
				}
			})
		}
	}
}

// The log says why a proxy gets no quotas, once a minute at most.
func TestQuotaStreamWithoutBuckets(t *testing.T) {
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", "domain: d\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 2}}]")
	u := startWith(t, rules, "DISABLE_STATS=true")
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		stream, err := rlqsv3.NewRateLimitQuotaServiceClient(u.conn).StreamRateLimitQuotas(ctx)
		if err == nil {
			err = stream.Send(&rlqsv3.RateLimitQuotaUsageReports{Domain: "d"})
		}
		if err == nil {
			_, err = stream.Recv()
		}
		if status.Code(err) != codes.FailedPrecondition {
			t.Errorf("the stream ended with %v", err)
		}
		cancel()
	}
	u.untilLogged(t, "quota stream refused since this was last said; the last one: the rules of the domain "+
		"\\\"d\\\" have no `quota_buckets: true`. Write")
	if n := strings.Count(u.log(t), "quota stream refused"); n != 1 {
		t.Errorf("it is said %d times", n)
	}
}
