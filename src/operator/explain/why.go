package explain

import (
	"fmt"
	"slices"

	"ratelimit/src/rules/match"
)

// whyNoRule returns the reason why the search for a descriptor of n entries found no rule, and a hint how to find one.
func whyNoRule(search *match.Record, n int) (why, hint string) {
	var last *match.Step
	if len(search.Steps) > 0 {
		last = &search.Steps[len(search.Steps)-1]
	}
	switch search.EndReason {
	case match.EndReasonNoEntries:
		why = "the descriptor has no entries"
	case match.EndReasonNoSuchKey:
		why = lastLevel(search) + " no descriptor has the key " + quoted(last.Entry.Key) + noWildcard(last)
		if last.LevelKeyCount == 0 {
			why = "the domain has no descriptors"
		}
	case match.EndReasonNoSuchValue:
		why = lastLevel(search) + " the key " + quoted(last.Entry.Key) + " has other values only" + noWildcard(last)
	case match.EndReasonTooManyEntries:
		why = fmt.Sprintf("the rules end at %s, entry %d of %d", takenName(last), len(search.Steps), n)
		if search.HoldIDKey != "" {
			why += fmt.Sprintf(": only %s=<id> may follow, and then hold=settle or hold=release", search.HoldIDKey)
		}
	case match.EndReasonTooFewEntries:
		why = "the descriptor ends at " + takenName(last) + ", which has no rate_limit; those below it are for descriptors " +
			"with more entries"
	case match.EndReasonNoRateLimit:
		why = takenName(last) + " has no rate_limit"
	case match.EndReasonWrongHold:
		why = fmt.Sprintf("after %s only %s=<id> may follow, and then hold=settle or hold=release", takenName(last),
			search.HoldIDKey)
	case match.EndReasonNoRuleMatches:
		why = "no rule of the list matches"
	case match.EndReasonRuleFound:
	}
	if hint = betterCandidate(search); hint != "" || last == nil {
		return why, hint
	}
	key := last.Entry.Key
	switch {
	case last.SuggestedText != "" && search.EndReason == match.EndReasonNoSuchValue:
		hint = "did you mean " + keyAndValue(key, last.SuggestedText) + "?"
	case last.SuggestedText != "":
		hint = "did you mean " + quoted(last.SuggestedText) + "?"
	case last.SameKeyBelow != nil:
		hint = fmt.Sprintf("%s is a key further down (%v): a descriptor is matched from the top, one entry for each level",
			quoted(key), last.SameKeyBelow.Pos)
	}
	return why, hint
}

// noWildcard returns the end of a sentence, that no wildcard matches; empty if the level has no wildcards.
func noWildcard(s *match.Step) string {
	if slices.ContainsFunc(s.Candidates, func(c match.Candidate) bool { return c.MatchKind == match.MatchWildcard }) {
		return ", and no wildcard matches"
	}
	return ""
}

// betterCandidate returns a hint at the first rule that the search would have found if it had taken another candidate;
// empty if there is none.
func betterCandidate(search *match.Record) string {
	for i := range search.Steps {
		s := &search.Steps[i]
		for _, c := range s.Candidates {
			if c.LeadsToRule != "" {
				return fmt.Sprintf("%s (%v) would lead to %s, but %s goes before it, and a way once taken is not left again",
					keyAndValue(c.Key, c.Value), c.Position, c.LeadsToRule, takenName(s))
			}
		}
	}
	return ""
}

// whyUnknownDomain returns the reason why no rule applies to a request for an unknown domain, and a hint at a domain of
// similar name.
func (x *explainer) whyUnknownDomain() (why, hint string) {
	name := string(x.req.Domain)
	if meant := x.answer.RuleSet.NearestDomain(name); meant != "" {
		hint = "did you mean " + quoted(meant) + "?"
	}
	return "no rules have the domain " + quoted(name), hint
}

// lastLevel names the level of rules at which a search ended.
func lastLevel(search *match.Record) string {
	if len(search.Steps) < 2 {
		return "at the top of the domain"
	}
	return "below " + takenName(&search.Steps[len(search.Steps)-2])
}

// takenName returns the key and value of the candidate that the search took.
func takenName(s *match.Step) string {
	c := &s.Candidates[s.TakenIndex]
	return keyAndValue(c.Key, c.Value)
}
