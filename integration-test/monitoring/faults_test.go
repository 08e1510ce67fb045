package monitoring

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"ratelimit/testbed/harness"
	"ratelimit/testbed/redistest"
	"ratelimit/testbed/xdstest"
)

const (
	goodRules = "domain: d\ndescriptors: [{key: ip, rate_limit: {unit: year, requests_per_unit: 10}}]\n"
	badRules  = "domain: [\n"
)

// fault breaks something for real.
type fault struct {
	name   string   // the job of its services
	alerts []string // the alerts that fire
	// cause starts services, has l scrape them and breaks something. It returns the function that repairs it.
	cause func(t *testing.T, l *lab, job string) (repair func())
}

// Each alert of the shipped file is of one of these, or RatelimitAbsent, which TestFaults awaits before it starts the
// first service.
var faults = []fault{
	{"refused", []string{"RatelimitRulesRefused"}, func(t *testing.T, l *lab, job string) func() {
		s := startService(t, goodRules)
		l.scrape(t, job, s)
		harness.Await(t, harness.Deadline, "the rules are in force", func() error { return s.ready() })
		s.write(t, badRules)
		return func() { s.write(t, goodRules) }
	}},
	{"unready", []string{"RatelimitNoneReady", "RatelimitNotReady"}, func(t *testing.T, l *lab, job string) func() {
		s := startService(t, badRules)
		l.scrape(t, job, s)
		return func() { s.write(t, goodRules) }
	}},
	{"no-rules", []string{"RatelimitNoRules"}, func(t *testing.T, l *lab, job string) func() {
		s := startService(t, "", "FORCE_START_WITHOUT_INITIAL_CONFIG=true")
		l.scrape(t, job, s)
		return func() { s.write(t, goodRules) }
	}},
	{"unknown-domain", []string{"RatelimitUnknownDomain"}, func(t *testing.T, l *lab, job string) func() {
		s := startService(t, goodRules)
		l.scrape(t, job, s)
		return traffic(t, 100*time.Millisecond, func(int) { s.ask("elsewhere", "ip=1") })
	}},
	{"rules-differ", []string{"RatelimitRulesDiffer"}, func(t *testing.T, l *lab, job string) func() {
		a, b := startService(t, goodRules), startService(t, strings.Replace(goodRules, "10", "11", 1))
		l.scrape(t, job, a, b)
		return func() { b.write(t, goodRules) }
	}},
	{"control-plane", []string{"RatelimitControlPlaneLost"}, causeControlPlaneLost},
	{
		"store-down",
		[]string{"RatelimitStoreDown", "RatelimitStoreErrors", "RatelimitStoreNotAsked"},
		func(t *testing.T, l *lab, job string) func() {
			redis := redistest.Start(t, redistest.Options{})
			s := startService(t, goodRules, "REDIS_URL="+redis.Addr, "STORE_FAILURE_MODE=allow",
				"LOCAL_CACHE_SIZE_IN_BYTES=1000000")
			l.scrape(t, job, s)
			traffic(t, 20*time.Millisecond, func(n int) { s.ask("d", fmt.Sprintf("ip=%d", n%20)) })
			harness.Await(t, harness.Deadline, "the rules are in force", func() error { return s.ready() })
			redis.Pause()
			return redis.Resume
		},
	},
	{"store-slow", []string{"RatelimitSlow", "RatelimitStoreSlow"}, func(t *testing.T, l *lab, job string) func() {
		redis := redistest.Start(t, redistest.Options{Proxy: true})
		s := startService(t, goodRules, "REDIS_URL="+redis.PublicAddr(), "REDIS_TIMEOUT=5s")
		l.scrape(t, job, s)
		traffic(t, 20*time.Millisecond, func(n int) { s.ask("d", fmt.Sprintf("ip=%d", n%20)) })
		redis.Proxy.Latency(500 * time.Millisecond)
		return func() {
			redis.Proxy.Reset() // The batch that is under way fails.
			redis.Proxy.Heal()
		}
	}},
	{"calls-wait", []string{"RatelimitCallsWait"}, causeCallsWait},
	{"no-requests", []string{"RatelimitNoRequests"}, func(t *testing.T, l *lab, job string) func() {
		s := startService(t, goodRules)
		l.scrape(t, job, s)
		ask := func(int) { s.ask("d", "ip=1") }
		stop := traffic(t, 50*time.Millisecond, ask)
		harness.Await(t, harness.Deadline, "there is a rate", func() error {
			list, err := l.query(`sum(rate(ratelimit_decision_duration_seconds_count{job="` + job + `"}[10s])) > 5`)
			if err == nil && (len(list) == 0 || len(list[0].Values) < 5) {
				err = fmt.Errorf("got %v", list)
			}
			return err
		})
		stop()
		return func() { traffic(t, 50*time.Millisecond, ask) }
	}},
	{"most-refused", []string{"RatelimitMostRefused"}, func(t *testing.T, l *lab, job string) func() {
		s := startService(t, goodRules)
		l.scrape(t, job, s)
		return traffic(t, 50*time.Millisecond, func(int) { s.ask("d", "ip=1") })
	}},
	{"evicted", []string{"RatelimitCountersEvicted"}, func(t *testing.T, l *lab, job string) func() {
		s := startService(t, strings.Replace(goodRules, "{key: ip,", "{key: ip, detailed_metric: true,", 1),
			"MEMORY_MAX_BYTES=131072", "STATS_MAX_SERIES=50")
		l.scrape(t, job, s)
		return traffic(t, 20*time.Millisecond, func(n int) {
			var list []string
			for i := range 100 {
				list = append(list, fmt.Sprintf("ip=%d", 100*n+i))
			}
			s.ask("d", list...)
		})
	}},
	{"holds-expire", []string{"RatelimitHoldsExpire"}, func(t *testing.T, l *lab, job string) func() {
		s := startService(t, "domain: d\ndescriptors: [{key: call, rate_limit: {algorithm: concurrency, requests_per_unit: "+
			"100, hold: 1s, hold_id: id}}]\n")
		l.scrape(t, job, s)
		return traffic(t, 50*time.Millisecond, func(n int) { s.ask("d", fmt.Sprintf("call=a,id=%d", n)) })
	}},
	{
		"quotas",
		[]string{"RatelimitQuotaUnassigned", "RatelimitQuotaBucketsRefused"},
		func(t *testing.T, l *lab, job string) func() {
			s := startService(t, "domain: d\nquota_buckets: true\ndescriptors: [{key: a, rate_limit: {unit: second, "+
				"requests_per_unit: 10}}]\n", "QUOTA_MAX_BUCKETS=3")
			l.scrape(t, job, s)
			harness.Await(t, harness.Deadline, "the rules are in force", func() error { return s.ready() })
			report, reportShort := s.proxy(t, "d"), s.proxy(t, "d")
			traffic(t, 200*time.Millisecond, func(int) { reportShort("short", 1, 9) })
			return traffic(t, 200*time.Millisecond, func(n int) {
				report("known", 100, 100)
				report(fmt.Sprint("new", n), 100, 0)
			})
		},
	},
	{"quota-bursts", []string{"RatelimitQuotaUnfair"}, causeUnfair},
	{"port-full", []string{"RatelimitPortFull"}, func(t *testing.T, l *lab, job string) func() {
		s := startService(t, goodRules, "GRPC_MAX_CONNECTIONS=2")
		l.scrape(t, job, s)
		return traffic(t, 50*time.Millisecond, func(int) {
			conn, err := net.Dial("tcp", s.Addrs["grpc"])
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { _ = conn.Close() })
		})
	}},
	{"log-lost", []string{"RatelimitLogLost"}, causeLogLost},
	{"snapshot", []string{"RatelimitSnapshotFails"}, func(t *testing.T, l *lab, job string) func() {
		dir := filepath.Join(t.TempDir(), "snapshots")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		s := startService(t, goodRules, "MEMORY_SNAPSHOT="+filepath.Join(dir, "counters"), "MEMORY_SNAPSHOT_INTERVAL=1s")
		l.scrape(t, job, s)
		traffic(t, 100*time.Millisecond, func(n int) { s.ask("d", fmt.Sprint("ip=", n)) })
		move := func(from, to string) {
			if err := os.Rename(from, to); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(3 * time.Second) // The first scrapes must see no failure, because an increase needs a value before it.
		move(dir, dir+".away")
		return func() { move(dir+".away", dir) }
	}},
	{
		"certificates",
		[]string{"RatelimitCertificateEnds", "RatelimitClientCertificateEnds"},
		func(t *testing.T, l *lab, job string) func() {
			certs := harness.NewCertificates(t)
			s := startService(t, "", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL=127.0.0.1:1",
				"CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
				"CONFIG_GRPC_XDS_CLIENT_TLS_CERT="+certs.Client.Cert, "CONFIG_GRPC_XDS_CLIENT_TLS_KEY="+certs.Client.Key,
				"GRPC_SERVER_USE_TLS=true", "GRPC_SERVER_TLS_CERT="+certs.Server.Cert, "GRPC_SERVER_TLS_KEY="+certs.Server.Key)
			l.scrape(t, job, s)
			return func() {
				for _, name := range []string{"server", "client"} {
					certs.Issue(t, name, harness.Spec{CommonName: name, Lasts: 30 * 24 * time.Hour})
				}
			}
		},
	},
}

// causeLogLost starts a service whose log is on a full disk. The repair ends it, because it keeps its stderr.
func causeLogLost(t *testing.T, l *lab, job string) func() {
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	s := &service{harness.NewService(t, "USE_PROMETHEUS=true", "PROMETHEUS_ADDR="+addr)}
	s.write(t, goodRules)
	s.Log, s.Addrs = "/dev/full", map[string]string{"prometheus": addr}
	if err := s.Process.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	l.scrape(t, job, s)
	return s.Stop
}

func causeControlPlaneLost(t *testing.T, l *lab, job string) func() {
	port, err := harness.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	s := startService(t, "", "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+addr,
		"FORCE_START_WITHOUT_INITIAL_CONFIG=true",
		"XDS_CLIENT_BACKOFF_INITIAL_INTERVAL=100ms", "XDS_CLIENT_BACKOFF_MAX_INTERVAL=1s")
	l.scrape(t, job, s)
	return func() {
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		xdstest.Start(t, listener)
	}
}

// causeCallsWait has 12,000 calls wait for a Redis that does not answer. grpc-go's server asks the store for each call;
// the service's own has one call of the store for all that arrive together.
func causeCallsWait(t *testing.T, l *lab, job string) func() {
	redis := redistest.Start(t, redistest.Options{Proxy: true})
	s := startService(t, goodRules, "REDIS_URL="+redis.PublicAddr(), "REDIS_TIMEOUT=1m",
		"GRPC_MAX_CONCURRENT_STREAMS=20000", "GRPC_ENGINE=grpc-go")
	l.scrape(t, job, s)
	harness.Await(t, harness.Deadline, "the rules are in force", func() error { return s.ready() })
	redis.Proxy.Hold()
	client := pb.NewRateLimitServiceClient(s.dial(t))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	for n := range 12_000 {
		go func() {
			_, _ = client.ShouldRateLimit(ctx, &pb.RateLimitRequest{Domain: "d", Descriptors: []*common.RateLimitDescriptor{
				{Entries: []*common.RateLimitDescriptor_Entry{{Key: "ip", Value: fmt.Sprint(n)}}},
			}})
		}()
	}
	return func() {
		cancel()
		redis.Proxy.Heal()
	}
}

// ready returns nil if the service is ready.
func (s *service) ready() error {
	resp, err := web.Get("http://" + s.Addrs["http"] + "/readyz")
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 200 {
		return fmt.Errorf("it is %s", resp.Status)
	}
	return nil
}
