package remote

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestWait(t *testing.T) {
	const ms = time.Millisecond
	for _, tt := range []struct {
		left, want time.Duration // 0 left: no deadline
	}{
		{0, 50 * ms},
		{time.Second, 50 * ms},
		{55 * ms, 50 * ms},
		{54 * ms, 49 * ms},
		{20 * ms, 15 * ms},
		{12 * ms, 9 * ms},
		{4 * ms, 3 * ms},
		{-4 * ms, -3 * ms}, // over: at once
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if tt.left != 0 {
				ctx, cancel = context.WithDeadline(ctx, time.Now().Add(tt.left))
			}
			defer cancel()
			if got := maxCallWait(ctx, 50*ms); got != tt.want {
				t.Errorf("with %v left: %v, want %v", tt.left, got, tt.want)
			}
			if n := testing.AllocsPerRun(10, func() { maxCallWait(ctx, 50*ms) }); n > 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}
