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

// lossReporter gives batches to an exporter and reports its errors, which the SDK would
// give to a global handler.
type lossReporter struct {
	sdktrace.SpanExporter
	onLoss  func(spans int, err error)
	secrets *strings.Replacer
	quit    context.Context // ends the export of all batches
	giveUp  context.CancelFunc

	mu       sync.Mutex // guards what follows
	reported time.Time  // the last call of onLoss
	lost     int        // spans, since then
	err      error      // of the last lost batch
}

// reportInterval is the time between two calls of onLoss.
const reportInterval = time.Minute

func newLossReporter(to sdktrace.SpanExporter, onLoss func(int, error)) *lossReporter {
	c := &lossReporter{SpanExporter: to, onLoss: onLoss, secrets: secrets()}
	c.quit, c.giveUp = context.WithCancel(context.Background())
	return c
}

// ExportSpans sends one batch; it never fails.
func (c *lossReporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.quit, cancel)()
	if err := c.SpanExporter.ExportSpans(ctx, spans); err != nil {
		c.lose(len(spans), err, reportInterval)
	}
	return nil
}

// Shutdown is called once, after the last batch.
func (c *lossReporter) Shutdown(ctx context.Context) error {
	c.lose(0, nil, 0)
	return c.SpanExporter.Shutdown(ctx)
}

// lose counts lost spans, and calls onLoss without the lock if there are any and the last
// call was at least interval ago.
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

// maxReason bounds the text of an error, which the collector may choose, in bytes.
const maxReason = 300

// secrets replaces the values of the headers for the collector, whole and word by word,
// because the collector may send them back in an error.
func secrets() *strings.Replacer {
	var pairs []string
	for _, prefix := range prefixes {
		for header := range strings.SplitSeq(os.Getenv(prefix+"HEADERS"), ",") {
			_, value, _ := strings.Cut(header, "=")
			value, _ = url.PathUnescape(value) // checkVariables refused values with an error
			for _, text := range append(strings.Fields(value), strings.TrimSpace(value)) {
				if len(text) >= 4 { // shorter ones are no secrets and occur in other words
					pairs = append(pairs, text, "…")
				}
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

// clip bounds s to size bytes of UTF-8, without a reference to the rest.
func clip(s string, size int) string {
	if len(s) > size {
		s = strings.Clone(s[:size])
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
