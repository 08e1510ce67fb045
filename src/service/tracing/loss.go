package tracing

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// lossReporter is a SpanExporter that reports the errors of another one to onLoss. Without it,
// the SDK would pass errors to a global handler.
type lossReporter struct {
	sdktrace.SpanExporter
	onLoss  func(spans int, err error)
	secrets *strings.Replacer  // removes secrets from errors
	quit    context.Context    // cancels the export of all batches
	giveUp  context.CancelFunc // ends quit

	mu       sync.Mutex // guards the fields below
	reported time.Time  // time of the last call of onLoss
	lost     int        // lost spans since then
	err      error      // error of the last lost batch
}

// reportInterval is the least time between two calls of onLoss.
const reportInterval = time.Minute

func newLossReporter(to sdktrace.SpanExporter, onLoss func(int, error)) *lossReporter {
	c := &lossReporter{SpanExporter: to, onLoss: onLoss, secrets: secrets()}
	c.quit, c.giveUp = context.WithCancel(context.Background())
	return c
}

// ExportSpans sends one batch. It reports errors to onLoss and always returns nil.
func (c *lossReporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.quit, cancel)()
	if err := c.SpanExporter.ExportSpans(ctx, spans); err != nil {
		c.lose(len(spans), err, reportInterval)
	}
	return nil
}

// Shutdown reports the remaining lost spans. The SDK calls it once, after the last batch.
func (c *lossReporter) Shutdown(ctx context.Context) error {
	c.lose(0, nil, 0)
	return c.SpanExporter.Shutdown(ctx)
}

// lose adds lost spans. It calls onLoss, without holding the lock, if spans were lost and the
// last call was at least interval ago.
func (c *lossReporter) lose(spans int, err error, interval time.Duration) {
	c.mu.Lock()
	c.lost += spans
	c.err = cmp.Or(err, c.err)
	lost, err := c.lost, c.err
	now := lost > 0 && time.Since(c.reported) >= interval
	if now {
		c.reported, c.lost, c.err = time.Now(), 0, nil
	}
	c.mu.Unlock()
	if now && c.onLoss != nil {
		c.onLoss(lost, errors.New(clip(c.secrets.Replace(err.Error()), maxReason)))
	}
}

// maxReason bounds the text of an error, in bytes, because it may come from the collector.
const maxReason = 300

// secrets returns a Replacer that replaces the values of OTEL_EXPORTER_OTLP_HEADERS, and each
// word of them, by "…". The collector may repeat them in an error.
func secrets() *strings.Replacer {
	var pairs []string
	for _, prefix := range prefixes {
		for header := range strings.SplitSeq(os.Getenv(prefix+"HEADERS"), ",") {
			_, value, _ := strings.Cut(header, "=")
			value, _ = url.PathUnescape(value) // checkVariables refused values with an error
			for _, text := range append(strings.Fields(value), strings.TrimSpace(value)) {
				if len(text) >= 4 { // shorter texts are not secret and occur in other words
					pairs = append(pairs, text, "…")
				}
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

// clip returns at most the first size bytes of s, as valid UTF-8. The result does not keep the
// memory of a longer s.
func clip(s string, size int) string {
	if len(s) > size {
		s = strings.Clone(s[:size])
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
