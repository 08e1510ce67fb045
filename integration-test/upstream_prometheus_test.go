package integration

import (
	"fmt"
	"math"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// scrape reads a page in Prometheus' text format: values by name and labels,
// as they stand there.
func (u *upstream) scrape(t *testing.T, path string) (values map[string]float64, text string) {
	t.Helper()
	body, err := get("http://" + u.prometheus + path)
	if err != nil {
		t.Fatal(err)
	}
	values = make(map[string]float64)
	for line := range strings.Lines(string(body)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		blank := strings.LastIndex(line, " ")
		if values[line[:blank]], err = strconv.ParseFloat(line[blank+1:], 64); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
	}
	return values, string(body)
}

// series are samples that a scrape must come to have.
type series []struct {
	sentence, sample string
	want             float64
}

func (list series) prove(t *testing.T, u *upstream, path string) {
	t.Helper()
	deadline := time.Now().Add(patience / 2) // for all together
	for _, test := range list {
		t.Run(test.sentence, func(t *testing.T) {
			by(t, deadline, "the scrape has it", func() error {
				values, text := u.scrape(t, path)
				got, ok := values[test.sample]
				if !ok || math.Abs(got-test.want) > 1e-9 {
					name, _, _ := strings.Cut(test.sample, "{")
					return fmt.Errorf("%s is %v (%t), want %v; of the name there are\n%s", test.sample, got, ok, test.want,
						linesWith(text, name))
				}
				return nil
			})
		})
	}
}

func linesWith(text, part string) string {
	var found strings.Builder
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			found.WriteString(line)
		}
	}
	return found.String()
}

// The names and labels of the built-in mapping.
func TestUpstreamPrometheus(t *testing.T) {
	rules := newRuleDir(t)
	rules.put(t, "d.yaml", `domain: d
descriptors:
- {key: a, value: x, rate_limit: {unit: year, requests_per_unit: 10}}
- {key: s, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
- key: k1
  descriptors:
  - key: k2
    value: v2
    rate_limit: {unit: year, requests_per_unit: 9}
    descriptors:
    - {key: k3, rate_limit: {unit: year, requests_per_unit: 9}}
    - {key: k4, rate_limit: {unit: year, requests_per_unit: 9}}
`)
	rules.put(t, "dotted.yaml", "domain: dot.ted\ndescriptors:\n- {key: a, rate_limit: {unit: year, requests_per_unit: "+
		"9}}\n")
	u := startWith(t, rules, "USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", "SHADOW_MODE=true",
		fastFlush)
	for i, st := range []step{
		{ask: "a=x [hits 9]", want: "OK 1/10 YEAR"},
		{ask: "a=x [hits 4]", want: "OVER_LIMIT 0/10 YEAR -> OK"},
		{ask: "s=1 [hits 2]", want: "OK 0/0 YEAR"},
		{ask: "k1=1, k2=v2 + k1=1, k2=v2, k3=1 + k1=1, k2=v2, k4=1", want: "OK 8/9 YEAR + OK 8/9 YEAR + OK 8/9 YEAR"},
		{domain: "dot.ted", ask: "a", want: "OK 8/9 YEAR"},
		{domain: "nowhere", ask: "a + b", want: "OK + OK"},
		{ask: "", fails: codes.InvalidArgument},
	} {
		u.runStep(t, "grpc", "d", i+1, st)
	}
	const limit = "ratelimit_service_rate_limit_"
	series{
		{"total_hits by domain and key1", limit + `total_hits{domain="d",key1="a_x"}`, 13},
		{"within_limit", limit + `within_limit{domain="d",key1="a_x"}`, 9},
		{"near_limit", limit + `near_limit{domain="d",key1="a_x"}`, 2},
		{"over_limit", limit + `over_limit{domain="d",key1="a_x"}`, 3},
		{"shadow_mode", limit + `shadow_mode{domain="d",key1="s"}`, 2},
		{
			"two or more levels: key1 and key2, deeper levels are dropped, rules that differ only below are summed",
			limit + `total_hits{domain="d",key1="k1",key2="k2_v2"}`, 3,
		},
		{"a dot in a domain shifts the labels", limit + `total_hits{domain="dot",key1="ted",key2="a"}`, 1},
		{"errors by err_type", `ratelimit_service_should_rate_limit_error{err_type="service_error"}`, 1},
		{"total_requests by grpc_method", `ratelimit_service_total_requests{grpc_method="ShouldRateLimit"}`, 7},
		{
			"response_time is a histogram in seconds",
			`ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"}`, 7,
		},
		{
			"with the Prometheus client's default buckets, the largest",
			`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="10"}`, 7,
		},
		{"config_load_success", `ratelimit_service_config_load_success`, 1},
		{"all else: the name with . turned into _, no labels", `ratelimit_service_global_shadow_mode`, 1},
		{"domain_not_found is among it", limit + `nowhere_domain_not_found`, 2},
	}.prove(t, u, "/metrics")
	values, text := u.scrape(t, "/metrics")
	t.Run("the buckets are 0.005 to 10", func(t *testing.T) { showsBuckets(t, values, text) })
	t.Run("counters appear after their first non-zero flush", func(t *testing.T) {
		if found := linesWith(text, limit+`over_limit{domain="d",key1="k1"`); found != "" {
			t.Errorf("nothing was over, and there is\n%s", found)
		}
		if _, ok := values["ratelimit_service_config_load_error"]; ok {
			t.Error("there is ratelimit_service_config_load_error")
		}
	})
	t.Run("help text is the exporter's standard one, Go and process collectors are present too", func(t *testing.T) {
		for _, part := range []string{
			"# HELP " + limit + "total_hits Metric autogenerated by statsd_exporter.\n",
			"# TYPE " + limit + "total_hits counter\n",
			"\ngo_goroutines ", "\nprocess_cpu_seconds_total ",
			"\nratelimit_go_numGoroutine ",
		} {
			if !strings.Contains(text, part) {
				t.Errorf("there is no %q", part)
			}
		}
	})
	t.Run("differs: no statsd_exporter_* metrics, as there is no statsd_exporter inside", func(t *testing.T) {
		if strings.Contains(text, "\nstatsd_exporter_") {
			t.Error("there are some")
		}
	})
	t.Run("differs: no pprof on the Prometheus port", func(t *testing.T) { noPprof(t, u) })
}

func showsBuckets(t *testing.T, values map[string]float64, text string) {
	t.Helper()
	for _, le := range strings.Fields("0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 +Inf") {
		if _, ok := values[`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="`+le+`"}`]; !ok {
			t.Errorf("%s is missing", le)
		}
	}
	const buckets = "ratelimit_service_response_time_seconds_bucket{"
	if n := strings.Count(text, buckets); n != 12 {
		t.Errorf("there are %d buckets, want 12:\n%s", n, linesWith(text, buckets))
	}
}

func noPprof(t *testing.T, u *upstream) {
	t.Helper()
	for _, path := range []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/vars"} {
		resp, err := client.Get("http://" + u.prometheus + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
}

// Names and labels of the operator's choice.
func TestUpstreamPrometheusMapping(t *testing.T) {
	mapping, err := filepath.Abs("testdata/prometheus-mapping.yaml")
	if err != nil {
		t.Fatal(err)
	}
	u := startUpstream(t, []string{
		"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0", "PROMETHEUS_PATH=/own",
		"PROMETHEUS_MAPPER_YAML=" + mapping, fastFlush,
	}, sinkRules)
	countSome(t, u)
	series{
		{
			"PROMETHEUS_MAPPER_YAML names metrics and labels, PROMETHEUS_PATH the page",
			`hits{domain="grpc0",outcome="total_hits",rule="a"}`, 7,
		},
		{"each of its mappings holds", `hits{domain="grpc0",outcome="over_limit",rule="a"}`, 2},
		{"regular expressions and histograms", `calls_took_count{method="ShouldRateLimit"}`, 3},
		{"with buckets", `calls_took_bucket{method="ShouldRateLimit",le="2000"}`, 3},
		{"what has no mapping keeps its name", `ratelimit_service_config_load_success`, 1},
	}.prove(t, u, "/own")
	values, _ := u.scrape(t, "/own")
	t.Run("it replaces the built-in one, and drops what it says", func(t *testing.T) {
		for sample := range values {
			for _, name := range []string{
				"ratelimit_service_rate_limit_total_hits", "ratelimit_service_total_requests",
				"ratelimit_server_",
			} {
				if strings.HasPrefix(sample, name) {
					t.Errorf("there is %s", sample)
				}
			}
		}
	})
	t.Run("differs: one sink explicitly on switches default statsd off", func(t *testing.T) {
		// set but empty is the default
		u := startUpstream(t, []string{"USE_STATSD=", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0"}, sinkRules)
		u.scrape(t, "/metrics")
	})
	t.Run("a mapping file that is missing does not end the process", func(t *testing.T) {
		u := startUpstream(t, []string{
			"USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0",
			"PROMETHEUS_MAPPER_YAML=" + mapping + ".not", fastFlush,
		}, sinkRules)
		u.runStep(t, "grpc", "grpc0", 1, step{ask: "a", want: "OK 4/5 YEAR"})
		u.scrape(t, "/metrics")
	})
}
