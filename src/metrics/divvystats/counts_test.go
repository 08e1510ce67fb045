package divvystats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

const kitchen = `
domain: kitchen
rules:
  - match: {path: /oven}
    shadow_mode: true
    rate_limit: {algorithm: first_hit_window, unit: year, requests_per_unit: 2, name: twin}
  - match: {path: /oven}
    rate_limit: {algorithm: first_hit_window, unit: year, requests_per_unit: 2, name: oven}
  - match: {path: /closed}
    rate_limit: {unit: second, requests_per_unit: 0}
  - match: {path: /tap}
    rate_limit: {unlimited: true, name: tap}
  - match: {path: /sink}
    rate_limit: {algorithm: first_hit_window, unit: year, requests_per_unit: 5}
  - match: {}
    shadow_mode: true
    rate_limit: {algorithm: first_hit_window, unit: year, requests_per_unit: 1, name: rest}
`

// broken does not answer once it is told not to.
type broken struct {
	backend.Backend
	now bool
}

func (b *broken) Take(ctx context.Context, batch *backend.Batch) error {
	err := b.Backend.Take(ctx, batch)
	for i := range batch.Verdicts {
		if b.now {
			batch.Verdicts[i] = backend.Verdict{Err: errors.New("away")}
		}
	}
	return err
}

type fixture struct {
	t      *testing.T
	counts *Counts
	store  *broken
	*limiter.Limiter
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, counts: New(), store: &broken{Backend: limitertest.Store(t, memory.Config{})}}
	f.Limiter = limiter.New(limiter.Config{Backend: f.store, Recorders: []limiter.Recorder{f.counts}})
	return f
}

func (f *fixture) use(text string) {
	f.t.Helper()
	set, _, err := filerules.Load([]filerules.File{{Name: "k.yaml", Data: []byte(text)}}, compile.Options{})
	if err != nil {
		f.t.Fatal(err)
	}
	f.counts.UseRules(set)
	f.UseRules(set)
}

func (f *fixture) hit(paths string) {
	for path := range strings.FieldsSeq(paths) {
		entry := rules.Entry{Key: []byte("path"), Value: []byte(path)}
		req := limiter.Request{Domain: []byte("kitchen"), Descriptors: []limiter.Descriptor{{Entries: []rules.Entry{entry}}}}
		if err := f.Check(f.t.Context(), &req, new(limiter.Answer)); err != nil && !errors.Is(err, limiter.ErrStoreFailed) {
			f.t.Error(err)
		}
	}
}

// moved are the figures for statsd that are not 0.
func (f *fixture) moved() string {
	var list []string
	for _, st := range metrics.Stats(f.counts.Figures("", PortFigures{Took: new(metrics.Histogram)})) {
		if st.Value != 0 {
			list = append(list, fmt.Sprintf("%s=%d", strings.TrimPrefix(st.Name, "hit."), st.Value))
		}
	}
	return strings.Join(list, " ")
}

func TestCounts(t *testing.T) {
	for _, tt := range []struct{ hit, want string }{
		{"/oven", "accepted=1 accepted.oven=1 canary-accepted=1 canary-accepted.twin=1"},
		{"/oven /oven /oven", "accepted=2 accepted.oven=2 canary-accepted=2 canary-accepted.twin=2 canary-rejected=1 " +
			"canary-rejected.twin=1 rejected=1 rejected.oven=1"},
		{"/closed /tap", "accepted=1 accepted.tap=1 rejected=1"},
		{"/sink /sink", "accepted=2"},
		{"/table /chair", "canary-accepted=1 canary-accepted.rest=1 canary-rejected=1 canary-rejected.rest=1"},
	} {
		f := newFixture(t)
		f.use(kitchen)
		f.hit(tt.hit)
		if got := f.moved(); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.hit, got, tt.want)
		}
	}
}

// Without its store a hit is neither, but for what is always refused.
func TestWithoutStore(t *testing.T) {
	f := newFixture(t)
	f.use(kitchen)
	f.store.now = true
	f.hit("/oven /closed /tap /sink")
	if got, want := f.moved(), "accepted=1 accepted.tap=1 rejected=1"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// What was counted stays when rules change, and when their labels go.
func TestReload(t *testing.T) {
	f := newFixture(t)
	f.use(kitchen)
	f.hit("/oven /sink")
	f.use(strings.Replace(kitchen, "name: oven", "name: stove", 1))
	f.hit("/oven /sink")
	want := "accepted=4 accepted.oven=1 accepted.stove=1 canary-accepted=2 canary-accepted.twin=2"
	if got := f.moved(); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestFigures(t *testing.T) {
	f := newFixture(t)
	f.use(kitchen)
	f.hit("/oven")
	port := PortFigures{Connections: 3, Errors: map[string]uint64{"unknown": 2}, Took: new(metrics.Histogram)}
	stats := make(map[string]metrics.Stat)
	before := ""
	for _, st := range metrics.Stats(f.counts.Figures("a.", port)) {
		if st.Name <= before {
			t.Errorf("%s stands behind %s", st.Name, before)
		}
		before = st.Name
		stats[st.Name] = st
	}
	for _, want := range []metrics.Stat{
		{Name: "a.connections", Kind: metrics.KindGauge, Value: 3},
		{Name: "a.error.unknown", Value: 2},
		{Name: "a.hit.accepted", Value: 1},
		{Name: "a.hit.accepted.oven", Value: 1},
		{Name: "a.hit.canary-accepted.twin", Value: 1},
		{Name: "a.hit.rejected.oven"},
	} {
		if got, ok := stats[want.Name]; !ok || got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}

	port.Took.Observe(3_000_000)
	samples := make(map[string]float64)
	for _, s := range f.counts.Figures("a.", port) {
		if s.MetricName != "divvy_hit_duration_seconds" {
			samples[s.MetricName+fmt.Sprint(s.Labels)] = s.ScaledValue()
			continue
		}
		count, _, buckets := s.Histogram.Snapshot()
		if got := fmt.Sprint(s.MetricName, count,
			buckets); got != "divvy_hit_duration_seconds1 map[0.001:0 0.002:0 0.005:1 0.01:1 0.1:1 0.5:1]" {
			t.Errorf("got %s", got)
		}
	}
	for name, want := range map[string]float64{
		"divvy_tcp_connections_total[]":                            3,
		"divvy_errors_total[code unknown]":                         2,
		"divvy_hits_total[status accepted rule_label oven]":        1,
		"divvy_hits_total[status rejected rule_label oven]":        0,
		"divvy_hits_total[status canary-accepted rule_label twin]": 1,
		"divvy_hits_total[status rejected rule_label ]":            0,
		"divvy_hits_total[status canary-rejected rule_label rest]": 0,
	} {
		if got, ok := samples[name]; !ok || got != want {
			t.Errorf("%s: %v, %v", name, got, ok)
		}
	}
	if _, odd := samples["divvy_hits_total[status accepted rule_label twin]"]; odd {
		t.Error("a canary has figures of a rule that decides")
	}
}

func TestRecordAllocatesNothing(t *testing.T) {
	f := newFixture(t)
	f.use(kitchen)
	req := limiter.Request{
		Domain:      []byte("kitchen"),
		Descriptors: []limiter.Descriptor{{Entries: []rules.Entry{{Key: []byte("path"), Value: []byte("/oven")}}}},
	}
	var a limiter.Answer
	if err := f.Check(t.Context(), &req, &a); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { f.counts.Record(&req, &a) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
