package divvy

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"ratelimit/src/algorithm"
	"ratelimit/src/frontend/pipeline"
	"ratelimit/src/limiter"
)

// unlimitedCredit is the credit of a request that no rule limits, as in replies to Envoy.
const unlimitedCredit = math.MaxUint32

// appendReply appends the reply to a HIT with its line end:
//
//	OK true <credit left> <seconds until all of it is back>
//	OK false 0 <seconds until the same request would pass, -1 for never>
//
// In a first-hit window both times are the seconds until the window ends, as in divvy.
func (s *Server) appendReply(dst []byte, st *limiter.Status) []byte {
	allowed, credit, seconds := "OK true ", uint64(0), s.roundToSeconds(st.ResetAfter)
	switch {
	case st.BindingCharge == nil:
		credit, seconds = unlimitedCredit, 0
		if st.IsUnlimited() && st.Match.OwnLimit().Requests > 0 {
			credit = st.Match.OwnLimit().Requests
		}
	case !st.Over || s.cfg.Limiter.ShadowMode():
		credit = st.BindingCharge.Verdict.Remaining
	case st.RetryAfter == algorithm.Never:
		return append(dst, neverPassesReply...)
	default:
		allowed = "OK false "
	}
	dst = strconv.AppendUint(append(dst, allowed...), credit, 10)
	dst = strconv.AppendInt(append(dst, ' '), seconds, 10)
	return append(dst, '\n')
}

// neverPassesReply is the reply to a request that can never pass.
const neverPassesReply = "OK false 0 -1\n"

// roundToSeconds returns d in whole seconds, rounded as Config.RoundSecondsUp says.
func (s *Server) roundToSeconds(d time.Duration) int64 {
	if s.cfg.RoundSecondsUp {
		return int64((d + time.Second - 1) / time.Second)
	}
	return int64((d + time.Second/2) / time.Second)
}

// refusesEveryRequest reports whether a rule of st refuses every request, so that the reply needs no store.
func (s *Server) refusesEveryRequest(st *limiter.Status) bool {
	if s.cfg.Limiter.ShadowMode() {
		return false
	}
	for i := range st.Charges {
		if c := &st.Charges[i]; c.Rule != nil && c.Rule.Limit.Max == 0 && !c.InShadowMode() {
			return true
		}
	}
	return false
}

// These are the codes of ERR replies. Faults without a code have errorCodeUnknown.
const (
	errorCodeUnknown        = "unknown"
	errorCodeUnknownCommand = "unknown-command"
)

// faultReply returns the ERR reply for f, which ends the connection, and counts it.
func (s *Server) faultReply(f *pipeline.Fault) []byte {
	s.CountErrorReply(cmp.Or(f.Code, errorCodeUnknown))
	return append(appendFault(nil, f), '\n')
}

// appendFault appends the ERR reply for f without its line end.
func appendFault(dst []byte, f *pipeline.Fault) []byte {
	return fmt.Appendf(dst, `ERR %s "%s"`, cmp.Or(f.Code, errorCodeUnknown), pipeline.OneLine(f.Text))
}

// The texts of errOpenQuote and errUnexpectedEnd are those of Button's divvy.
var (
	errOpenQuote     = pipeline.Faultf("Unexpected end of quoted string.")
	errUnexpectedEnd = pipeline.Faultf("Unexpected end of input string.")
	errTooManyPairs  = pipeline.Faultf("More than %d keys.", maxRequestPairs)
	errNotReady      = pipeline.Faultf("No rules are loaded yet.")
	errStore         = pipeline.Faultf("The store did not answer.")
	errInternal      = pipeline.Faultf("Internal error.")
)

func errLongLine(most int) *pipeline.Fault {
	return pipeline.Faultf("Line is longer than %d bytes.", most)
}

// errExpectedText returns the fault of a line that has rest where want must be.
func errExpectedText(want string, rest []byte) *pipeline.Fault {
	_, size := utf8.DecodeRune(rest)
	return pipeline.Faultf("Expected %s, found '%s'", want, rest[:size])
}
