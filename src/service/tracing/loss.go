package tracing

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// lossReporter is a SpanExporter that reports the errors of another one to onLoss. Without it,
// the SDK would pass errors to a global handler. The SDK makes one call of it at a time.
type lossReporter struct {
	sdktrace.SpanExporter
	onLoss        func(spans int, err error)
	secretRemover *strings.Replacer // secretRemover removes secrets from errors.
	exportsCtx    context.Context   // exportsCtx ends the export of all batches.
	cancelExports context.CancelFunc

	lastReportAt time.Time // lastReportAt is the time of the last call of onLoss.
	lostSpans    int       // lostSpans counts spans that were lost since lastReportAt.
	lastErr      error     // lastErr is the error of the last lost batch.
}

// lossReportInterval is the least time between two calls of onLoss.
const lossReportInterval = time.Minute

func newLossReporter(to sdktrace.SpanExporter, onLoss func(int, error)) *lossReporter {
	c := &lossReporter{SpanExporter: to, onLoss: onLoss, secretRemover: newSecretRemover()}
	c.exportsCtx, c.cancelExports = context.WithCancel(context.Background())
	return c
}

// ExportSpans sends one batch. It reports errors to onLoss and always returns nil.
func (c *lossReporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.exportsCtx, cancel)()
	if err := c.SpanExporter.ExportSpans(ctx, spans); err != nil {
		c.addLoss(len(spans), err, lossReportInterval)
	}
	return nil
}

// Shutdown reports the remaining lost spans. The SDK calls it once, after the last batch.
func (c *lossReporter) Shutdown(ctx context.Context) error {
	c.addLoss(0, nil, 0)
	return c.SpanExporter.Shutdown(ctx)
}

// addLoss adds lost spans. It calls onLoss if spans were lost and the last call was at least interval ago.
func (c *lossReporter) addLoss(spans int, err error, interval time.Duration) {
	c.lostSpans += spans
	c.lastErr = cmp.Or(err, c.lastErr)
	if c.onLoss == nil || c.lostSpans == 0 || time.Since(c.lastReportAt) < interval {
		return
	}
	c.onLoss(c.lostSpans, errors.New(clipText(c.secretRemover.Replace(c.lastErr.Error()), maxErrorText)))
	c.lastReportAt, c.lostSpans, c.lastErr = time.Now(), 0, nil
}

// maxErrorText bounds the text of an error, in bytes, because it may come from the collector.
const maxErrorText = 300

// newSecretRemover returns a Replacer that replaces the values of OTEL_EXPORTER_OTLP_HEADERS, and each
// word of them, by "…". The collector may repeat them in an error.
func newSecretRemover() *strings.Replacer {
	var pairs []string
	for _, prefix := range variablePrefixes {
		for header := range strings.SplitSeq(os.Getenv(prefix+"HEADERS"), ",") {
			_, value, _ := strings.Cut(header, "=")
			value, _ = url.PathUnescape(value) // The error can be ignored, because checkVariables has checked the value.
			for _, text := range append(strings.Fields(value), strings.TrimSpace(value)) {
				if len(text) >= 4 { // Shorter texts are not secret and occur in other words.
					pairs = append(pairs, text, "…")
				}
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

// clipText returns at most the first size bytes of s, as valid UTF-8. The result does not keep the memory of a longer s.
func clipText(s string, size int) string {
	if len(s) > size {
		s = strings.Clone(s[:size])
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
