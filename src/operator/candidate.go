package operator

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/operator/output"
)

// Candidate tells how the candidate rules would answer requests that the live rules decide.
type Candidate struct {
	Directory string `json:"directory"`
	Hash      string `json:"hash"` // the same for the same rules. It is empty if there are no candidate rules.
	Domains   int    `json:"domains"`
	Rules     int    `json:"rules"`
	Files     int    `json:"files"`
	// LoadedAt is when the candidate rules were loaded, zero if there are none. RefusedAt is when the last load was
	// refused, zero if it was not, and Problems are its mistakes.
	LoadedAt  time.Time `json:"loaded_at,omitzero"`
	RefusedAt time.Time `json:"refused_at,omitzero"`
	Problems  []string  `json:"problems"`
	// NewDomains are only in the candidate rules, RemovedDomains only in the live ones.
	NewDomains     []string `json:"new_domains"`
	RemovedDomains []string `json:"removed_domains"`

	// SampledPercent is the percentage of the counters of candidate limits that are judged, 100 for all. Counters that are
	// those of live limits are always judged.
	SampledPercent float64 `json:"sampled_percent"`

	Since    time.Time         `json:"since"` // when counting began: when these candidate rules came.
	Requests CandidateRequests `json:"requests"`
	// DifferingRules are rules with differences, those with most first. DifferingRuleCount is how many there are.
	DifferingRules     []CandidateRule    `json:"differing_rules"`
	DifferingRuleCount int                `json:"differing_rule_count"`
	Subjects           []CandidateSubject `json:"subjects"` // those with most differences in the last hour.
	Examples           []CandidateExample `json:"examples"` // the newest sampled differences, newest first.

	WriteRules func(io.Writer) error `json:"-"` // writes one line per candidate rule.
}

// CandidateDifferences are numbers of requests that the candidate rules would answer differently.
type CandidateDifferences struct {
	WouldDeny    uint64 `json:"would_deny"`     // passed, and would be denied.
	WouldAdmit   uint64 `json:"would_admit"`    // were denied, and would pass.
	WouldBeError uint64 `json:"would_be_error"` // would get an error, because they name no hold.
}

// CandidateRequests are the numbers of all requests since Candidate.Since.
type CandidateRequests struct {
	Same uint64 `json:"same"`
	CandidateDifferences
	NotJudged  uint64 `json:"not_judged"`  // could not be compared, because the store did not answer.
	NotSampled uint64 `json:"not_sampled"` // were not compared, because they need a counter that is not judged.
}

// CandidateRule is a rule that refuses requests under one version of the rules, and not under the other.
type CandidateRule struct {
	Domain string `json:"domain"`
	Rule   string `json:"rule"`
	// LiveLimit and CandidateLimit are the limits for people. One is empty if the rule is only in the other version.
	LiveLimit      string `json:"live_limit"`
	CandidateLimit string `json:"candidate_limit"`
	CandidateDifferences
}

// CandidateSubject is a subject whose requests would be answered differently. Requests is an estimate for the last
// hour.
type CandidateSubject struct {
	Result   string `json:"result"` // "would_deny" or "would_admit".
	Domain   string `json:"domain"`
	Rule     string `json:"rule"`
	Subject  string `json:"subject"` // the descriptor, as key=value,key=value. Callers chose its text.
	Requests uint64 `json:"requests"`
}

// CandidateExample is a sampled request that would be answered differently.
type CandidateExample struct {
	ID       uint64    `json:"id"`
	At       time.Time `json:"at"`
	Result   string    `json:"result"`
	Protocol string    `json:"protocol"`
	Domain   string    `json:"domain"`
	Rule     string    `json:"rule"`
	Subject  string    `json:"subject"` // the descriptor, as key=value,key=value. Callers chose its text.
	// RetryAfterSeconds is how long the version of the rules that refuses lets the caller wait, or NeverRetry.
	RetryAfterSeconds float64 `json:"retry_after_seconds"`
}

// WriteText writes the report for a terminal.
func (c *Candidate) WriteText(w io.Writer) error {
	ago := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	state := "there are none; put the next rules there to compare them with the live ones"
	if !c.LoadedAt.IsZero() {
		state = fmt.Sprintf("%s in %s, hash %s, loaded at %s; judged beside the live rules, and not enforced",
			output.Plural(c.Rules, "rule"), output.Plural(c.Domains, "domain"), c.Hash, ago(c.LoadedAt))
	}
	// streamPage passes a bufio.Writer, which keeps the error until Flush.
	_, _ = fmt.Fprintf(w, "candidate rules in %s: %s\n", c.Directory, state)
	if !c.RefusedAt.IsZero() {
		_, _ = fmt.Fprintf(w, "newer ones were refused at %s:\n  %s\n", ago(c.RefusedAt), strings.Join(c.Problems, "\n  "))
	}
	for _, domains := range []struct {
		text string
		list []string
	}{
		{"only the candidate has", c.NewDomains},
		{"the candidate removes, so that all their requests would be admitted", c.RemovedDomains},
	} {
		if len(domains.list) > 0 {
			_, _ = fmt.Fprintf(w, "domains that %s: %s\n", domains.text, strings.Join(domains.list, ", "))
		}
	}
	if c.LoadedAt.IsZero() {
		return nil
	}
	r := &c.Requests
	_, _ = fmt.Fprintf(w, "\n%d requests compared since %s: %d would be denied, %d would be admitted, %d would be "+
		"errors, %d have the same answer; %d could not be compared\n",
		r.Same+r.WouldDeny+r.WouldAdmit+r.WouldBeError, ago(c.Since), r.WouldDeny, r.WouldAdmit, r.WouldBeError, r.Same,
		r.NotJudged)
	if c.SampledPercent < 100 || r.NotSampled > 0 {
		_, _ = fmt.Fprintf(w, "%d requests were not compared, to bound the cost: %s %% of the counters that only the "+
			"candidate has are judged\n", r.NotSampled, strconv.FormatFloat(c.SampledPercent, 'f', -1, 64))
	}
	table := func(titles []output.Column, rows [][]string) {
		if len(rows) > 0 {
			_, _ = fmt.Fprintf(w, "\n%s\n", strings.Join(output.Table(0, titles, rows), "\n"))
		}
	}
	var rows [][]string
	for _, d := range c.DifferingRules {
		rows = append(rows, []string{
			d.Rule, cmp.Or(d.LiveLimit, "none"), cmp.Or(d.CandidateLimit, "none"), fmt.Sprint(d.WouldDeny),
			fmt.Sprint(d.WouldAdmit), fmt.Sprint(d.WouldBeError),
		})
	}
	table(output.Columns("RULE", "LIVE", "CANDIDATE", "WOULD DENY", "WOULD ADMIT", "WOULD BE ERROR"), rows)
	if more := c.DifferingRuleCount - len(c.DifferingRules); more > 0 {
		_, _ = fmt.Fprintf(w, "and %s more\n", output.Plural(more, "rule"))
	}
	rows = nil
	for _, s := range c.Subjects {
		rows = append(rows, []string{s.Subject, fmt.Sprint(s.Requests), s.Result, s.Rule})
	}
	table(output.Columns("SUBJECT (last hour)", "REQUESTS", "RESULT", "RULE"), rows)
	rows = nil
	for _, e := range c.Examples {
		rows = append(rows, []string{ago(e.At), e.Result, e.Domain, e.Subject, e.Rule})
	}
	table(output.Columns("EXAMPLE", "RESULT", "DOMAIN", "SUBJECT", "RULE"), rows)
	return nil
}
