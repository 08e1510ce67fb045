package quota

import (
	"testing"
	"time"
)

// A bucket is short while its proxies want more than there is.
func TestShortBuckets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, "domain: d\ndescriptors: [{key: k, rate_limit: {unit: second, requests_per_unit: 100}}]", 1)
	a, b := w.connect(0, 150, time.Second), w.connect(0, 150, time.Second)
	st := w.nodes[0].Stats()
	for _, step := range []struct {
		rate float64
		want int64
	}{{150, 1}, {20, 0}, {90, 1}} {
		a.rate, b.rate = step.rate, step.rate
		w.run(10 * time.Second)
		if got := st.ShortBuckets.Load(); got != step.want {
			t.Errorf("2 proxies want %.0f a second: %d buckets of 100 a second are short, want %d", step.rate, got, step.want)
		}
		if got := st.UnfairnessPermil.Load(); got > 50 {
			t.Errorf("2 proxies want %.0f a second: one gets %d thousandths less than the other", step.rate, got)
		}
	}
}
