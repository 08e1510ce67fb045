package rls

import (
	"strconv"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
)

// HeaderNames are the names of the headers that tell callers of a limit.
type HeaderNames struct {
	// Limit, Remaining and Reset are there together; empty: they are not.
	Limit, Remaining, Reset string
	// Degraded says what was done for want of an answer of the store; empty: none
	// does.
	Degraded string
}

// retryAfter is HTTP's own name, which needs no setting.
const retryAfter = "Retry-After"

// headers are the response headers of an answer, in order; none when no limit
// was asked.
func (n *HeaderNames) headers(a *limiter.Answer) (list []*core.HeaderValue) {
	st := scarcest(a)
	if st == nil {
		return nil
	}
	if word := n.degraded(a); word != "" {
		list = append(list, &core.HeaderValue{Key: n.Degraded, Value: word})
	}
	if n.Limit == "" {
		return list
	}
	c := st.Binding
	list = append(
		list,
		&core.HeaderValue{Key: n.Limit, Value: strconv.FormatUint(uint64(c.Limit.Requests), 10)},
		&core.HeaderValue{Key: n.Remaining, Value: strconv.FormatUint(c.Verdict.Remaining, 10)},
		&core.HeaderValue{Key: n.Reset, Value: strconv.FormatInt(wholeSeconds(st.ResetAfter), 10)},
	)
	if wait := a.RetryAfter; a.Over && wait != algorithm.Never {
		list = append(list, &core.HeaderValue{Key: retryAfter, Value: strconv.FormatInt(wholeSeconds(wait), 10)})
	}
	return list
}

// degraded is the value of the header that says so; empty: there is none.
func (n *HeaderNames) degraded(a *limiter.Answer) string {
	if n.Degraded == "" {
		return ""
	}
	if f := a.Fallback; f != backend.FallbackError {
		return f.String()
	}
	return ""
}

// scarcest is the status that the headers show: the last one that refuses the
// request by itself, else the one with the fewest remaining, the first of
// equals; nil when no limit was asked.
func scarcest(a *limiter.Answer) (found *limiter.Status) {
	refused := false
	for i := range a.Statuses {
		st := &a.Statuses[i]
		switch {
		case st.Binding == nil:
		case st.Over && !st.Quota:
			found, refused = st, true
		case !refused && (found == nil || st.Binding.Verdict.Remaining < found.Binding.Verdict.Remaining):
			found = st
		}
	}
	return found
}
