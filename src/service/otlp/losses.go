package otlp

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"os"
	"strings"
	"time"
)

// Losses reports what a collector did not take, at most once a minute. Calls must not overlap.
type Losses struct {
	onLoss        func(lost int, err error)
	secretRemover *strings.Replacer // removes secrets from errors.
	exportsCtx    context.Context   // ends the export of all batches.
	cancelExports context.CancelFunc

	lastReportAt time.Time // the time of the last call of onLoss.
	lost         int       // counts what was lost since lastReportAt.
	lastErr      error     // the error of the last loss.
}

// reportInterval is the least time between two calls of onLoss.
const reportInterval = time.Minute

// NewLosses returns a Losses for the exporter of s. onLoss gets how much was lost since its last call, and the last
// error, without the values of OTEL_EXPORTER_OTLP_HEADERS. It may be nil.
func NewLosses(s Signal, onLoss func(lost int, err error)) *Losses {
	l := &Losses{onLoss: onLoss, secretRemover: s.newSecretRemover()}
	l.exportsCtx, l.cancelExports = context.WithCancel(context.Background())
	return l
}

// Export calls export, which sends a batch of that size. Its context also ends with CancelExports. An error is reported
// and not returned, because the SDK would pass it to a global handler.
func (l *Losses) Export(ctx context.Context, size int, export func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.exportsCtx, cancel)()
	if err := export(ctx); err != nil {
		l.add(size, err, reportInterval)
	}
}

// CancelExports ends the export that runs, and all later ones. It may be called at any time.
func (l *Losses) CancelExports() { l.cancelExports() }

// ReportRest reports the losses that are not reported yet.
func (l *Losses) ReportRest() { l.add(0, nil, 0) }

// add adds a loss. It calls onLoss if something was lost and the last call was at least interval ago.
func (l *Losses) add(lost int, err error, interval time.Duration) {
	l.lost += lost
	l.lastErr = cmp.Or(err, l.lastErr)
	if l.onLoss == nil || l.lost == 0 || time.Since(l.lastReportAt) < interval {
		return
	}
	l.onLoss(l.lost, errors.New(ClipText(l.secretRemover.Replace(l.lastErr.Error()), maxErrorText)))
	l.lastReportAt, l.lost, l.lastErr = time.Now(), 0, nil
}

// maxErrorText bounds the text of an error, in bytes, because it may come from the collector.
const maxErrorText = 300

// newSecretRemover returns a Replacer that replaces the values of OTEL_EXPORTER_OTLP_HEADERS, and each
// word of them, by "…". The collector may repeat them in an error.
func (s Signal) newSecretRemover() *strings.Replacer {
	var pairs []string
	for _, prefix := range s.variablePrefixes() {
		for header := range strings.SplitSeq(os.Getenv(prefix+"HEADERS"), ",") {
			_, value, _ := strings.Cut(header, "=")
			value, _ = url.PathUnescape(value) // The error can be ignored, because IgnoreMistakes has removed such a variable.
			for _, text := range append(strings.Fields(value), strings.TrimSpace(value)) {
				if len(text) >= 4 { // Shorter texts are not secret and occur in other words.
					pairs = append(pairs, text, "…")
				}
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

// ClipText returns at most the first size bytes of s, as valid UTF-8. The result does not keep the memory of a longer
// s.
func ClipText(s string, size int) string {
	if len(s) > size {
		s = strings.Clone(s[:size])
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
