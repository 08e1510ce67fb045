package resp

import (
	"bytes"
	"errors"
	"slices"

	"ratelimit/src/algorithm"
	"ratelimit/src/frontend/rediscell"
	"ratelimit/src/limiter"
	"ratelimit/src/operator"
	"ratelimit/src/operator/explain"
	"ratelimit/src/rules"
)

// rateLimitArgs are the arguments of RATELIMIT.
type rateLimitArgs struct {
	domain      []byte
	pairs       [][]byte // keys and their values.
	hasHits     bool
	hits        uint64
	refund, dry bool
}

// parseRateLimit reads the arguments of a command:
//
//	RATELIMIT domain key value [key value ...] [HITS n] [REFUND] [DRY]
//
// The options begin with the first one that stands in the place of a key, other than the first key. So no value is
// taken for an option.
func parseRateLimit(args [][]byte) (r rateLimitArgs, err *replyError) {
	r.domain = args[1]
	i := 2
	for i < len(args) && (i == 2 || !isOption(args[i])) {
		if i+1 == len(args) {
			return r, errorf("the key %.64q has no value", args[i])
		}
		i += 2
	}
	r.pairs = args[2:i]
	for ; i < len(args); i++ {
		switch option := args[i]; {
		case bytes.EqualFold(option, optionRefund):
			r.refund = true
		case bytes.EqualFold(option, optionDry):
			r.dry = true
		case bytes.EqualFold(option, optionHits) && i+1 < len(args):
			i++
			n, ok := parseInteger(args[i])
			if !ok || n < 0 {
				return r, errorf("HITS %.64q is no number of 0 or more", args[i])
			}
			r.hits, r.hasHits = uint64(n), true
		case bytes.EqualFold(option, optionHits):
			return r, errorf("HITS has no number")
		default:
			return r, errorf("unknown option %.64q; write HITS n, REFUND or DRY", option)
		}
	}
	return r, nil
}

var optionHits, optionRefund, optionDry = []byte("HITS"), []byte("REFUND"), []byte("DRY")

func isOption(arg []byte) bool {
	return bytes.EqualFold(arg, optionHits) || bytes.EqualFold(arg, optionRefund) || bytes.EqualFold(arg, optionDry)
}

func (r *rateLimitArgs) descriptor(entries []rules.Entry) limiter.Descriptor {
	return limiter.Descriptor{Entries: entries, HasAmount: r.hasHits, Amount: r.hits, IsRefund: r.refund}
}

// request returns a request that is decided alone.
func (r *rateLimitArgs) request(s *Server) limiter.Request {
	return limiter.Request{
		Domain: r.domain, Descriptors: []limiter.Descriptor{r.descriptor(appendEntries(nil, r.pairs))},
		Protocol: s.cfg.Protocol, Now: s.now,
	}
}

func runRateLimit(s *session, b *batch, args [][]byte) *replyError {
	r, err := parseRateLimit(args)
	if err != nil {
		return err
	}
	if r.dry {
		return s.dryRun(b, &r)
	}
	d := r.descriptor(b.addEntries(r.pairs...))
	b.addRequest(r.domain, &d, nil, appendRateLimitReply)
	return nil
}

// dryRun answers RATELIMIT with DRY.
func (s *session) dryRun(b *batch, r *rateLimitArgs) *replyError {
	b.decide()
	it := limiter.Item{Request: r.request(s.srv)}
	it.Err = s.srv.cfg.Limiter.DryRun(b.ctx, &it.Request, &it.Answer)
	if err := s.srv.requestError(&it); err != nil {
		return err
	}
	return b.reply(appendRateLimitReply(b.buffer(), &it, &b.scratch))
}

// appendRateLimitReply appends five integers: whether the request is limited, the limit, what remains of it, and the
// seconds until the same request would pass, or -1, and until the counter is empty. Of several limits it tells the
// binding one. Without a limit, the limit and what remains are -1.
func appendRateLimitReply(dst []byte, it *limiter.Item, s *replyScratch) []byte {
	st := &it.Answer.Statuses[0]
	c := st.BindingCharge
	if c == nil {
		return s.appendFive(dst, rediscell.None())
	}
	l := rediscell.Summary{
		Limited: st.Over && !it.Answer.Shadowed, Limit: int64(c.Algorithm.Capacity()), Remaining: int64(c.Verdict.Remaining),
		RetrySeconds: -1, ResetSeconds: limiter.SecondsRoundedUp(st.ResetAfter),
	}
	if l.Limited && st.RetryAfter != algorithm.Never {
		l.RetrySeconds = limiter.SecondsRoundedUp(st.RetryAfter)
	}
	return s.appendFive(dst, l)
}

// appendFive appends the integers that CL.THROTTLE replies.
func (s *replyScratch) appendFive(dst []byte, l rediscell.Summary) []byte {
	return s.appendIntegers(append(dst, "*5\r\n"...), l)
}

func (s *replyScratch) appendIntegers(dst []byte, l rediscell.Summary) []byte {
	if len(s.limitText) == 0 || l.Limited != s.last.Limited || l.Limit != s.last.Limit {
		limited := int64(0)
		if l.Limited {
			limited = 1
		}
		s.limitText = appendInteger(appendInteger(s.limitText[:0], limited), l.Limit)
	}
	if len(s.timesText) == 0 || l.RetrySeconds != s.last.RetrySeconds || l.ResetSeconds != s.last.ResetSeconds {
		s.timesText = appendInteger(appendInteger(s.timesText[:0], l.RetrySeconds), l.ResetSeconds)
	}
	s.last = l
	return append(appendInteger(append(dst, s.limitText...), l.Remaining), s.timesText...)
}

// runTree charges a path of a tree of limits: RATELIMIT.TREE domain quantity word [word ...].
func runTree(s *session, b *batch, args [][]byte) *replyError {
	domain, words := args[1], args[3:]
	quantity, ok := parseInteger(args[2])
	if !ok {
		return errNoInteger(args[2])
	}
	set := s.srv.cfg.Limiter.Rules()
	if set == nil {
		return errLoading
	}
	if d := set.Domain(domain); d != nil && d.Form != rules.LimitTree {
		return errorf("the rules of the domain %s are no tree of limits; use RATELIMIT", rules.Quote(string(domain)))
	}
	if slices.ContainsFunc(words, func(word []byte) bool { return len(word) == 0 }) {
		return errorf("a word of the path is empty")
	}
	if len(words)%2 == 1 {
		words = append(words, nil) // The last entry has no value. The slice has room, or is copied.
	}
	d := amountOf(quantity, b.addEntries(words...))
	b.addRequest(domain, &d, nil, appendTreeReply)
	return nil
}

// amountOf returns a descriptor that charges quantity, or gives it back if it is negative.
func amountOf(quantity int64, entries []rules.Entry) limiter.Descriptor {
	d := limiter.Descriptor{Entries: entries, HasAmount: true, Amount: uint64(quantity)}
	if quantity < 0 {
		d.Amount, d.IsRefund = uint64(-max(quantity, -algorithm.MaxAmount)), true
	}
	return d
}

// appendTreeReply appends an array with the summary of all levels, and an array of the levels: each with the words of
// its path, joined by ":", and its own five integers.
func appendTreeReply(dst []byte, it *limiter.Item, s *replyScratch) []byte {
	st := &it.Answer.Statuses[0]
	dst = s.appendFive(appendArray(dst, 2), rediscell.OfStatus(st))
	dst = appendArray(dst, len(st.Charges))
	for j := range st.Charges {
		c := &st.Charges[j]
		s.entries = c.Rule.AppendCounterEntries(s.entries[:0], it.Request.Descriptors[0].Entries)
		s.path = s.path[:0]
		for _, e := range s.entries {
			for _, word := range [][]byte{e.Key, e.Value} {
				if len(word) > 0 {
					s.path = append(append(s.path, word...), ':')
				}
			}
		}
		dst = appendBulk(appendArray(dst, 6), bytes.TrimSuffix(s.path, []byte(":")))
		dst = s.appendIntegers(dst, rediscell.OfCharge(c))
	}
	return dst
}

// runExplain says which rules apply to a request: RATELIMIT.EXPLAIN with the arguments of RATELIMIT.
func runExplain(s *session, b *batch, args [][]byte) *replyError {
	r, err := parseRateLimit(args)
	if err != nil {
		return err
	}
	req := r.request(s.srv)
	report, failure := explain.Request(b.ctx, s.srv.cfg.Limiter, &req, true)
	switch {
	case errors.Is(failure, limiter.ErrInvalidRequest), errors.Is(failure, limiter.ErrNoRules):
		return errorf("%v", failure)
	case failure != nil:
		return s.srv.operationError(failure)
	}
	report.AddResets(&req, "")
	return b.reply(appendText(b.buffer(), s.version, report.Text()))
}

// runReset resets the counters of a descriptor: RATELIMIT.RESET domain key value [key value ...].
func runReset(s *session, b *batch, args [][]byte) *replyError {
	switch pairs := args[2:]; {
	case len(pairs)%2 != 0:
		return errorf("the key %.64q has no value", args[len(args)-1])
	case s.srv.cfg.Reset == nil:
		return errUnknownCommand(args)
	}
	change := &operator.CounterChange{Action: operator.ActionReset, Domain: string(args[1])}
	for pair := range slices.Chunk(args[2:], 2) {
		change.Descriptor = append(change.Descriptor, operator.CounterEntry{Key: string(pair[0]), Value: string(pair[1])})
	}
	b.replies.MayWait()
	report, failure := s.srv.cfg.Reset(b.ctx, change, operator.Client{Addr: s.client.String(), User: s.user})
	switch {
	case failure != nil:
		return s.srv.operationError(failure)
	case report.Warning != "":
		return errorf("%s", report.Warning)
	}
	return b.reply(appendInteger(b.buffer(), int64(len(report.Counters))))
}

// operationError returns the error reply of a command for operators.
func (s *Server) operationError(err error) *replyError {
	if refusal, ok := errors.AsType[*operator.Refusal](err); ok {
		return errorf("%s", refusal.Reason)
	}
	s.cfg.OnFailure(err)
	return errorf("the command failed; the log says why, at the level debug")
}
