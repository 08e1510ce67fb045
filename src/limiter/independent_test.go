package limiter_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"ratelimit/src/backend"
	"ratelimit/src/backend/memory"
	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
)

// Independent descriptors are answered as if each came alone, in their order.
func TestIndependent(t *testing.T) {
	for _, tt := range []struct {
		name string
		cfg  limiter.Config
		ask  string
	}{
		{"one counter, in order", limiter.Config{}, "ip=1 ip=1 ip=1 ip=2"},
		{"nothing is replaced", limiter.Config{}, "ip=1 premium=x ip=1 ip=1 premium=x"},
		{"quotas refuse alone", limiter.Config{}, "gold=a silver=a gold=a silver=a silver=a"},
		{"all quotas", limiter.Config{QuotaMode: true}, "ip=1 gold=a ip=1 gold=a ip=1"},
		{"all or nothing", limiter.Config{ChargeAllOrNothing: true}, "ip=1 trial=x ip=1 trial=x ip=1 ip=1"},
		{"all pass", limiter.Config{ShadowMode: true}, "ip=1 ip=10.0.0.7 ip=1 ip=1"},
		{"unlimited and unmatched", limiter.Config{}, "staff=x nobody=x ip=1"},
		{"refunds and looks", limiter.Config{ChargeAllOrNothing: true}, "ip=1:2 ip=1:0 ip=1- ip=1 ip=1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			together, alone := start(t, tt.cfg), start(t, tt.cfg)
			req := parse(tt.ask)
			req.IndependentDescriptors = true
			var a, one limiter.Answer
			if err := together.Check(t.Context(), req, &a); err != nil {
				t.Fatal(err)
			}
			refused := false
			for i, ask := range strings.Fields(tt.ask) {
				if err := alone.Check(t.Context(), parse(ask), &one); err != nil {
					t.Fatal(err)
				}
				got := limiter.Answer{Statuses: a.Statuses[i : i+1], Over: a.Statuses[i].Over && !tt.cfg.ShadowMode}
				if brief(&got) != brief(&one) {
					t.Errorf("%d, %s: got %s, alone %s", i, ask, brief(&got), brief(&one))
				}
				refused = refused || one.Over
			}
			if a.Over != refused {
				t.Errorf("over %t, refused %t", a.Over, refused)
			}
		})
	}
}

// lossy is a store that does not answer for some keys.
type lossy struct {
	backend.Backend
	lost string // in the key
}

func (l lossy) Take(ctx context.Context, b *backend.Batch) error {
	err := l.Backend.Take(ctx, b)
	for i := range b.Hits {
		if strings.Contains(string(b.Hits[i].Key), l.lost) {
			b.Verdicts[i] = backend.Verdict{Err: errors.New("lost")}
		}
	}
	return err
}

// Each descriptor fails alone, and counters count decisions.
func TestIndependentAreCounted(t *testing.T) {
	store, err := memory.New(memory.Config{})
	if err != nil {
		t.Fatal(err)
	}
	counters := metrics.New(metrics.Config{})
	l := start(t, limiter.Config{Backend: lossy{store, "lost"}, Recorders: []limiter.Recorder{counters}, ShadowMode: true})
	counters.UseRules(l.Rules())
	req, a := parse("ip=lost ip=1:3 ip=lost ip=1 ip=2"), new(limiter.Answer)
	req.IndependentDescriptors = true
	if err := l.Check(t.Context(), req, a); !errors.Is(err, limiter.ErrStoreFailed) {
		t.Fatal(err)
	}
	for i, want := range []bool{true, false, true, false, false} {
		if a.Statuses[i].StoreFailed != want {
			t.Errorf("descriptor %d failed: %t", i, !want)
		}
	}
	got := make(map[string]int64)
	for _, st := range counters.Stats() {
		got[st.Name] = st.Value
	}
	for _, name := range []string{"ratelimit.service.call.should_rate_limit.redis_error", "ratelimit.service.global_shadow_mode"} {
		if got[name] != 2 {
			t.Errorf("%s is %d, want 2", name, got[name])
		}
	}
}
