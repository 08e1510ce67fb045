package rls

import (
	"strconv"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"ratelimit/src/algorithm"
	"ratelimit/src/limiter"
)

// HeaderNames are the names of the headers that tell callers of a limit.
type HeaderNames struct {
	Limit, Remaining, Reset string
}

// retryAfter is HTTP's own name, which needs no setting.
const retryAfter = "Retry-After"

// headers are the response headers of an answer, in order; none when no limit
// was asked.
func (n *HeaderNames) headers(a *limiter.Answer) []*core.HeaderValue {
	st := scarcest(a)
	if st == nil {
		return nil
	}
	c := st.Bound()
	list := []*core.HeaderValue{
		{Key: n.Limit, Value: strconv.FormatUint(uint64(c.Limit.Requests), 10)},
		{Key: n.Remaining, Value: strconv.FormatUint(c.Verdict.Remaining, 10)},
		{Key: n.Reset, Value: strconv.FormatInt(wholeSeconds(st.Until), 10)},
	}
	if wait, ok := retry(a); ok {
		list = append(list, &core.HeaderValue{Key: retryAfter, Value: strconv.FormatInt(wholeSeconds(wait), 10)})
	}
	return list
}

// scarcest is the status that the headers show: the last one that refuses the
// request by itself, else the one with the fewest remaining, the first of
// equals; nil when no limit was asked.
func scarcest(a *limiter.Answer) (found *limiter.Status) {
	refused := false
	for i := range a.Statuses {
		st := &a.Statuses[i]
		switch {
		case st.Bound() == nil:
		case st.Over && !st.Quota:
			found, refused = st, true
		case !refused && (found == nil || st.Bound().Verdict.Remaining < found.Bound().Verdict.Remaining):
			found = st
		}
	}
	return found
}

// retry is how long the request has to wait before it passes; not ok when it is
// not refused, or never will. All must pass that refuse by themselves, and of
// those in quota mode, if all are over, any one.
func retry(a *limiter.Answer) (wait time.Duration, ok bool) {
	if !a.Over {
		return 0, false
	}
	quotas, quotasOver := 0, 0
	first := algorithm.Never // of the quotas
	for i := range a.Statuses {
		st := &a.Statuses[i]
		after := st.Wait
		switch {
		case st.Quota && !st.Over:
			quotas++
		case st.Quota:
			quotas++
			quotasOver++
			if after != algorithm.Never && (first == algorithm.Never || after < first) {
				first = after
			}
		case !st.Over:
		case after == algorithm.Never:
			return 0, false
		default:
			wait = max(wait, after)
		}
	}
	if quotas == 0 || quotasOver < quotas {
		return wait, true
	}
	return max(wait, first), first != algorithm.Never
}
