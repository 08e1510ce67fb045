package history

import (
	"sync/atomic"

	"ratelimit/src/limiter"
	"ratelimit/src/metrics"
)

// RequestsPerSecond are rates in requests per second. A request has a decision for each limit that applies to it. It is
// admitted or denied, or has failed.
type RequestsPerSecond struct {
	Admitted float64 `json:"admitted"`
	Denied   float64 `json:"denied"`
	Fallback float64 `json:"fallback"` // the part of Admitted and Denied that was decided without the store.
	Failed   float64 `json:"failed"`   // those that were answered with an error, because the store did not answer.
}

// Total is the rate of all requests.
func (r *RequestsPerSecond) Total() float64 { return r.Admitted + r.Denied + r.Failed }

// requestCounts counts requests by their result.
type requestCounts [metrics.RequestResultCount]atomic.Uint64

// Record implements limiter.Recorder. It counts no request whose caller left before the store answered.
func (h *History) Record(_ *limiter.Request, a *limiter.Answer) {
	if result, hasOne := metrics.ResultOf(a); hasOne {
		h.requestCounts[result].Add(1)
	}
}

// values returns the counts as those of decisions.
func (c *requestCounts) values() values {
	n := func(r metrics.RequestResult) float64 { return float64(c[r].Load()) }
	admitted, denied := n(metrics.RequestAdmittedWithoutStore), n(metrics.RequestDeniedWithoutStore)
	return values{
		n(metrics.RequestAdmitted) + admitted, n(metrics.RequestDenied) + denied, 0, 0, admitted + denied,
		n(metrics.RequestFailed),
	}
}

// requestRates returns the rates over the last readings. The caller holds h.mu.
func (h *History) requestRates() RequestsPerSecond {
	r := h.rateOf(&h.requests)
	return RequestsPerSecond{r.Admitted, r.Denied, r.Fallback, r.Failed}
}
