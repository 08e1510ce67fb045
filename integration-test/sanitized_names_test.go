package integration

import (
	"testing"

	"ratelimit/testbed/redistest"
)

// With SANITIZE_DESCRIPTOR_METRIC_DOTS no dot of a key or value starts a new level of a counter's name. Matching,
// answers and keys of counters have the dots.
func TestSanitizedDescriptorDots(t *testing.T) {
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", `domain: d
descriptors:
- {key: host, value: foo.bar, rate_limit: {unit: year, requests_per_unit: 9}}
- {key: host, value: "*.org", rate_limit: {unit: year, requests_per_unit: 9}}
- key: svc.method
  detailed_metric: true
  rate_limit: {unit: year, requests_per_unit: 9}
- key: path
  value_to_metric: true
  descriptors:
  - {key: v1.2, rate_limits: [{unit: year, requests_per_unit: 9}, {unit: year, unit_multiplier: 2, requests_per_unit: 8}]}
`)
	rules.put(t, "list.yaml", "domain: list\nrules:\n- {match: {host: a.b, port: '80.1'}, rate_limit: {unit: year, "+
		"requests_per_unit: 9}}\n")
	rules.put(t, "dotted.yaml", "domain: dot.ted\ndescriptors:\n- {key: a.b, rate_limit: {unit: year, "+
		"requests_per_unit: 9}}\n")
	asks := func(u *upstream) {
		for _, st := range []step{
			{ask: "host=foo.bar + host=x.org", want: "OK 8/9 YEAR + OK 8/9 YEAR"},
			{ask: "svc.method=/hello.Greeter/Say", want: "OK 8/9 YEAR"},
			{ask: "path=/a.b, v1.2=x", want: "OK 7/8 2 YEAR"},
			{ask: "user=x.y [limit 5/YEAR]", want: "OK 4/5 YEAR"},
			{domain: "list", ask: "host=a.b, port=80.1", want: "OK 8/9 YEAR"},
			{domain: "dot.ted", ask: "a.b", want: "OK 8/9 YEAR"},
		} {
			u.runStep(t, "grpc", "d", 1, st)
		}
	}
	for name, test := range map[string]struct {
		setting string
		names   []string
	}{
		"true": {"SANITIZE_DESCRIPTOR_METRIC_DOTS=true", []string{
			"d.host_foo_bar", "d.host_*_org", "d.svc_method_/hello_Greeter/Say", "d.path_/a_b.v1_2", "d.path_/a_b.v1_2.2",
			"d.user_x_y", "list.host_a_b.port_80_1", "dot.ted.a_b",
		}},
		"default": {"STATS_MAX_SERIES=100", []string{
			"d.host_foo.bar", "d.host_*.org", "d.svc.method_/hello.Greeter/Say", "d.path_/a.b.v1.2", "d.path_/a.b.v1.2.2",
			"d.user_x.y", "list.host_a.b.port_80.1", "dot.ted.a.b",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t, redistest.Options{})
			received := listenSink(t, "tcp", "127.0.0.1:0")
			u := startWith(t, rules, test.setting, "REDIS_URL="+server.Addr, "REDIS_TIMEOUT=5s",
				"USE_STATSD=true", "STATSD_HOST=127.0.0.1", "STATSD_PORT="+portOf(t, received.addr), fastFlush)
			asks(u)
			want := make(map[string]int64)
			for _, name := range test.names {
				want[ruleStats+name+".total_hits"], want[ruleStats+name+".within_limit"] = 1, 1
			}
			soon(t, "statsd has the names", func() error { return received.adds(want) })
			if keys := server.Do(t, "KEYS", "d_host_foo.bar_*").([]any); len(keys) != 1 {
				t.Errorf("keys %v, want the value as it was sent", server.Do(t, "KEYS", "*"))
			}
		})
	}
	t.Run("Prometheus", func(t *testing.T) {
		u := startWith(t, rules, "SANITIZE_DESCRIPTOR_METRIC_DOTS=true", "USE_STATSD=false", "USE_PROMETHEUS=true",
			"PROMETHEUS_ADDR=127.0.0.1:0", fastFlush)
		asks(u)
		const hits = "ratelimit_service_rate_limit_total_hits"
		series{
			{"one level", hits + `{domain="d",key1="host_foo_bar"}`, 1},
			{"a wildcard", hits + `{domain="d",key1="host_*_org"}`, 1},
			{"a detailed name", hits + `{domain="d",key1="svc_method_/hello_Greeter/Say"}`, 1},
		}.prove(t, u, "/metrics")
	})
}
