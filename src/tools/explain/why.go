package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"ratelimit/src/rules"
)

// why says for what reason a walk of n entries found no rule, and what may help.
func why(w *rules.Walk, n int) (why, hint string) {
	var last *rules.Step
	if len(w.Steps) > 0 {
		last = &w.Steps[len(w.Steps)-1]
	}
	switch w.End {
	case rules.EndEmpty:
		why = "the descriptor has no entries"
	case rules.EndKey:
		why = whereOf(w) + " no descriptor has the key " + shown(last.Entry.Key) + wildcards(last)
		if last.Siblings == 0 {
			why = "the domain has no descriptors"
		}
	case rules.EndValue:
		why = whereOf(w) + " the key " + shown(last.Entry.Key) + " has other values only" + wildcards(last)
	case rules.EndDeep:
		why = fmt.Sprintf("the rules end at %s, entry %d of %d", name(taken(last)), len(w.Steps), n)
	case rules.EndShort:
		why = "the descriptor ends at " + name(taken(last)) + ", which has no rate_limit; those below it are for descriptors with more entries"
	case rules.EndNoLimit:
		why = name(taken(last)) + " has no rate_limit"
	case rules.EndNone:
		why = "no rule of the list matches"
	case rules.EndRule:
	}
	if hint = otherWay(w); hint != "" || last == nil {
		return why, hint
	}
	key := last.Entry.Key
	switch {
	case last.Meant != "" && w.End == rules.EndValue:
		hint = "did you mean " + pair(key, last.Meant) + "?"
	case last.Meant != "":
		hint = "did you mean " + shown(last.Meant) + "?"
	case last.Below != nil:
		hint = fmt.Sprintf("%s is a key further down (%v): a descriptor is matched from the top, one entry for each level", shown(key), last.Below.Pos)
	}
	return why, hint
}

// wildcards says that no wildcard matches, if the level has any.
func wildcards(s *rules.Step) string {
	if slices.ContainsFunc(s.Candidates, func(c rules.Candidate) bool { return c.How == rules.Wildcard }) {
		return ", and no wildcard matches"
	}
	return ""
}

// otherWay names the first rule that another candidate would have led to.
func otherWay(w *rules.Walk) string {
	for i := range w.Steps {
		s := &w.Steps[i]
		for j := range s.Candidates {
			if c := &s.Candidates[j]; c.Leads != "" {
				return fmt.Sprintf("%s (%v) would lead to %s, but %s goes before it, and a way once taken is not left again",
					name(c), c.At, c.Leads, name(taken(s)))
			}
		}
	}
	return ""
}

// unknownDomain explains why nothing applies.
func (x *explainer) unknownDomain(d *Descriptor) {
	d.Reason, d.Why = "no_such_domain", "no rules have the domain "+shown(string(x.req.Domain))
	domains := make([]string, len(x.answer.Set.Domains()))
	for i, known := range x.answer.Set.Domains() {
		domains[i] = known.Name
	}
	if meant := rules.Near(string(x.req.Domain), slices.Values(domains)); meant != "" {
		d.Hint = "did you mean " + shown(meant) + "?"
	}
}

// whereOf names the level at which a walk ended.
func whereOf(w *rules.Walk) string {
	if len(w.Steps) < 2 {
		return "at the top of the domain"
	}
	return "below " + name(taken(&w.Steps[len(w.Steps)-2]))
}

func taken(s *rules.Step) *rules.Candidate { return &s.Candidates[s.Taken] }

func name(c *rules.Candidate) string { return pair(c.Key, c.Value) }

// pair returns key=value, or the key alone if there is no value.
func pair(key, value string) string {
	if value == "" {
		return shown(key)
	}
	return shown(key) + "=" + shown(value)
}

// shown returns text from outside for a terminal: in quotes if it has blanks, commas,
// quotes or characters that are not printable, and cut to a few lines.
func shown(s string) string {
	const most = 300
	if len(s) > most {
		cut := most
		for cut > most-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
			cut--
		}
		return fmt.Sprintf("%q... (%d bytes)", s[:cut], len(s))
	}
	plain := s != "" && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsPrint(r) || r == ' ' || r == '"' || r == ','
	})
	if plain {
		return s
	}
	return strconv.Quote(s)
}
