package operator

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/operator/denials"
	"ratelimit/src/operator/unmatched"
	"ratelimit/src/quota"
	"ratelimit/src/rules"
	"ratelimit/src/rules/compile"
	"ratelimit/src/rules/filerules"
	"ratelimit/testbed/limitertest"
)

func newTracker() *unmatched.Tracker {
	return unmatched.New(unmatched.Config{OnSample: func(unmatched.Sample) {}})
}

func newObserver(registry *metrics.Registry) *Observer {
	return NewObserver(Config{Registry: registry, Unmatched: newTracker()})
}

// A history has the rates of all kinds.
func TestHistory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, _, err := filerules.Load([]filerules.File{{
			Name: "d.yaml",
			Data: []byte("domain: d\ndescriptors: [{key: ip, rate_limit: {unit: minute, requests_per_unit: 2}}]\n"),
		}},
			compile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		store := limitertest.Store(t, memory.Config{})
		registry := metrics.New(metrics.Config{NearRatio: 0.5})
		l := limiter.New(limiter.Config{Backend: store, Recorders: []limiter.Recorder{registry}})
		registry.UseRules(set)
		l.UseRules(set)
		o := newObserver(registry)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- o.history.Run(ctx) }()
		synctest.Wait()
		req := &limiter.Request{
			Domain:      []byte("d"),
			Descriptors: []limiter.Descriptor{{Entries: []rules.Entry{{Key: []byte("ip"), Value: []byte("1")}}}},
		}
		for range 10 {
			if err := l.Check(ctx, req, new(limiter.Answer)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		h, ok := o.history.Hour("d", "d.ip")
		got := fmt.Sprintf("%.2g %.2g %.2g %.2g %.2g %.2g", h.Admitted, h.Denied, h.Near, h.Shadow, h.Fallback, h.Failed)
		if want := "[0.2] [0.8] [0.1] [0] [0] [0]"; !ok || got != want || h.StepSeconds != 10 {
			t.Errorf("got %s, %t, want %s", got, ok, want)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

const usageRules = `
domain: q
quota_buckets: true
descriptors:
  - key: env
    descriptors: [{key: name, rate_limit: {unit: year, requests_per_unit: 1000}}]
`

// A report costs the operator's figures no allocation.
func TestUsageAllocatesNothing(t *testing.T) {
	set := limitertest.Rules(t, usageRules)
	o := NewObserver(Config{Registry: metrics.New(metrics.Config{}), SubjectRules: 8, Unmatched: newTracker()})
	o.sampler = denials.New(denials.Config{Interval: time.Hour, OnSample: func(denials.Denial) {}})
	o.UseRules(set)
	rule := set.Rules()[0]
	entries, err := callertext.ParseDescriptor("env=prod,name=web")
	if err != nil {
		t.Fatal(err)
	}
	u := quota.Usage{
		Domain: []byte("q"), Entries: entries, Allowed: 5, Denied: 7,
		Target: quota.Target{
			RuleSet: set, Match: &rules.Match{Descriptor: rule.Descriptor}, Rules: []*rules.Rule{rule},
			Hits: []backend.Hit{{Key: []byte("q_env_prod_name_web_"), Limit: &rule.Limit}},
		},
	}
	if n := testing.AllocsPerRun(1000, func() { o.RecordUsage(&u) }); n > 0 {
		t.Errorf("a report allocates %.0f times", n)
	}
}
