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
		l := newLosses("TRACES", func(lost int, err error) { told = append(told, fmt.Sprint(lost, " ", err)) })
		refusal := errors.New("sent Basic dXNlcjpwdw==, or dXNlcjpwdw==: " + strings.Repeat("x", 1000) + "\xff")
		for range 1000 { // 1000 batches of 3 in 100 s
			l.export(t.Context(), 3, func(context.Context) error { return refusal })
			time.Sleep(100 * time.Millisecond)
		}
		l.export(t.Context(), 3, func(context.Context) error { return nil })
		l.reportRest()
		l.reportRest()
		want := "sent … …, or …: "
		want += strings.Repeat("x", maxErrorText-len(want))
		if !slices.Equal(told, []string{"3 " + want, "1800 " + want, "1197 " + want}) {
			t.Errorf("%q", told)
		}
	})
}
