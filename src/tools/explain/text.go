package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ratelimit/src/backend"
)

// Text is the report for people.
func (r *Report) Text() string {
	var t text
	for i := range r.Descriptors {
		d := &r.Descriptors[i]
		head := shown(r.Domain) + ": " + list(d.Entries)
		if n := len(r.Descriptors); n > 1 {
			head = fmt.Sprintf("%d of %d, %s", i+1, n, head)
		}
		t.line(0, "%s", head)
		t.descriptor(d)
	}
	if r.Now != nil {
		t.line(0, "now the request %s", r.Now.words())
	}
	return t.String()
}

// text is lines with indentation.
type text struct{ strings.Builder }

func (t *text) line(depth int, format string, args ...any) {
	t.WriteString(strings.Repeat("  ", depth))
	fmt.Fprintf(t, format, args...)
	t.WriteByte('\n')
}

func (t *text) descriptor(d *Descriptor) {
	for i := range d.Steps {
		t.step(&d.Steps[i])
	}
	if len(d.Rules) > 0 {
		t.rules(d)
	}
	canary := 0
	for i := range d.Charges {
		if d.Charges[i].Canary {
			canary++
		}
	}
	several := len(d.Charges)-canary > 1
	switch {
	case d.Outcome == Unmatched:
		t.line(1, "no rule: %s", d.Why)
		if d.Hint != "" {
			t.line(1, "%s", d.Hint)
		}
	case d.Rule == "":
		t.line(1, "the request brings its own limit, which takes the place of all rules")
	case several && d.AllOrNone:
		t.line(1, "meets %s (%s), which charges all of these or none", shown(d.Rule), d.At)
	case several:
		t.line(1, "meets %s (%s), which charges each of these", shown(d.Rule), d.At)
	}
	for i := range d.Charges {
		t.charge(&d.Charges[i])
	}
	if d.Quota && d.Outcome == Limited {
		t.line(1, "quota mode: refuses only if all quota rules of the request are over")
	}
	if d.Now != nil && len(d.Charges) > 1 && d.Outcome == Limited {
		t.line(1, "now the descriptor %s", d.Now.words())
	}
}

// rules are those of an ordered list that were asked.
func (t *text) rules(d *Descriptor) {
	unlisted := d.Unlisted
	for i := range d.Rules {
		r := &d.Rules[i]
		if r.Outcome == Decides && unlisted > 0 {
			t.line(1, "not    %s more", plural(uint64(unlisted), "rule"))
			unlisted = 0
		}
		switch {
		case r.Outcome == Decides:
			t.line(1, "takes  %s (%s)", shown(r.Rule), r.At)
		case r.Outcome == Canary:
			t.line(1, "canary %s (%s): is charged, and goes on", shown(r.Rule), r.At)
		case r.Value == nil:
			t.line(1, "not    %s (%s): there is no %s", shown(r.Rule), r.At, shown(r.Key))
		default:
			t.line(1, "not    %s (%s): %s is not %s", shown(r.Rule), r.At, pair(r.Key, *r.Value), shown(r.Pattern))
		}
	}
	if unlisted > 0 {
		t.line(1, "not    %s more", plural(uint64(unlisted), "rule"))
	}
}

func (t *text) step(s *Step) {
	exact := "key and value"
	if s.Word {
		exact = "name"
		t.line(1, "%s", shown(s.Entry.Key))
	} else {
		t.line(1, "%s", entry(s.Entry))
	}
	unlisted := s.Unlisted
	for i := range s.Candidates {
		c := &s.Candidates[i]
		if c.Outcome != NoMatch {
			t.unlisted(&unlisted)
		}
		how := map[string]string{"exact": exact, "wildcard": "wildcard", "key": "key alone"}[c.How]
		format := map[string]string{
			Taken:   "takes %s (%s): %s",
			NoMatch: "not   %s (%s): %s, does not match",
			Behind:  "later %s (%s): %s, matches, too",
		}[c.Outcome]
		t.line(2, format, pair(c.Key, c.Value), c.At, how)
	}
	t.unlisted(&unlisted)
	if len(s.Candidates) == 0 {
		t.line(2, "nothing")
	}
}

// unlisted tells once of wildcards without a match that are not listed.
func (t *text) unlisted(n *int) {
	if *n > 0 {
		t.line(2, "not   %s more", plural(uint64(*n), "wildcard"))
		*n = 0
	}
}

func (t *text) charge(c *Charge) {
	what := c.Words
	if c.Algorithm != "" {
		what += ", " + c.Algorithm
	}
	if c.Rule == "" {
		t.line(1, "%s", what)
	} else {
		t.line(1, "rule %s (%s): %s", shown(c.Rule), c.At, what)
	}
	if c.Name != "" {
		t.line(2, "callers are told its name, %s", shown(c.Name))
	}
	switch {
	case c.Canary:
		t.line(2, "canary: is charged, and another rule answers")
	case c.Shadow:
		t.line(2, "shadow mode: is charged and never refuses")
	}
	if c.Fallback != "" {
		t.line(2, "when the store does not answer: %s", c.Fallback)
	}
	if len(c.Shared) > 0 {
		t.line(2, "all values of %s share one counter", strings.Join(c.Shared, " and "))
	}
	for _, by := range c.ReplacedBy {
		t.line(2, "is replaced by %s, so nothing is charged to it", shown(by))
	}
	if c.Key == "" {
		return
	}
	does := c.does() + " counter " + shown(c.Key)
	if c.Earlier > 0 {
		does += ", after " + plural(c.Earlier, "hit") + " of the descriptors before"
	}
	t.line(2, "%s", does)
	if c.Now != nil {
		t.line(2, "now %s", c.Now.words())
	}
}

// does is what the hit does to its counter.
func (c *Charge) does() string {
	switch {
	case c.Op == "refund":
		return fmt.Sprintf("gives %s back to", plural(c.Amount, "hit"))
	case c.Amount == 0:
		return "looks only at"
	}
	return fmt.Sprintf("charges %s to", plural(c.Amount, "hit"))
}

func plural(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (d *Decision) words() string {
	if d.Shadowed {
		return "is over the limit, but passes: the service is in shadow mode"
	}
	return outcome(d.Code == "OVER_LIMIT", d.RetryAfterUS, d.Degraded)
}

func (st *Status) words() string {
	return outcome(st.Code == "OVER_LIMIT", st.RetryAfterUS, st.Degraded)
}

// outcome is verb for what was decided, perhaps without the store, as degraded says.
func outcome(over bool, retry *int64, degraded string) string {
	if over && retry != nil && degraded == backend.FallbackDeny.String() {
		return "is refused" // how long it has to wait depends on the store
	}
	return verb(over, retry)
}

func (s *State) words() string {
	if s.Before == nil {
		return "the count is unknown, since the store does not answer: " + outcome(s.Over, s.RetryAfterUS, s.Degraded) +
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
		text += ", says " + s.Degraded + ", for want of an answer of the store"
	}
	return text
}

// verb is what becomes of something; retry is how long it has to wait if it is
// over, nil for ever.
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

// list is entries as a command takes them.
func list(entries []Entry) string {
	if len(entries) == 0 {
		return "no entries"
	}
	parts := make([]string, len(entries))
	for i, e := range entries {
		parts[i] = entry(e)
	}
	return strings.Join(parts, ", ")
}

func entry(e Entry) string { return shown(e.Key) + "=" + shown(e.Value) }
