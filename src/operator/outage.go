package operator

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ratelimit/src/operator/output"
)

// Outage says that servers of a store do not answer.
type Outage struct {
	// Store is "Redis", "Memcached" or "the Redis of limits by the second".
	Store string `json:"store"`
	// SilentServers of Servers do not answer.
	SilentServers int `json:"silent_servers"`
	Servers       int `json:"servers"`
	// Since is when the last of them ceased to answer. It is zero if the store has not answered since the start.
	Since time.Time `json:"since,omitzero"`
}

// text returns the outage for people: "Redis has not answered since 14:23:07".
func (o *Outage) text(now time.Time) string {
	who, verb := o.Store, "has"
	if o.SilentServers < o.Servers {
		who = fmt.Sprintf("%s of %d of %s", output.Plural(o.SilentServers, "server"), o.Servers, o.Store)
		if o.SilentServers > 1 {
			verb = "have"
		}
	}
	since := "this process started"
	if !o.Since.IsZero() {
		since = clockText(o.Since.Local(), now.Local())
	}
	return fmt.Sprintf("%s %s not answered since %s", who, verb, since)
}

// clockText returns the time of day of an instant, with its date if that is not the date of now.
func clockText(at, now time.Time) string {
	if at.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return at.Format(time.TimeOnly)
	}
	return at.Format(time.DateTime)
}

// OutageText says which stores do not answer since when, and what requests get meanwhile. It is empty while all stores
// answer and no request fails.
func (s *State) OutageText(r *RequestsPerSecond) string {
	if len(s.Outages) == 0 && r.Failed == 0 {
		return ""
	}
	var parts []string
	if len(s.Outages) == 0 {
		parts = []string{"Some calls of the store get no answer"}
	}
	for i := range s.Outages {
		parts = append(parts, s.Outages[i].text(s.Now))
	}
	text := strings.Join(append(parts, outageAnswers(r)), "; ")
	return fmt.Sprintf("%s (on_store_failure: %s)", text, strings.Join(s.OnStoreFailure, ", "))
}

// alarmingShare is the share of failed requests from which on somebody must look.
const alarmingShare = 0.01

// IsOutageBad reports whether what OutageText says makes requests fail or be denied, or may do so. The operator's page
// is red then, and amber if not.
func (s *State) IsOutageBad(r *RequestsPerSecond) bool {
	if len(s.Outages) == 0 {
		return r.Failed > 0 && r.Failed >= alarmingShare*r.Total()
	}
	return slices.ContainsFunc(s.OnStoreFailure, func(mode string) bool { return mode == "error" || mode == "deny" })
}

// outageAnswers says what requests get while a store does not answer.
func outageAnswers(r *RequestsPerSecond) string {
	total := r.Total()
	failed := percentText(r.Failed, total) + " of requests get an error"
	without := percentText(r.Fallback, total) + " of requests are decided without the store"
	switch {
	case total == 0:
		return "no requests in the last 10 s"
	case r.Failed > 0 && r.Fallback > 0:
		return failed + ", " + without
	case r.Failed > 0:
		return failed
	case r.Fallback > 0:
		return without
	}
	return "no request of the last 10 s needed it"
}

// percentText returns a part in percent. Only nothing is 0 %, and only the whole is 100 %.
func percentText(part, whole float64) string {
	switch percent := 100 * part / whole; {
	case percent > 0 && percent < 1:
		return "less than 1 %"
	case percent > 99 && percent < 100:
		return "more than 99 %"
	default:
		return fmt.Sprintf("%.0f %%", percent)
	}
}
