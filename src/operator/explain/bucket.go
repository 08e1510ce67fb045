package explain

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/operator/output"
	"ratelimit/src/quota"
	"ratelimit/src/rules"
)

// Bucket explains a quota bucket. The only descriptor of its report has the same entries, sorted by key.
type Bucket struct {
	Entries []rules.EntryText `json:"entries"` // in the order of the question.
	// Reordered says that the descriptor has them in another order.
	Reordered bool `json:"reordered"`
	// HasQuotas says that the domain has quota_buckets: true.
	HasQuotas      bool `json:"quota_buckets"`
	quota.Division      // empty without quotas.
	// Now is the state of the bucket in a service; nil if no proxy has the bucket.
	Now *quota.BucketState `json:"now,omitempty"`
}

// QuotaBucket explains the bucket of a domain with these entries by the rules of l, without a charge. counters says
// that the store of l has the counters of a service.
func QuotaBucket(ctx context.Context, l *limiter.Limiter, domain []byte, entries []rules.Entry,
	counters bool,
) (*Report, error) {
	sorted := slices.Clone(entries)
	quota.SortEntries(sorted)
	for i := range len(sorted) - 1 {
		if bytes.Equal(sorted[i].Key, sorted[i+1].Key) {
			return nil, fmt.Errorf("%w: a bucket has one entry for each key, and %s is there twice", limiter.ErrInvalidRequest,
				quoted(string(sorted[i].Key)))
		}
	}
	req := &limiter.Request{
		Domain: domain, Descriptors: []limiter.Descriptor{{Entries: sorted, HasAmount: true}},
		IgnoresHolds: true,
	}
	var answer limiter.Answer
	if err := l.DryRun(ctx, req, &answer); err != nil {
		return nil, err
	}
	report, err := NewReport(ctx, req, &answer, counters)
	if err != nil {
		return nil, err
	}
	report.Decision = nil // A bucket is no request.
	b := &Bucket{
		Entries:   make([]rules.EntryText, len(entries)),
		Reordered: !slices.EqualFunc(entries, sorted, func(a, b rules.Entry) bool { return bytes.Equal(a.Key, b.Key) }),
		HasQuotas: answer.Domain != nil && answer.Domain.HasQuotaBuckets,
	}
	for i, e := range entries {
		b.Entries[i] = e.Text()
	}
	report.Bucket = b
	if !b.HasQuotas {
		return report, nil
	}
	target, err := quota.FindTarget(l, domain, sorted)
	if err != nil {
		return nil, err
	}
	b.Division = quota.DivisionOf(target)
	return report, nil
}

// DivisionLines tell how the limits are divided, and what proxies have now.
func (b *Bucket) DivisionLines() (lines []string) {
	add := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	switch b.Action {
	case quota.AllowAll.String():
		add("proxies let all requests pass, because no limit refuses")
	case quota.DenyAll.String():
		add("proxies refuse all requests, because a limit lets nothing pass")
	case quota.AssignUnits.String():
		add("divided among proxies by what they ask for: %s at once, %s a second in the long run", unitsText(b.AtOnce),
			shortNumber(b.RatePerSecond))
		add("if 2 ask for more, each gets %s a second; of 10, %s", shortNumber(b.RatePerSecond/2),
			shortNumber(b.RatePerSecond/10))
		add("a new proxy gets up to %s; those without traffic keep %d together", unitsText(b.NewProxyUnits), b.IdleUnits)
	}
	n := b.Now
	if n == nil {
		return lines
	}
	add("now proxies ask for %s a second and have %s: %d of this replica, %d of others",
		shortNumber(n.DemandPerSecond), unitsText(n.Units), n.ProxyCount, n.OtherProxyCount)
	if n.ShortSeconds > 0 {
		unfair := ""
		if n.Unfairness >= 0.01 {
			unfair = fmt.Sprintf("; the worst-off gets %.0f %% less than its share", 100*n.Unfairness)
		}
		add("  for %s one has refused more than a tenth of its requests%s", secondsText(n.ShortSeconds), unfair)
	}
	if n.LeftUnits > 0 {
		add("  proxies that are gone may use up to %s for %s more", unitsText(n.LeftUnits), secondsText(n.LeftSeconds))
	}
	for i := range n.Proxies {
		add("  %s", proxyText(&n.Proxies[i]))
	}
	if more := n.ProxyCount - len(n.Proxies); more > 0 {
		add("  and %d more, which ask for less", more)
	}
	return lines
}

func unitsText(n uint64) string { return output.Plural(n, "unit") }

// proxyText describes what a proxy has of a bucket.
func proxyText(p *quota.ProxyState) string {
	text := fmt.Sprintf("%s asks for %s a second: ", output.Printable(p.Peer), shortNumber(p.DemandPerSecond))
	switch p.Action {
	case "":
		return text + "no assignment yet"
	case quota.AllowAll.String():
		text += "all pass"
	case quota.DenyAll.String():
		text += "no units left"
	default:
		text += unitsText(p.Units)
	}
	expiry := "expired"
	if p.ExpiresInSeconds > 0 {
		expiry = "expires in " + secondsText(p.ExpiresInSeconds)
	}
	text += fmt.Sprintf(", assigned %s ago, %s, reported %s ago", secondsText(p.AssignedSeconds), expiry,
		secondsText(p.ReportedSeconds))
	if p.IsSilent {
		text += ", silent"
	}
	return text
}

// secondsText returns a time for people: with tenths below ten seconds.
func secondsText(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// shortNumber returns a number with up to three digits after the point.
func shortNumber(n float64) string {
	if n >= 100 {
		return strconv.FormatFloat(n, 'f', 0, 64)
	}
	return strconv.FormatFloat(n, 'g', 3, 64)
}
