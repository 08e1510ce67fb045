package rls

import (
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"

	"ratelimit/src/algorithm"
	"ratelimit/src/backend"
	"ratelimit/src/limiter"
)

// HeaderNames are the names of the headers that tell callers of a limit.
type HeaderNames struct {
	// Limit, Remaining and Reset are sent together; empty: they are not sent.
	Limit, Remaining, Reset string
	// Degraded says how the request was decided because the store did not answer;
	// empty: it is not sent.
	Degraded string
}

// retryAfter is HTTP's own name, which needs no setting.
const retryAfter = "Retry-After"

// appendTo appends the headers as response_headers_to_add: none if no limit applies.
func (n *HeaderNames) appendTo(b []byte, a *limiter.Answer) []byte {
	st := shownStatus(a)
	if st == nil {
		return b
	}
	if n.Degraded != "" && a.Fallback != backend.FallbackError {
		b = appendHeader(b, n.Degraded, a.Fallback.String())
	}
	if n.Limit == "" {
		return b
	}
	b = appendNumberHeader(b, n.Limit, uint64(st.Binding.Limit.Requests))
	b = appendNumberHeader(b, n.Remaining, st.Binding.Verdict.Remaining)
	b = appendNumberHeader(b, n.Reset, uint64(limiter.Seconds(st.ResetAfter)))
	if a.Over && a.RetryAfter != algorithm.Never {
		b = appendNumberHeader(b, retryAfter, uint64(limiter.Seconds(a.RetryAfter)))
	}
	return b
}

func appendNumberHeader(b []byte, name string, value uint64) []byte {
	var digits [20]byte
	return appendHeader(b, name, strconv.AppendUint(digits[:0], value, 10))
}

func appendHeader[T string | []byte](b []byte, name string, value T) []byte {
	b, start := beginMessage(b, 3)
	b = protowire.AppendString(protowire.AppendTag(b, 1, protowire.BytesType), name)
	b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.BytesType), uint64(len(value)))
	return endMessage(append(b, value...), start)
}

// shownStatus returns the status that the headers show: the last one that refuses the
// request by itself, else the one with the fewest remaining, the first of equals; nil if
// no limit applies.
func shownStatus(a *limiter.Answer) (shown *limiter.Status) {
	refused := false
	for i := range a.Statuses {
		st := &a.Statuses[i]
		switch {
		case st.Binding == nil:
		case st.Over && !st.Quota:
			shown, refused = st, true
		case !refused && (shown == nil || st.Binding.Verdict.Remaining < shown.Binding.Verdict.Remaining):
			shown = st
		}
	}
	return shown
}
