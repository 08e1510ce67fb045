package explain

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"time"

	"ratelimit/src/backend"
	"ratelimit/src/rules"
)

//go:embed text.tmpl
var textTemplate string

// aloneInLine matches a line of textTemplate with one action and nothing else.
var aloneInLine = regexp.MustCompile(`(?m)^(\{\{(?:if|else|end|range|with|define|template|\$)[^}]*\}\})?\n`)

var texts = template.Must(template.New("").Funcs(template.FuncMap{
	"does":    does,
	"entry":   entry,
	"how":     how,
	"join":    strings.Join,
	"limits":  countLimits,
	"list":    list,
	"outcome": outcome,
	"number":  func(i int) int { return i + 1 },
	"pair":    pair,
	"plural":  plural,
	"shown":   shown,
	"state":   stateText,
}).Parse(aloneInLine.ReplaceAllString(textTemplate, "$1")))

// Text is the report for people.
func (r *Report) Text() string {
	var b strings.Builder
	if err := texts.Execute(&b, r); err != nil {
		return err.Error() // a mistake in the template
	}
	return b.String()
}

// countLimits returns how many limits a descriptor is charged to, canaries apart.
func countLimits(d Descriptor) (n int) {
	for i := range d.Charges {
		if !d.Charges[i].Canary {
			n++
		}
	}
	return n
}

// how says in what way a candidate matches.
func how(match rules.How, word bool) string {
	switch {
	case match == rules.Exact && word:
		return "name"
	case match == rules.Exact:
		return "key and value"
	case match == rules.KeyAlone:
		return "key alone"
	}
	return string(match)
}

// plural returns "1 hit" or "2 hits". n is an integer of any type.
func plural(n any, what string) string {
	text := fmt.Sprintf("%d %s", n, what)
	if text != "1 "+what {
		text += "s"
	}
	return text
}

// does is what the hit does to its counter.
func does(c Charge) string {
	switch {
	case c.Op == "refund":
		return fmt.Sprintf("gives %s back to", plural(c.Amount, "hit"))
	case c.Amount == 0:
		return "looks only at"
	}
	return fmt.Sprintf("charges %s to", plural(c.Amount, "hit"))
}

// outcome is verb for a decision, which degraded says was made without the store.
func outcome(decided string, retry *int64, degraded string) string {
	if decided == code(true) && retry != nil && degraded == backend.FallbackDeny.String() {
		return "is refused" // how long it has to wait depends on the store
	}
	return verb(decided == code(true), retry)
}

// stateText says how a counter stands.
func stateText(s *State) string {
	if s.Before == nil {
		return "the count is unknown, since the store does not answer: " + outcome(code(s.Over), s.RetryAfterUS, s.Degraded) +
			", by on_store_failure: " + s.Degraded
	}
	text := fmt.Sprintf("%d used, %d left", *s.Before, *s.Remaining)
	if *s.Before > 0 && (!s.Over || s.RetryAfterUS == nil) {
		text += ", whole again in " + duration(s.ResetAfterUS)
	}
	if slices.Contains(s.Reasons, "interval") {
		text += ", too soon after the last hit"
	}
	text += ": " + verb(s.Over, s.RetryAfterUS)
	if s.Cached {
		text += ", says the over-limit cache"
	}
	if s.Degraded != "" {
		text += ", says " + s.Degraded + ", because the store did not answer"
	}
	return text
}

// verb says whether a hit or a request passes. retry is how long it has to wait if it is
// over, in microseconds; nil: it can never pass.
func verb(over bool, retry *int64) string {
	switch {
	case !over:
		return "passes"
	case retry == nil:
		return "is over and can never pass"
	}
	return "is over, passes in " + duration(*retry)
}

func duration(us int64) string { return (time.Duration(us) * time.Microsecond).String() }

// list returns entries as the command line has them.
func list(entries []rules.EntryText) string {
	if len(entries) == 0 {
		return "no entries"
	}
	parts := make([]string, len(entries))
	for i, e := range entries {
		parts[i] = entry(e)
	}
	return strings.Join(parts, ", ")
}

func entry(e rules.EntryText) string { return shown(e.Key) + "=" + shown(e.Value) }
