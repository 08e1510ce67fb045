package service

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/otlptranslator"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"ratelimit/src/metrics"
)

// metricsCollector is an OpenTelemetry collector in this process that keeps the newest metrics.
type metricsCollector struct {
	collectorpb.UnimplementedMetricsServiceServer
	mu       sync.Mutex
	exports  int
	series   map[string]float64 // names of Prometheus with labels as keys.
	resource map[string]string
}

// startMetricsCollector starts a collector. Services launched after it send their metrics there.
func startMetricsCollector(t *testing.T, protocol string) *metricsCollector {
	t.Helper()
	c := new(metricsCollector)
	addr := serveOTLP(t, protocol, func(srv *grpc.Server) { collectorpb.RegisterMetricsServiceServer(srv, c) }, c)
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
		"http://"+addr+map[string]string{"http/protobuf": "/v1/metrics"}[protocol])
	return c
}

// otlpOn are the variables that send metrics to the collector.
func otlpOn(protocol string, interval time.Duration) []string {
	return []string{
		"DISABLE_STATS=false", "OTEL_METRICS_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=" + protocol,
		fmt.Sprint("OTEL_METRIC_EXPORT_INTERVAL=", interval.Milliseconds()),
	}
}

// Export receives metrics over gRPC.
func (c *metricsCollector) Export(_ context.Context,
	req *collectorpb.ExportMetricsServiceRequest,
) (*collectorpb.ExportMetricsServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.exports++
	c.series = make(map[string]float64)
	for _, rm := range req.GetResourceMetrics() {
		c.resource = attributes(rm.GetResource().GetAttributes())
		for _, sm := range rm.GetScopeMetrics() {
			for _, m := range sm.GetMetrics() {
				c.add(m)
			}
		}
	}
	return new(collectorpb.ExportMetricsServiceResponse), nil
}

func (c *metricsCollector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req := new(collectorpb.ExportMetricsServiceRequest)
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = proto.Unmarshal(body, req)
	}
	if err != nil || r.URL.Path != "/v1/metrics" {
		http.Error(w, fmt.Sprint(r.URL.Path, err), http.StatusBadRequest)
		return
	}
	_, _ = c.Export(r.Context(), req)
}

// add adds the series of a metric under the names that Prometheus gives them.
func (c *metricsCollector) add(m *metricspb.Metric) {
	var kind otlptranslator.MetricType = otlptranslator.MetricTypeGauge
	numbers := m.GetGauge().GetDataPoints()
	switch {
	case m.GetSum() != nil:
		kind, numbers = otlptranslator.MetricTypeMonotonicCounter, m.GetSum().GetDataPoints()
	case m.GetHistogram() != nil:
		kind = otlptranslator.MetricTypeHistogram
	}
	namer := otlptranslator.NewMetricNamer("", otlptranslator.UnderscoreEscapingWithSuffixes)
	name, err := namer.Build(otlptranslator.Metric{Name: m.GetName(), Unit: m.GetUnit(), Type: kind})
	if err != nil {
		name = err.Error()
	}
	for _, p := range numbers {
		value := p.GetAsDouble()
		if n, ok := p.GetValue().(*metricspb.NumberDataPoint_AsInt); ok {
			value = float64(n.AsInt)
		}
		c.series[seriesName(name, p.GetAttributes())] = value
	}
	for _, p := range m.GetHistogram().GetDataPoints() {
		c.series[seriesName(name+"_sum", p.GetAttributes())] = p.GetSum()
		c.series[seriesName(name+"_count", p.GetAttributes())] = float64(p.GetCount())
		atMost := uint64(0)
		for i, n := range p.GetBucketCounts() {
			atMost += n
			bound := "+Inf"
			if i < len(p.GetExplicitBounds()) {
				bound = strconv.FormatFloat(p.GetExplicitBounds()[i], 'g', -1, 64)
			}
			c.series[seriesName(name+"_bucket", p.GetAttributes(), fmt.Sprintf("le=%q", bound))] = float64(atMost)
		}
	}
}

// seriesName returns a series as a scrape writes it. last are labels behind the others.
func seriesName(name string, labels []*commonpb.KeyValue, last ...string) string {
	var list []string
	for _, l := range labels {
		list = append(list, fmt.Sprintf("%s=%q", l.GetKey(), l.GetValue().GetStringValue()))
	}
	slices.Sort(list)
	list = append(list, last...)
	if len(list) == 0 {
		return name
	}
	return name + "{" + strings.Join(list, ",") + "}"
}

func (c *metricsCollector) value(series string) float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.series[series]
}

// movingFigures are native metrics that move by themselves.
var movingFigures = []string{"ratelimit_buffered_bytes", "ratelimit_log_waiting_bytes"}

// difference compares the newest export with the native metrics of a scrape. It returns how many series are equal, and
// those that differ.
func (c *metricsCollector) difference(scrape string) (equal int, different []string) {
	native := make(map[string]bool)
	for _, figures := range metrics.Declarations() {
		for _, f := range figures {
			native[f.MetricName] = !slices.Contains(movingFigures, f.MetricName)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for line := range strings.Lines(scrape) {
		end := strings.LastIndexByte(line, ' ')
		series := line[:max(end, 0)]
		family, _, _ := strings.Cut(series, "{")
		if !native[family] && !native[histogramSuffix.ReplaceAllString(family, "")] {
			continue
		}
		want, err := strconv.ParseFloat(strings.TrimSpace(line[end:]), 64)
		if got, sent := c.series[series]; sent && got == want && err == nil {
			equal++
		} else {
			different = append(different, fmt.Sprintf("%s: scraped %v, sent %v (%v)", series, want, got, sent))
		}
	}
	return equal, different
}

var histogramSuffix = regexp.MustCompile(`_(bucket|sum|count)$`)

// A collector gets what a scrape shows, value by value, over both protocols.
func TestOTLPMetrics(t *testing.T) {
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			c := startMetricsCollector(t, protocol)
			s := askForFigures(t, launch(t, figureRules+heldFigureRule,
				append(otlpOn(protocol, 50*time.Millisecond), "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:0",
					"TRACING_SERVICE_NAME=limits", "TRACING_SERVICE_INSTANCE_ID=pod-1")...))
			equal, different := 0, []string{"no export"}
			for until := time.Now().Add(10 * time.Second); len(different) > 0 && time.Now().Before(until); {
				scrape := s.page("prometheus", "/metrics")
				before := c.count()
				s.until("an export", func() bool { return c.count() > before })
				equal, different = c.difference(scrape)
			}
			if len(different) > 0 || equal < 100 {
				t.Errorf("%d series are equal, these are not:\n%s", equal, strings.Join(different, "\n"))
			}
			s.signals <- syscall.SIGTERM
			if err := s.wait(); err != nil {
				t.Error(err)
			}
			if c.about("service.name") != "limits" || c.about("service.instance.id") != "pod-1" {
				t.Errorf("resource %v", c.resource)
			}
			if s.logged("collector")() {
				t.Errorf("there are warnings:\n%s", s.log.String())
			}
		})
	}
}

// hasFamily reports whether the newest export has a metric of that name.
func (c *metricsCollector) hasFamily(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(slices.Collect(maps.Keys(c.series)),
		func(s string) bool { return strings.HasPrefix(s, name+"{") })
}

// about returns an attribute of the resource.
func (c *metricsCollector) about(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.resource[name]
}

func (c *metricsCollector) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.exports
}

// The last metrics are sent at the end. EXTRA_TAGS describe the process.
func TestOTLPMetricsAreFlushed(t *testing.T) {
	c := startMetricsCollector(t, "grpc")
	s := launch(t, oneRule, append(otlpOn("grpc", time.Hour), "EXTRA_TAGS=zone:a")...)
	s.until("ready", s.healthy)
	for range 3 {
		s.ask("1")
	}
	s.signals <- syscall.SIGTERM
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	over := c.value(`ratelimit_decisions_total{domain="d",outcome="over",rule="ip"}`)
	if c.count() != 1 || over != 1 || !c.hasFamily("ratelimit_build_info") || c.about("zone") != "a" ||
		len(c.about("service.instance.id")) != 36 {
		t.Errorf("%d exports, %v over, %v", c.count(), over, c.resource)
	}
}

// A collector that is unreachable or never answers delays no request, and keeps nothing in memory.
func TestMetricsCollectorAway(t *testing.T) {
	silent := listenLocal(t, "")
	away := listenLocal(t, "")
	if err := away.Close(); err != nil {
		t.Fatal(err)
	}
	for protocol, addr := range map[string]string{"grpc": silent.Addr().String(), "http/protobuf": away.Addr().String()} {
		t.Run(protocol, func(t *testing.T) {
			t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://"+addr)
			t.Setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "500")
			s := launch(t, strings.Replace(oneRule, "2}", "1000}", 1), otlpOn(protocol, 10*time.Millisecond)...)
			s.until("ready", s.healthy)
			s.until("a warning", s.logged("the collector did not take 1 exports of metrics"))
			for range 100 {
				if got := s.ask("1"); got != 200 {
					t.Fatalf("got %d", got)
				}
			}
			s.signals <- syscall.SIGTERM
			if err := s.wait(); err != nil {
				t.Error(err)
			}
			if got := strings.Count(s.log.String(), "the collector did not take"); got > 2 {
				t.Errorf("%d warnings", got)
			}
		})
	}
}

func TestBadOTLPMetrics(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "localhost:4318")
	t.Setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
	s := launch(t, oneRule, otlpOn("http/protobuf", time.Hour)...)
	s.until("the endpoint is ignored",
		s.logged("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=…: write a URL such as http://collector:4318"))
	s.until("the temporality is ignored", s.logged("TEMPORALITY_PREFERENCE=…: write cumulative"))
	s.until("ready", s.healthy)
}
