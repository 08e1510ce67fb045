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

// losses reports what a collector did not take, at most once a minute. Calls must not overlap, except of untilEnd.
type losses struct {
	onLoss        func(lost int, err error) // may be nil
	secretRemover *strings.Replacer         // removes secrets from errors.
	exportsCtx    context.Context           // ends the export of all batches.
	cancelExports context.CancelFunc

	lastReportAt time.Time // the time of the last call of onLoss.
	lost         int       // counts what was lost since lastReportAt.
	lastErr      error     // the error of the last loss.
}

// reportInterval is the least time between two calls of onLoss.
const reportInterval = time.Minute

// newLosses returns the losses of the exporter of a signal, TRACES or METRICS. onLoss is Config.OnLoss.
func newLosses(signal string, onLoss func(lost int, err error)) *losses {
	l := &losses{onLoss: onLoss, secretRemover: newSecretRemover(signal)}
	l.exportsCtx, l.cancelExports = context.WithCancel(context.Background())
	return l
}

// export calls send, which sends a batch of that size. An error is reported and not returned, because the SDK would
// pass it to a global handler.
func (l *losses) export(ctx context.Context, size int, send func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.exportsCtx, cancel)()
	if err := send(ctx); err != nil {
		l.add(size, err, reportInterval)
	}
}

// untilEnd calls shutdown. The end of ctx cancels the export that runs and all later ones, not shutdown itself: the SDK
// would return before its goroutine has stopped.
func (l *losses) untilEnd(ctx context.Context, shutdown func(context.Context) error) error {
	defer context.AfterFunc(ctx, l.cancelExports)()
	return shutdown(context.WithoutCancel(ctx))
}

// reportRest reports the losses that are not reported yet.
func (l *losses) reportRest() { l.add(0, nil, 0) }

// add adds a loss. It calls onLoss if something was lost and the last call was at least interval ago.
func (l *losses) add(lost int, err error, interval time.Duration) {
	l.lost += lost
	l.lastErr = cmp.Or(err, l.lastErr)
	if l.onLoss == nil || l.lost == 0 || time.Since(l.lastReportAt) < interval {
		return
	}
	l.onLoss(l.lost, errors.New(clipText(l.secretRemover.Replace(l.lastErr.Error()), maxErrorText)))
	l.lastReportAt, l.lost, l.lastErr = time.Now(), 0, nil
}

// maxErrorText bounds the text of an error, in bytes, because it may come from the collector.
const maxErrorText = 300

// newSecretRemover returns a Replacer that replaces the values of OTEL_EXPORTER_OTLP_HEADERS, and each word of them, by
// "…". The collector may repeat them in an error.
func newSecretRemover(signal string) *strings.Replacer {
	var pairs []string
	for _, prefix := range variablePrefixes(signal) {
		for header := range strings.SplitSeq(os.Getenv(prefix+"HEADERS"), ",") {
			_, value, _ := strings.Cut(header, "=")
			value, _ = url.PathUnescape(value) // The error can be ignored, because ignoreMistakes has removed such a variable.
			for _, text := range append(strings.Fields(value), strings.TrimSpace(value)) {
				if len(text) >= 4 { // Shorter texts are not secret and occur in other words.
					pairs = append(pairs, text, "…")
				}
			}
		}
	}
	return strings.NewReplacer(pairs...)
}

// clipText returns at most the first size bytes of s, as valid UTF-8. The result does not keep the memory of a longer
// s.
func clipText(s string, size int) string {
	if len(s) > size {
		s = strings.Clone(s[:size])
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}
