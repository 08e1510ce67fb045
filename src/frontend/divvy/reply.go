package divvy

import (
	"math"
	"strconv"
	"time"

	"ratelimit/src/limiter"
)

// noLimit is the credit of a request that no rule limits. Answers to Envoy say the same.
const noLimit = math.MaxUint32

// appendReply appends the reply to a HIT with its line end:
//
//	OK true <credit left> <seconds until all of it is back>
//	OK false 0 <seconds until the same request would pass, -1 for never>
//
// In a first-hit window both are the seconds to the window's end, as in divvy.
func (s *Server) appendReply(dst []byte, st *limiter.Status) []byte {
	allowed, credit, seconds := "OK true ", uint64(0), s.seconds(st.ResetAfter)
	switch {
	case st.Binding == nil:
		credit, seconds = noLimit, 0
		if st.Unlimited() && st.Rule.Requests > 0 {
			credit = uint64(st.Rule.Requests)
		}
	case !st.Over || s.cfg.Limiter.Shadow():
		credit = st.Binding.Verdict.Remaining
	case st.RetryAfter < 0:
		return append(dst, denied...)
	default:
		allowed = "OK false "
	}
	dst = strconv.AppendUint(append(dst, allowed...), credit, 10)
	dst = strconv.AppendInt(append(dst, ' '), seconds, 10)
	return append(dst, '\n')
}

// denied is the reply to a request that can never pass.
const denied = "OK false 0 -1\n"

// seconds returns d in whole seconds, as replies show it.
func (s *Server) seconds(d time.Duration) int64 {
	if s.cfg.RoundUp {
		return int64((d + time.Second - 1) / time.Second)
	}
	return int64((d + time.Second/2) / time.Second)
}

// bans reports whether a rule of st refuses every request. Then the reply needs no store.
func (s *Server) bans(st *limiter.Status) bool {
	if s.cfg.Limiter.Shadow() {
		return false
	}
	for i := range st.Charges {
		if r := st.Charges[i].Rule; r != nil && r.Limit.Max == 0 && !r.Shadow {
			return true
		}
	}
	return false
}
