package history

import (
	"sync/atomic"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
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

// requestResult is what became of a request.
type requestResult uint8

const (
	requestAdmitted requestResult = iota
	requestDenied
	requestAdmittedWithoutStore
	requestDeniedWithoutStore
	requestFailed
	requestResultCount
)

// requestCounts counts requests by their result.
type requestCounts [requestResultCount]atomic.Uint64

// Record implements limiter.Recorder. It counts no request whose caller left before the store answered.
func (h *History) Record(_ *limiter.Request, a *limiter.Answer) {
	if result, hasOne := resultOf(a); hasOne {
		h.requestCounts[result].Add(1)
	}
}

// resultOf returns what became of the request of a. hasOne is false if its caller left before there was a result.
func resultOf(a *limiter.Answer) (result requestResult, hasOne bool) {
	left := false
	for i := range a.Statuses {
		if a.Statuses[i].StoreFailed {
			return requestFailed, true
		}
		left = left || a.Statuses[i].CallerLeft
	}
	result = requestAdmitted
	if a.Over {
		result = requestDenied
	}
	if a.Fallback != backend.FallbackError {
		result += requestAdmittedWithoutStore
	}
	return result, !left
}

// values returns the counts as those of decisions.
func (c *requestCounts) values() values {
	n := func(r requestResult) float64 { return float64(c[r].Load()) }
	admitted, denied := n(requestAdmittedWithoutStore), n(requestDeniedWithoutStore)
	return values{n(requestAdmitted) + admitted, n(requestDenied) + denied, 0, 0, admitted + denied, n(requestFailed)}
}

// requestRates returns the rates over the last readings. The caller holds h.mu.
func (h *History) requestRates() RequestsPerSecond {
	r := h.rateOf(&h.requests)
	return RequestsPerSecond{r.Admitted, r.Denied, r.Fallback, r.Failed}
}
