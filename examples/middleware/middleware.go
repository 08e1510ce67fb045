// Middleware limits an HTTP service of your own with the engine inside the
// process: no rate limit service to call, and Redis only if replicas share
// limits.
package main

import (
	"errors"
	"log"
	"net/http"
	"strconv"
	"sync"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
	"ratelimit/src/rules"
)

// Limit asks l about each request before next sees it, in the domain that is
// given, about the entries that describe returns; none of them: it passes.
//
// A request that may not happen is answered 429, with the wait in seconds
// (Retry-After) and in milliseconds (Retry-After-Ms), rounded up, unless it can
// never pass. When the counters cannot be reached the answer is 500; to let such requests
// pass, call next there.
func Limit(l *limiter.Limiter, domain string, describe func(*http.Request) []rules.Entry, next http.Handler) http.Handler {
	answers := sync.Pool{New: func() any { return new(limiter.Answer) }}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		entries := describe(r)
		if len(entries) == 0 {
			next.ServeHTTP(w, r)
			return
		}
		answer := answers.Get().(*limiter.Answer)
		defer answers.Put(answer)
		err := l.Check(r.Context(), &limiter.Request{
			Domain:      []byte(domain),
			Descriptors: []limiter.Descriptor{{Entries: entries}},
		}, answer)
		switch {
		case errors.Is(err, limiter.ErrInvalidRequest): // describe's fault
			log.Printf("rate limit: %v", err)
			http.Error(w, "internal error", http.StatusInternalServerError)
		case err != nil:
			log.Printf("rate limit: %v", err)
			http.Error(w, "the rate limit is not known at the moment", http.StatusInternalServerError)
		case answer.Over:
			refuse(w, answer.Statuses[0].RetryAfter)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func refuse(w http.ResponseWriter, wait time.Duration) {
	if wait != algorithm.Never {
		w.Header().Set("Retry-After", in(wait, time.Second))
		w.Header().Set("Retry-After-Ms", in(wait, time.Millisecond))
	}
	http.Error(w, "too many requests", http.StatusTooManyRequests)
}

// in returns d in units, rounded up: a request that comes too early is refused again.
func in(d, unit time.Duration) string {
	return strconv.FormatInt(int64((d+unit-1)/unit), 10)
}
