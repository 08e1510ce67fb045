package prometheus

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"ratelimit/src/metrics"
	"ratelimit/testbed/testfiles"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// values are figures that tests turn by hand.
type values []metrics.Stat

func (v *values) set(kind metrics.Kind, name string, value int64) {
	for i := range *v {
		if (*v)[i].Name == name {
			(*v)[i].Value = value
			return
		}
	}
	*v = append(*v, metrics.Stat{Name: name, Kind: kind, Value: value})
}

func (v *values) remove(name string) {
	*v = slices.DeleteFunc(*v, func(s metrics.Stat) bool { return s.Name == name })
}

// source returns a registry that has the values as well.
func (v *values) source() *metrics.Registry {
	r := metrics.New(metrics.Config{})
	r.AddFigures(func() (list []metrics.Figure) {
		for _, s := range *v {
			list = append(list, metrics.Figure{StatName: s.Name, Kind: s.Kind, Value: s.Value})
		}
		return list
	}, false)
	return r
}

func exporter(t testing.TB, cfg Config) *Exporter {
	t.Helper()
	if cfg.Registry == nil {
		cfg.Registry = metrics.New(metrics.Config{})
	}
	if cfg.OnWarn == nil {
		cfg.OnWarn = func(err error) { t.Errorf("warning: %v", err) }
	}
	e, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// scraped returns the lines of a scrape that match, without comments.
func scraped(t testing.TB, e *Exporter, pattern string) []string {
	t.Helper()
	w := httptest.NewRecorder()
	e.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(w.Body)
	if err != nil || w.Code != 200 {
		t.Fatalf("status %d, %v: %s", w.Code, err, body)
	}
	var lines []string
	for line := range strings.Lines(string(body)) {
		if !strings.HasPrefix(line, "#") && regexp.MustCompile(pattern).MatchString(line) {
			lines = append(lines, strings.TrimSuffix(line, "\n"))
		}
	}
	return lines
}

func expect(t testing.TB, e *Exporter, pattern string, want ...string) {
	t.Helper()
	if got := scraped(t, e, pattern); !slices.Equal(got, want) {
		t.Errorf("%s:\n got %s\nwant %s", pattern, strings.Join(got, "\n     "), strings.Join(want, "\n     "))
	}
}

// compatible finds what the mapping made.
const compatible = `^ratelimit_(service|redis|go|memcache)|^runtime`

func TestBuiltinMapping(t *testing.T) {
	var v values
	for name, n := range map[string]int64{
		"service.rate_limit.d.a.near_limit":                    1,
		"service.rate_limit.d.a.over_limit":                    2,
		"service.rate_limit.d.a.total_hits":                    3,
		"service.rate_limit.d.a.within_limit":                  4,
		"service.rate_limit.d.a.shadow_mode":                   5,
		"service.rate_limit.d.a.over_limit_with_local_cache":   6,
		"service.rate_limit.d.zero.total_hits":                 0,
		"service.rate_limit.d.a.b_1.total_hits":                7,
		"service.rate_limit.d.a.b_1.c.total_hits":              8,
		"service.rate_limit.d.a.b_1.d_e.f.total_hits":          9,
		"service.rate_limit.d.a.b.over_limit_with_local_cache": 10,
		"service.rate_limit.d.domain_not_found":                11,
		"service.rate_limit.d.ip_*.0.0.0.0/0.over_limit":       12,
		"service.call.should_rate_limit.redis_error":           13,
		"service.call.should_rate_limit.service_error":         14,
		"service.global_shadow_mode":                           15,
		"memcache.multiget.__code=success":                     16,
	} {
		v.set(metrics.KindCounter, "ratelimit."+name, n)
	}
	v.set(metrics.KindCounter, "ratelimit_server.ShouldRateLimit.total_requests", 17)
	v.set(metrics.KindGauge, "ratelimit.redis_pool.cx_active", 0)
	r := v.source()
	r.ShowFigures("config", "", struct{ AcceptedLoads, RefusedLoads int }{1, 1})
	e := exporter(t, Config{Registry: r})
	e.ObserveTimings("ratelimit_server.ShouldRateLimit.response_time", 1, 7999*time.Microsecond)
	e.ObserveTimings("ratelimit_server.ShouldRateLimit.response_time", 1, 20*time.Second)
	expect(
		t, e, compatible,
		`ratelimit_memcache_multiget___code_success 16`,
		`ratelimit_redis_pool_cx_active 0`,
		`ratelimit_service_config_load_error 1`,
		`ratelimit_service_config_load_success 1`,
		`ratelimit_service_global_shadow_mode 15`,
		`ratelimit_service_rate_limit_d_a_b_over_limit_with_local_cache 10`,
		`ratelimit_service_rate_limit_d_a_over_limit_with_local_cache 6`,
		`ratelimit_service_rate_limit_d_domain_not_found 11`,
		`ratelimit_service_rate_limit_near_limit{domain="d",key1="a"} 1`,
		`ratelimit_service_rate_limit_over_limit{domain="d",key1="a"} 2`,
		`ratelimit_service_rate_limit_over_limit{domain="d",key1="ip_*",key2="0"} 12`,
		`ratelimit_service_rate_limit_shadow_mode{domain="d",key1="a"} 5`,
		`ratelimit_service_rate_limit_total_hits{domain="d",key1="a"} 3`,
		`ratelimit_service_rate_limit_total_hits{domain="d",key1="a",key2="b_1"} 24`,
		`ratelimit_service_rate_limit_within_limit{domain="d",key1="a"} 4`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.005"} 0`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.01"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.025"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.05"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.1"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.25"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.5"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="1"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="2.5"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="5"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="10"} 1`,
		`ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="+Inf"} 2`,
		`ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"} 20.007`,
		`ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} 2`,
		`ratelimit_service_should_rate_limit_error{err_type="redis_error"} 13`,
		`ratelimit_service_should_rate_limit_error{err_type="service_error"} 14`,
		`ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 17`,
	)
	expect(t, e, "^ratelimit_mapping_skipped.* [^0]")
}

func TestResponseTimeAsMilliseconds(t *testing.T) {
	e := exporter(t, Config{ResponseTimeAsMilliseconds: true})
	e.ObserveTimings("ratelimit_server.Check.response_time", 1, 1500*time.Millisecond)
	expect(t, e, "^ratelimit_service_response_time_seconds_sum",
		`ratelimit_service_response_time_seconds_sum{grpc_method="Check"} 1500`)
}

// What several counters become together never falls, though they may go.
func TestCountersNeverFall(t *testing.T) {
	var v values
	const x, y = "ratelimit.service.rate_limit.d.a.b.x.total_hits", "ratelimit.service.rate_limit.d.a.b.y.total_hits"
	e := exporter(t, Config{Registry: v.source()})
	steps := []struct {
		what string
		do   func()
		want string
	}{
		{"nothing yet", func() { v.set(metrics.KindCounter, x, 0) }, ""},
		{"x", func() { v.set(metrics.KindCounter, x, 3) }, "3"},
		{"x and y", func() { v.set(metrics.KindCounter, y, 4) }, "7"},
		{"y moves", func() { v.set(metrics.KindCounter, y, 5) }, "8"},
		{"x is forgotten", func() { v.remove(x) }, "8"},
		{"x is back", func() { v.set(metrics.KindCounter, x, 1) }, "9"},
		{"x began anew and overtook", func() { v.set(metrics.KindCounter, x, 0) }, "9"},
		{"x counts again", func() { v.set(metrics.KindCounter, x, 2) }, "11"},
		{"both are gone", func() { v.remove(x); v.remove(y) }, ""},
		{"x once more", func() { v.set(metrics.KindCounter, x, 2) }, "2"},
		{"x at 0", func() { v.set(metrics.KindCounter, x, 0) }, ""},
		{"x from 0", func() { v.set(metrics.KindCounter, x, 6) }, "6"},
	}
	for _, step := range steps {
		step.do()
		for range 2 { // scraping changes nothing
			got := ""
			for _, line := range scraped(t, e, "rate_limit_total_hits") {
				got += strings.TrimPrefix(line, `ratelimit_service_rate_limit_total_hits{domain="d",key1="a",key2="b"} `)
			}
			if got != step.want {
				t.Errorf("%s: %q, want %q", step.what, got, step.want)
			}
		}
	}
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "mapping.yaml")
	testfiles.Write(t, path, text)
	return path
}

func TestMappingFile(t *testing.T) {
	var v values
	for i, name := range []string{"a.x.hits", "a.y.hits", "b.x", "drop.me", "kind.x", "other.1", "scaled"} {
		v.set(metrics.KindCounter, name, int64(i+1))
	}
	v.set(metrics.KindGauge, "kind.y", 9)
	e := exporter(t, Config{
		Registry: v.source(),
		Tags:     map[string]string{"env": "prod", "who": "tag", "1.odd-key": "v"},
		MappingFile: file(t, `
defaults:
  timer_type: histogram
  buckets: [1, 10]
mappings:
- match: a.*.hits
  name: t_a_hits
  help: "A's hits"
  labels: {which: $1, who: file}
- match: 'b\.(.*)'
  match_type: regex
  name: t_b_$1
  honor_labels: true
  labels: {who: file}
- {match: drop.*, action: drop, name: dropped}
- match: kind.*
  match_metric_type: gauge
  name: t_kind
- {match: scaled, name: t_scaled, scale: 0.5}
- match: t.default
  name: t_default
- match: t.own.*
  name: t_own
  timer_type: summary
  quantiles: [{quantile: 0.5, error: 0.1}]
  labels: {which: $1}
- match: t.new
  name: t_new
  observer_type: histogram
  match_metric_type: timer
  histogram_options: {buckets: [5]}
`),
	})
	e.ObserveTimings("t.default", 4, 5*time.Millisecond)
	e.ObserveTimings("t.own.1", 4, 5*time.Millisecond)
	e.ObserveTimings("t.new", 4, 5*time.Millisecond)
	const tags = `_1_odd_key="v",env="prod",`
	expect(
		t, e, "^(t_|kind|other|drop)",
		`kind_x{`+tags+`who="tag"} 5`,
		`other_1{`+tags+`who="tag"} 6`,
		`t_a_hits{`+tags+`which="x",who="file"} 1`,
		`t_a_hits{`+tags+`which="y",who="file"} 2`,
		`t_b_x{`+tags+`who="tag"} 3`,
		`t_default_bucket{`+tags+`who="tag",le="1"} 0`,
		`t_default_bucket{`+tags+`who="tag",le="10"} 4`,
		`t_default_bucket{`+tags+`who="tag",le="+Inf"} 4`,
		`t_default_sum{`+tags+`who="tag"} 20`,
		`t_default_count{`+tags+`who="tag"} 4`,
		`t_kind{`+tags+`who="tag"} 9`,
		`t_new_bucket{`+tags+`who="tag",le="5"} 4`,
		`t_new_bucket{`+tags+`who="tag",le="+Inf"} 4`,
		`t_new_sum{`+tags+`who="tag"} 20`,
		`t_new_count{`+tags+`who="tag"} 4`,
		`t_own{`+tags+`which="1",who="tag",quantile="0.5"} 5`,
		`t_own_sum{`+tags+`which="1",who="tag"} 20`,
		`t_own_count{`+tags+`which="1",who="tag"} 4`,
		`t_scaled{`+tags+`who="tag"} 3.5`,
	)
	expect(t, e, "^go_info|^ratelimit_series ",
		scraped(t, e, `^go_info\{.*_1_odd_key="v",env="prod".*version=|^ratelimit_series \{`)...)
}

func TestMappingFileIsMissingOrWrong(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none.yaml")
	for _, path := range []string{missing, t.TempDir()} {
		var warned error
		e := exporter(t, Config{MappingFile: path, OnWarn: func(err error) { warned = err }})
		want := "prometheus: mapping file " + path + ": there is no such file; the built-in mapping is used"
		if fmt.Sprint(warned) != want {
			t.Errorf("got %v, want %s", warned, want)
		}
		e.ObserveTimings("ratelimit_server.Check.response_time", 1, time.Second)
		expect(t, e, "^ratelimit_service_response_time_seconds_count",
			`ratelimit_service_response_time_seconds_count{grpc_method="Check"} 1`)
	}
	tests := []struct{ text, want string }{
		{"mappings: [", "yaml: line 1: did not find expected node content"},
		{"mapping: []", "field mapping not found"},
		{"mappings: [{match: a, name: 'b c'}]", "metric name 'b c' doesn't match regex"},
		{"mappings: [{match: 'a(', match_type: regex, name: b}]", "invalid regex a("},
		{"mappings: [{match: a, timer_type: histogram}]", "didn't set a metric name (lines are counted after timer_type"},
		{
			"mappings: [{match: a, name: b, observer_type: histogram, histogram_options: {buckets: [2, 1]}}]",
			"mapping 1 (a): buckets must grow, but 2 is followed by 1",
		},
		{
			"mappings: [{match: a, name: b, observer_type: summary, summary_options: {quantiles: [{quantile: 9}]}}]",
			"mapping 1 (a): quantile 9 with error 0: both must be between 0 and 1",
		},
		{
			"defaults: {summary_options: {max_age: -1s}}",
			"defaults: max_age -1s is less than a second for each of 5 age_buckets: write it with a unit, such as 10m",
		},
	}
	for _, tt := range tests {
		path := file(t, tt.text)
		warning := ""
		e := exporter(t, Config{MappingFile: path, OnWarn: func(err error) { warning = err.Error() }})
		if !strings.HasPrefix(warning, "prometheus: mapping file "+path+": ") || !strings.Contains(warning, tt.want) ||
			!strings.HasSuffix(warning, "; the built-in mapping is used") {
			t.Errorf("%s:\n got %s\nwant %s", tt.text, warning, tt.want)
		}
		e.ObserveTimings("ratelimit_server.Check.response_time", 1, time.Second)
		expect(t, e, "^ratelimit_service_response_time_seconds_count",
			`ratelimit_service_response_time_seconds_count{grpc_method="Check"} 1`)
	}
}

// Whatever a mapping and the names say, the scrape goes on with the rest.
func TestNothingBreaksTheScrape(t *testing.T) {
	var v values
	for _, name := range []string{
		"both.counter", "\xff\xfe\xff", "a--b", "9lives", "...", "héé\x00\n", "native", "goroutines", "skipped",
		"part.count", "bad.label", "le.label", "suffix.sum", "negative",
	} {
		v.set(metrics.KindCounter, name, 1)
	}
	v.set(metrics.KindCounter, "negative", -1)
	v.set(metrics.KindCounter, "label.\xff\"\n", 2)
	v.set(metrics.KindCounter, "label.\xfe\"\n", 3)
	v.set(metrics.KindGauge, "both.gauge", 1)
	odd := "a\xffb\"\n"
	e := exporter(t, Config{
		Registry: v.source(),
		Tags:     map[string]string{"domain": "tag", "version": odd, "__x": "1", "code": "c"},
		MappingFile: file(t, `
mappings:
- {match: both.*, name: both}
- {match: native, name: ratelimit_build_info}
- {match: goroutines, name: go_goroutines}
- {match: skipped, name: ratelimit_mapping_skipped}
- {match: part.count, name: hist_count}
- {match: suffix.sum, name: summ_sum}
- {match: bad.label, name: bad_label, labels: {__name__: x}}
- {match: le.label, name: le_label, labels: {le: x}}
- {match: label.*, name: label, labels: {value: $1}}
- {match: t.hist, name: hist, observer_type: histogram}
- {match: t.summ, name: summ}
- {match: t.clash, name: hist, observer_type: summary}
- {match: t.native, name: ratelimit_decision_duration_seconds, observer_type: histogram}
- {match: t.le, name: t_le, observer_type: histogram, labels: {le: x}}
- {match: t.drop, name: t_drop, action: drop}
`),
	})
	e.cfg.Registry.AddFigures(func() []metrics.Figure {
		return []metrics.Figure{
			{MetricName: "ratelimit_store_keys", Help: "h", Labels: []string{"store", odd}, Kind: metrics.KindGauge, Value: 1},
			{
				MetricName: "ratelimit_store_keys", Help: "other", Labels: []string{"store", odd}, Kind: metrics.KindGauge,
				Value: 2,
			},
			{MetricName: "ratelimit_store_keys", Help: "h", Labels: []string{"store", "x"}},
			{MetricName: "ratelimit store", Help: "h\xff", Labels: []string{"__name__", "x", "odd"}},
		}
	}, true)
	var latency metrics.Histogram
	e.cfg.Registry.ShowFigures("latency", "grpc", &latency)
	latency.Observe(time.Millisecond)
	for _, name := range []string{"t.hist", "t.summ", "t.clash", "t.native", "t.le", "t.drop", "t.\xff", ""} {
		e.ObserveTimings(name, 1, time.Millisecond)
	}
	const tags = `_x="1",code="c",domain="tag",`
	lines := scraped(t, e, ".")
	for _, want := range []string{
		`both{` + tags + `version="a` + "\uFFFD" + `b\"\n"} 1`,
		`label{` + tags + `value="` + "\uFFFD" + `\"\n",version="a` + "\uFFFD" + `b\"\n"} 5`,
		`ratelimit_store_keys{` + tags + `store="a` + "\uFFFD" + `b\"\n",version="a` + "\uFFFD" + `b\"\n"} 1`,
		`ratelimit_mapping_skipped{` + tags + `reason="name",version="a` + "\uFFFD" + `b\"\n"} 8`,
		`ratelimit_mapping_skipped{` + tags + `reason="labels",version="a` + "\uFFFD" + `b\"\n"} 2`,
		`ratelimit_mapping_skipped{` + tags + `reason="negative",version="a` + "\uFFFD" + `b\"\n"} 1`,
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("not there: %s", want)
		}
	}
	for _, line := range lines {
		if strings.HasPrefix(line, "ratelimit_mapping") {
			t.Log(line)
		}
	}
	if _, err := e.gatherer.Gather(); err != nil {
		t.Error(err)
	}
}

func TestTagThatCannotBeALabel(t *testing.T) {
	for _, key := range []string{"le", "quantile"} {
		if _, err := New(Config{Registry: metrics.New(metrics.Config{}), Tags: map[string]string{key: "x"}}); err == nil {
			t.Errorf("%s is taken", key)
		}
	}
}

func TestNamesOfTimingsAreBounded(t *testing.T) {
	e := exporter(t, Config{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 2 * maxTimingNames {
				e.ObserveTimings(fmt.Sprintf("ratelimit_server.M%04d.response_time", i), 3, time.Millisecond)
			}
		})
	}
	for range 3 {
		scraped(t, e, "none")
	}
	wg.Wait()
	if got := len(scraped(t, e, "response_time_seconds_count")); got != maxTimingNames {
		t.Errorf("%d histograms, want %d", got, maxTimingNames)
	}
	if got := e.mappedTimings.DroppedTimings.Load(); got != 3*4*maxTimingNames {
		t.Errorf("%d dropped, want %d", got, 3*4*maxTimingNames)
	}
}

func TestNative(t *testing.T) {
	r := metrics.New(metrics.Config{})
	e := exporter(t, Config{Registry: r, Version: "v1", Commit: "abc"})
	r.AddFigures(func() []metrics.Figure {
		return []metrics.Figure{{
			MetricName: "ratelimit_store_keys", Help: "Counters in the store.", Labels: []string{"store", "memory"},
			Kind: metrics.KindGauge, Value: 12,
		}}
	}, true)
	set := load(t, `{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 1}}]}`)
	r.UseRules(set)
	r.ShowFigures("config", "", struct{ AcceptedLoads, RefusedLoads int }{1, 1})
	r.ShowFigures("config in force", "", struct {
		Loaded        time.Time
		InForce       bool
		Hash, Version string
	}{time.UnixMilli(1500), true, "h", ""})
	record(r, set, "k", "v", 0)
	record(r, set, "k", "v", 1)
	record(r, set, "k", "v", 1)
	var latency metrics.Histogram
	r.ShowFigures("latency", "grpc", &latency)
	latency.Observe(30 * time.Microsecond)
	expect(
		t, e, "^ratelimit_(decisions|config|store|series|decision_duration_seconds_(sum|count))",
		`ratelimit_config_info{hash="h"} 1`,
		`ratelimit_config_last_success_timestamp_seconds 1.5`,
		`ratelimit_config_loads_total{result="error"} 1`,
		`ratelimit_config_loads_total{result="success"} 1`,
		`ratelimit_decision_duration_seconds_sum{protocol="grpc"} 3e-05`,
		`ratelimit_decision_duration_seconds_count{protocol="grpc"} 1`,
		`ratelimit_decisions_total{domain="d",outcome="near",rule="k"} 1`,
		`ratelimit_decisions_total{domain="d",outcome="over",rule="k"} 2`,
		`ratelimit_series 0`,
		`ratelimit_series_evicted_total 0`,
		`ratelimit_store_keys{store="memory"} 12`,
	)
	if len(scraped(t, e, "^go_goroutines ")) != 1 || len(scraped(t, e, "^process_start_time_seconds ")) != 1 {
		t.Error("no metrics of Go or the process")
	}
	problems, err := testutil.GatherAndLint(
		e.gatherer, "ratelimit_build_info", "ratelimit_config_info", "ratelimit_config_last_success_timestamp_seconds",
		"ratelimit_config_loads_total",
		"ratelimit_decision_duration_seconds", "ratelimit_decisions_total", "ratelimit_mapping_skipped",
		"ratelimit_mapping_timings_dropped_total",
		"ratelimit_series", "ratelimit_series_evicted_total", "ratelimit_store_keys",
	)
	if err != nil || len(problems) > 0 {
		t.Errorf("%v, %v", problems, err)
	}
}

// leaver is a scraper whose connection is gone, or that cannot be written to for
// another reason.
type leaver struct {
	http.ResponseWriter
	err error
}

func (l leaver) Write([]byte) (int, error) { return 0, l.err }

// Scrapers that do not wait for their answer are not worth a word each.
func TestLeavingScrapersAreSilent(t *testing.T) {
	var warnings []error
	e, err := New(Config{
		Registry: metrics.New(metrics.Config{}),
		OnWarn:   func(err error) { warnings = append(warnings, err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	scrape := func(err error) {
		e.Handler().ServeHTTP(leaver{httptest.NewRecorder(), err},
			httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
	}
	scrape(&net.OpError{Op: "write", Net: "tcp", Err: syscall.EPIPE})
	if len(warnings) > 0 {
		t.Errorf("%d warnings, the first: %v", len(warnings), warnings[0])
	}
	scrape(errors.New("out of ink"))
	if len(warnings) == 0 || !strings.Contains(warnings[0].Error(), "out of ink") {
		t.Errorf("another reason is not told: %v", warnings)
	}
}

// So many scrapes run at once; others are told to come back.
func TestScrapesAreBounded(t *testing.T) {
	letGo := make(chan struct{})
	e := exporter(t, Config{})
	e.cfg.Registry.AddFigures(func() []metrics.Figure { <-letGo; return nil }, true)
	codes := make(chan int, maxConcurrentScrapes+1)
	for range maxConcurrentScrapes + 1 {
		go func() {
			w := httptest.NewRecorder()
			e.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody))
			codes <- w.Code
		}()
	}
	if code := <-codes; code != http.StatusServiceUnavailable { // all others wait
		t.Errorf("one too many: %d, want 503", code)
	}
	close(letGo)
	for range maxConcurrentScrapes {
		if code := <-codes; code != http.StatusOK {
			t.Errorf("status %d, want 200", code)
		}
	}
}
