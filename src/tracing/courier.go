package tracing

import (
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// courier hands batches to an exporter and deals with its errors, which the SDK
// would give to a global handler.
type courier struct {
	sdktrace.SpanExporter
	onLoss  func(spans int, err error)
	secrets *strings.Replacer
	quit    context.Context // ends batches under way, and those to come
	giveUp  context.CancelFunc

	mu   sync.Mutex
	told time.Time // the last call of onLoss
	lost int       // spans, since then
	err  error     // why the last of them were
}

// patience is the time between two calls of onLoss.
const patience = time.Minute

func newCourier(to sdktrace.SpanExporter, onLoss func(int, error)) *courier {
	c := &courier{SpanExporter: to, onLoss: onLoss, secrets: secrets()}
	c.quit, c.giveUp = context.WithCancel(context.Background())
	return c
}

// ExportSpans sends one batch; it never fails.
func (c *courier) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.quit, cancel)()
	if err := c.SpanExporter.ExportSpans(ctx, spans); err != nil {
		c.lose(len(spans), err)
	}
	return nil
}

// Shutdown is called once, after the last batch.
func (c *courier) Shutdown(ctx context.Context) error {
	c.tell(0)
	return c.SpanExporter.Shutdown(ctx)
}

func (c *courier) lose(spans int, err error) {
	c.mu.Lock()
	c.lost += spans
	c.err = err
	c.mu.Unlock()
	c.tell(patience)
}

// tell calls onLoss, without the lock, if spans were lost and the last call is that
// long ago.
func (c *courier) tell(after time.Duration) {
	c.mu.Lock()
	lost, err := c.lost, c.err
	now := lost > 0 && time.Since(c.told) >= after
	if now {
		c.told, c.lost, c.err = time.Now(), 0, nil
	}
	c.mu.Unlock()
	if now && c.onLoss != nil {
		c.onLoss(lost, errors.New(clip(c.secrets.Replace(err.Error()), maxReason)))
	}
}

// maxReason bounds, in bytes, the text of an error, in which collectors may say
// what they like.
const maxReason = 300

// secrets replaces the values of the headers sent to the collector, whole and
// word by word, since it may send them back with its refusal.
func secrets() *strings.Replacer {
	var pairs []string
	for _, prefix := range prefixes {
		for header := range strings.SplitSeq(os.Getenv(prefix+"HEADERS"), ",") {
			_, value, _ := strings.Cut(header, "=")
			value, _ = url.PathUnescape(value) // no error: checkVariables has seen it
			for _, text := range append(strings.Fields(value), strings.TrimSpace(value)) {
				if len(text) >= 4 { // shorter ones hide nothing and are everywhere
					pairs = append(pairs, text, "…")
				}
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

// clip bounds s to size bytes of UTF-8, and keeps nothing of what is cut off.
func clip(s string, size int) string {
	if len(s) > size {
		s = strings.Clone(s[:size])
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
