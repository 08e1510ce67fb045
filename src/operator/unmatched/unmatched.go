// Package unmatched samples descriptors to which no rule applies, for the log, with the reason. Its samples contain the
// keys of a descriptor, which a proxy's configuration names, and no value, which may be secret.
package unmatched

import (
	"context"
	"fmt"
	"time"

	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/operator/throttle"
	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

// Sample is a descriptor without a rule. Its texts refer to no memory of the request.
type Sample struct {
	Domain string
	// IsUnknownDomain says that no rules have the domain. Keys and Reason are empty then.
	IsUnknownDomain bool
	Keys            string // the keys of the entries, separated by commas.
	Reason          string
	Skipped         uint64 // the number of descriptors without a rule since the last sample.
}

// Sampler is a limiter.Recorder that samples descriptors without a rule.
type Sampler struct {
	throttle *throttle.Throttle
	onSample func(Sample)
}

// New returns a Sampler that gives at most perSecond samples a second to onSample. onSample runs on the goroutine of
// the request, so it must not block, and on several at a time.
func New(perSecond int, onSample func(Sample)) *Sampler {
	return &Sampler{throttle.New(perSecond, time.Second), onSample}
}

// Record implements limiter.Recorder. It allocates memory only for samples.
func (s *Sampler) Record(req *limiter.Request, a *limiter.Answer) {
	if req.CallerLimit != nil {
		return
	}
	for i := range a.Statuses {
		if st := &a.Statuses[i]; st.Match != nil || len(st.Charges) > 0 {
			continue
		}
		skipped, ok := s.throttle.Pass(time.Now())
		if !ok {
			continue
		}
		sample := Sample{Domain: callertext.Name(string(req.Domain)), IsUnknownDomain: a.Domain == nil, Skipped: skipped}
		if a.Domain != nil {
			sample.Keys, sample.Reason = keysText(req.Descriptors[i].Entries), reason(a.Domain, req.Descriptors[i].Entries)
		}
		s.onSample(sample)
	}
}

// keysText returns the keys of entries without their values.
func keysText(entries []rules.Entry) string {
	keys := make([]rules.Entry, len(entries))
	for i, e := range entries {
		keys[i].Key = e.Key
	}
	return callertext.Descriptor(keys)
}

// reason returns why no rule of the domain applies to a descriptor with these entries.
func reason(d *rules.Domain, entries []rules.Entry) string {
	var scratch rules.SearchScratch
	scratch.BeginExplanation(context.Background())
	search := match.Explain(d, entries, &scratch)
	if err := scratch.Err(); err != nil {
		return err.Error()
	}
	at, n := len(search.Steps), len(entries)
	switch search.EndReason {
	case match.EndReasonNoEntries:
		return "the descriptor has no entries"
	case match.EndReasonNoSuchKey:
		return fmt.Sprintf("no rule has the key of entry %d of %d in this place", at, n)
	case match.EndReasonNoSuchValue:
		return fmt.Sprintf("no rule has the value of entry %d of %d", at, n)
	case match.EndReasonTooManyEntries:
		return fmt.Sprintf("the rules end at entry %d of %d", at, n)
	case match.EndReasonTooFewEntries:
		return fmt.Sprintf("the rules below entry %d need more entries", n)
	case match.EndReasonNoRateLimit:
		return fmt.Sprintf("the rule for entry %d has no rate_limit", n)
	case match.EndReasonWrongHold:
		return "the last entries are about a hold, and in the wrong form"
	case match.EndReasonNoRuleMatches:
		return "no rule of the list matches"
	case match.EndReasonRuleFound:
	}
	return "another rule of the request replaces the rule"
}
