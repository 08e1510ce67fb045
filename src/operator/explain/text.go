package explain

import (
	_ "embed"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode"
	"unicode/utf8"

	"ratelimit/src/backend"
	"ratelimit/src/limiter"
	"ratelimit/src/operator/callertext"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
	"ratelimit/src/rules/match"
)

//go:embed text.tmpl
var textTemplate string

// actionLine matches a line of textTemplate that has one action and nothing else. Such a line adds no newline to the
// text.
var actionLine = regexp.MustCompile(`(?m)^(\{\{(?:if|else|end|range|with|define|template|\$)[^}]*\}\})?\n`)

var reportTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"decision":      decisionText,
	"entries":       entriesText,
	"entry":         entryText,
	"join":          strings.Join,
	"keyAndValue":   keyAndValue,
	"number":        func(index int) int { return index + 1 },
	"maxRegexValue": func() int { return match.MaxRegexValue },
	"plural":        output.Plural,
	"quoted":        quoted,
	"reason":        reasonText,
	"state":         stateText,
}).Parse(actionLine.ReplaceAllString(textTemplate, "$1")))

// Text is the report for people.
func (r *Report) Text() string {
	var b strings.Builder
	if err := reportTemplate.Execute(&b, r); err != nil {
		return err.Error() // The template has a mistake.
	}
	return b.String()
}

// reasonText says why a candidate does not match.
func reasonText(why match.MatchReason) string {
	switch why {
	case match.WhyNotAddress:
		return "the value is not an address"
	case match.WhyOutsideNetworks:
		return "the address is in none of its networks"
	case match.WhyNotInFile:
		return "the value is not in the file"
	}
	return "does not match"
}

// LimitsOfRule returns the number of limits that the rule charges, without those of canaries.
func (d Descriptor) LimitsOfRule() (n int) {
	for i := range d.Charges {
		if !d.Charges[i].Canary {
			n++
		}
	}
	return n
}

// decisionText tells whether a request or a descriptor passes. degraded is the fallback that decided; empty if the
// store did.
func decisionText(code string, retryAfterUS *int64, degraded string) string {
	over := code == limiter.CodeName(true)
	if degraded == errorFallback {
		return "gets an error"
	}
	if over && retryAfterUS != nil && degraded == backend.FallbackDeny.String() {
		return "is refused" // The wait is unknown without the store.
	}
	return passText(over, retryAfterUS)
}

// stateText describes the state of a counter.
func stateText(s *State) string {
	if s.Before == nil {
		return "the count is unknown, since the store does not answer: " + decisionText(limiter.CodeName(s.Over),
			s.RetryAfterUS, s.Degraded) +
			", by on_store_failure: " + s.Degraded
	}
	text := strconv.FormatUint(*s.Before, 10) + " used"
	if s.Held > 0 {
		text += " (" + strconv.FormatUint(s.Held, 10) + " of them held by this replica)"
	}
	text += ", " + strconv.FormatUint(*s.Remaining, 10) + " left"
	if s.Share > 0 {
		text += " of this replica's share of " + strconv.FormatUint(s.Share, 10)
	}
	if *s.Before > 0 && (!s.Over || s.RetryAfterUS == nil) {
		text += ", whole again in " + durationText(s.ResetAfterUS)
	}
	count, interval := slices.Contains(s.Reasons, "count"), slices.Contains(s.Reasons, "interval")
	switch {
	case count && interval:
		text += ", more than is left and too soon after the last hit"
	case interval:
		text += ", too soon after the last hit"
	}
	text += ": " + passText(s.Over, s.RetryAfterUS)
	if s.Cached {
		text += ", says the over-limit cache"
	}
	if s.Degraded != "" {
		text += ", says " + s.Degraded + ", because the store did not answer"
	}
	return text
}

// passText tells whether and when a hit passes. If it is over, a nil retryAfterUS means that it can never pass.
func passText(over bool, retryAfterUS *int64) string {
	switch {
	case !over:
		return "passes"
	case retryAfterUS == nil:
		return "is over and can never pass"
	}
	return "is over, passes in " + durationText(*retryAfterUS)
}

// durationText returns a time for people: in whole seconds from a minute on. The JSON of a report has the exact one.
func durationText(microseconds int64) string {
	d := time.Duration(microseconds) * time.Microsecond
	if d >= time.Minute {
		d = d.Round(time.Second)
	}
	return d.String()
}

// entriesText returns entries in the form of the command line: key=value, key=value.
func entriesText(entries []rules.EntryText) string {
	if len(entries) == 0 {
		return "no entries"
	}
	parts := make([]string, len(entries))
	for i, e := range entries {
		parts[i] = entryText(e)
	}
	return strings.Join(parts, ", ")
}

// entryText returns e as commands take it. Long keys and values are cut, and then no command takes them.
func entryText(e rules.EntryText) string {
	if max(len(e.Key), len(e.Value)) > maxQuotedBytes {
		return quoted(e.Key) + "=" + quoted(e.Value)
	}
	text := callertext.WholeDescriptor([]rules.Entry{{Key: []byte(e.Key), Value: []byte(e.Value)}})
	if e.Value == "" {
		text = strings.TrimSuffix(text, "=") + `=""`
	}
	return text
}

// keyAndValue returns key=value, or the key alone if there is no value.
func keyAndValue(key, value string) string {
	if value == "" {
		return quoted(key)
	}
	return quoted(key) + "=" + quoted(value)
}

// maxQuotedBytes bounds a text of a caller or a rule file in the report.
const maxQuotedBytes = 300

// quoted returns text of a caller or a rule file. It is quoted if it has blanks, commas, quotes or characters that are
// not printable, and cut to maxQuotedBytes.
func quoted(s string) string {
	if len(s) > maxQuotedBytes {
		cut := maxQuotedBytes
		for cut > maxQuotedBytes-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
			cut--
		}
		return strconv.Quote(s[:cut]) + "... (" + strconv.Itoa(len(s)) + " bytes)"
	}
	plain := s != "" && utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsPrint(r) || r == ' ' || r == '"' || r == ','
	})
	if plain {
		return s
	}
	return strconv.Quote(s)
}
