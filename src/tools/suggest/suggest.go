// Package suggest finds a request with which to try a set of rules.
package suggest

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"ratelimit/src/algorithm"
	"ratelimit/src/operator/output"
	"ratelimit/src/rules"
)

// Print writes shell commands that exceed the limit of a rule with few requests, and where to see them. httpAddr and
// debugAddr are the addresses of these ports; nil if there is none. Print writes nothing if no rule is suited.
func Print(w io.Writer, colored bool, set *rules.Set, httpAddr, debugAddr net.Addr) {
	x := bestExample(set)
	if x == nil {
		return
	}
	bold, plain := "", ""
	if colored && os.Getenv("NO_COLOR") == "" {
		bold, plain = "\x1b[1;32m", "\x1b[0m"
	}
	url := "localhost/json"
	if local := localAddress(httpAddr); local != "" {
		url = local + "/json"
	}
	page := ""
	if local := localAddress(debugAddr); local != "" {
		page = "These requests in a browser: http://" + local + "/\n\n"
	}
	each := ""
	if x.hits > 0 {
		each = fmt.Sprintf(", where each counts as %d", x.hits)
	}
	fmt.Fprintf(w, `
The rule %s allows %s. Run this%s,
and see 200 turn into 429:

  %sfor i in $(seq %d); do curl -s -o /dev/null -w '%%{http_code}\n' %s -d '%s'; done%s

%s

  %scurl -s %s -d '%s'%s

%sCtrl-C stops the service.
`, output.Escaped(x.rule.FullName), limitInWords(x.rule), each, bold, x.calls, url, output.Escaped(x.request), plain, x.oneTitle, bold, url, output.Escaped(x.oneRequest), plain, page)
}

// limitInWords returns what a rule allows: "2 requests per minute, by the clock (UTC)".
func limitInWords(r *rules.Rule) string {
	switch {
	case r.Limit.Kind == algorithm.Concurrency:
		return fmt.Sprintf("%d requests at a time, each for at most %s", r.Requests, rules.FormatDuration(r.Limit.Hold))
	case r.Limit.Calendar != nil:
		return fmt.Sprintf("%d requests per %s", r.Requests, r.CalendarWindow())
	}
	return fmt.Sprintf("%d requests per %s, by the clock (UTC)", r.Requests, strings.ToLower(r.Unit.String()))
}

// localAddress returns host:port with which this machine reaches addr. It returns "" if addr is no TCP address.
func localAddress(addr net.Addr) string {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return ""
	}
	host := "localhost"
	if !tcp.IP.IsUnspecified() && !tcp.IP.IsLoopback() {
		host = tcp.IP.String()
	}
	return net.JoinHostPort(host, strconv.Itoa(tcp.Port))
}

// example is a rule, and requests that exceed its limit.
type example struct {
	rule *rules.Rule
	// request is JSON for between the single quotes of a shell. With a hold, $i outside of the quotes names it.
	request              string
	calls                int    // how often request is sent until it is refused
	hits                 uint64 // its hits_addend; 0 for none
	oneTitle, oneRequest string // one more request, and what it shows
}

const (
	shortestTry = 10 * time.Second // longer than a demonstration takes.
	mostCalls   = 20               // the most calls that are all for one unit. Larger limits get 5 calls for many units.
)

// bestExample returns the rule that shows best what a limit is, with requests that match it. Such a rule has few
// entries to type, a small limit that lets some requests pass, and a window or hold that is longer than the
// demonstration. It returns nil if there is none.
func bestExample(set *rules.Set) (best *example) {
	cost := func(r *rules.Rule) uint64 { return r.Requests + 10*uint64(len(matchingEntries(r))) }
	for _, r := range set.Rules() {
		if r.Unlimited || r.ShadowMode || r.Requests < 2 || best != nil && cost(r) >= cost(best.rule) || !isSuited(r) {
			continue
		}
		if x := newExample(set, r); x != nil {
			best = x
		}
	}
	return best
}

// isSuited reports whether Print can describe the limit of r, and its window or holds outlast a demonstration.
func isSuited(r *rules.Rule) bool {
	switch l := &r.Limit; {
	case l.Kind == algorithm.Concurrency:
		return l.Hold >= shortestTry
	case l.Kind == algorithm.FixedWindow:
		return l.Calendar != nil || r.UnitMultiplier <= 1 && r.Unit != rules.UnitSecond
	}
	return false
}

// newExample returns requests that exceed the limit of r; nil if, for example, another rule matches first.
func newExample(set *rules.Set, r *rules.Rule) *example {
	x := &example{rule: r, calls: int(r.Requests) + 1, oneTitle: "The body of the answer to one request:"}
	if r.Requests > mostCalls {
		x.hits, x.calls = r.Requests/4, 5
	}
	entries := matchingEntries(r)
	if len(entries) == 0 {
		return nil
	}
	if r.Limit.Kind == algorithm.Concurrency {
		const id = "$i" // A JSON string has it as it is.
		entries = append(slices.DeleteFunc(entries, func(e rules.EntryText) bool { return e.Key == r.HoldIDKey }),
			rules.EntryText{Key: r.HoldIDKey, Value: id})
		x.request = exampleRequest(set, r, entries, x.hits)
		if i := strings.LastIndex(x.request, id); i >= 0 {
			x.request = x.request[:i] + "'" + id + "'" + x.request[i+len(id):]
		}
		entries[len(entries)-1].Value = "1"
		x.oneTitle = fmt.Sprintf("Request 1 ends with this. Then request %d passes, too:", x.calls)
		x.oneRequest = exampleRequest(set, r,
			append(entries, rules.EntryText{Key: rules.HoldActionKey, Value: rules.ReleaseHold.String()}), 0)
	} else {
		x.request = exampleRequest(set, r, entries, x.hits)
		x.oneRequest = x.request
	}
	if x.request == "" || x.oneRequest == "" {
		return nil
	}
	return x
}

// matchingEntries returns the entries of a descriptor that matches the patterns of r.
func matchingEntries(r *rules.Rule) (entries []rules.EntryText) {
	for i := range r.Path {
		l := &r.Path[i]
		e := rules.EntryText{Key: strings.ReplaceAll(l.Key(), "*", ""), Value: l.SampleValue()}
		if l.Kind == rules.LevelValue && !l.CountsNetworks() {
			e.Value = strings.ReplaceAll(l.Value(), "*", "1")
		}
		if e.Value == "" && l.Kind != rules.LevelExact {
			e.Value = "any"
		}
		entries = append(entries, e)
	}
	if r.ListSettings != nil {
		for _, p := range r.ListSettings.MatchPairs {
			entries = append(entries, rules.EntryText{Key: p.Key, Value: strings.ReplaceAll(p.Pattern, "*", "1")})
		}
	}
	return entries
}

// exampleRequest returns a request as JSON with the entries, which r matches, and a hits_addend if hits is not 0. It
// returns "" if another rule matches first, or if the JSON has a quote that a shell needs.
func exampleRequest(set *rules.Set, r *rules.Rule, list []rules.EntryText, hits uint64) string {
	type descriptor struct {
		Entries []rules.EntryText `json:"entries"`
		Hits    uint64            `json:"hits_addend,omitempty"`
	}
	one := descriptor{Entries: list}
	if hits > math.MaxUint32 { // That of the request has 32 bits.
		one.Hits, hits = hits, 0
	}
	var entries []rules.Entry
	for _, e := range list {
		entries = append(entries, rules.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
	}
	found := set.Domain([]byte(r.Domain)).FindRule(entries, &rules.SearchScratch{})
	if found == nil || len(found.Limits) > 1 || found.Limits[0] != r {
		return ""
	}
	text, err := json.Marshal(struct {
		Domain      string       `json:"domain"`
		Descriptors []descriptor `json:"descriptors"`
		Hits        uint64       `json:"hits_addend,omitempty"`
	}{r.Domain, []descriptor{one}, hits})
	if err != nil || strings.Contains(string(text), "'") { // Print puts the text between single quotes, for a shell.
		return ""
	}
	return string(text)
}
