package otlp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLossesAreReportedOnceAMinute(t *testing.T) {
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Basic%20dXNlcjpwdw%3D%3D")
	synctest.Test(t, func(t *testing.T) {
		var told []string
		l := NewLosses(Traces, func(lost int, err error) { told = append(told, fmt.Sprint(lost, " ", err)) })
		refusal := errors.New("sent Basic dXNlcjpwdw==, or dXNlcjpwdw==: " + strings.Repeat("x", 1000) + "\xff")
		for range 1000 { // 1000 batches of 3 in 100 s
			l.Export(t.Context(), 3, func(context.Context) error { return refusal })
			time.Sleep(100 * time.Millisecond)
		}
		l.Export(t.Context(), 3, func(context.Context) error { return nil })
		l.ReportRest()
		l.ReportRest()
		want := "sent … …, or …: "
		want += strings.Repeat("x", maxErrorText-len(want))
		if !slices.Equal(told, []string{"3 " + want, "1800 " + want, "1197 " + want}) {
			t.Errorf("%q", told)
		}
	})
}

func TestExportsAreCancelled(t *testing.T) {
	var lost int
	l := NewLosses(Metrics, func(n int, _ error) { lost += n })
	for range 2 {
		l.Export(t.Context(), 1, func(ctx context.Context) error {
			l.CancelExports()
			<-ctx.Done()
			return ctx.Err()
		})
	}
	l.ReportRest()
	if lost != 2 {
		t.Errorf("%d were lost, want 2", lost)
	}
}
