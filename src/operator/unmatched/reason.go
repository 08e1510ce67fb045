package unmatched

import (
	"context"
	"fmt"

	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

func withoutValues(entries []rules.Entry) []rules.Entry {
	keys := make([]rules.Entry, len(entries))
	for i, e := range entries {
		keys[i].Key = e.Key
	}
	return keys
}

// replacedReason is the reason for a descriptor whose rule does not apply because of `replaces`.
const replacedReason = "another rule of the request replaces the rule"

// reason returns why no rule of the domain applies to a descriptor with these entries, and the key of a rule that was
// probably meant by the key of the last entry that was compared; empty if there is none.
func reason(d *rules.Domain, entries []rules.Entry) (why, nearestKey string) {
	var scratch rules.SearchScratch
	scratch.BeginExplanation(context.Background())
	search := match.Explain(d, entries, &scratch)
	if err := scratch.Err(); err != nil {
		return err.Error(), ""
	}
	at, n := len(search.Steps), len(entries)
	switch search.EndReason {
	case match.EndReasonNoEntries:
		why = "the descriptor has no entries"
	case match.EndReasonNoSuchKey:
		why = fmt.Sprintf("no rule has the key of entry %d of %d in this place", at, n)
		nearestKey = search.Steps[at-1].SuggestedText
	case match.EndReasonNoSuchValue:
		why = fmt.Sprintf("no rule has the value of entry %d of %d", at, n)
	case match.EndReasonTooManyEntries:
		why = fmt.Sprintf("the rules end at entry %d of %d", at, n)
	case match.EndReasonTooFewEntries:
		why = fmt.Sprintf("the rules below entry %d need more entries", n)
	case match.EndReasonNoRateLimit:
		why = fmt.Sprintf("the rule for entry %d has no rate_limit", n)
	case match.EndReasonWrongHold:
		why = "the last entries are about a hold, and in the wrong form"
	case match.EndReasonNoRuleMatches:
		why = "no rule of the list matches"
	case match.EndReasonRuleFound:
		why = replacedReason
	}
	return why, nearestKey
}
