// Package suggest finds a request with which to try a set of rules.
package suggest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"

	"ratelimit/src/algorithm"
	"ratelimit/src/rules"
)

// Print writes the commands for a request that reaches the limit of a rule soonest. Addr
// is that of the HTTP port. Without such a rule it writes nothing.
func Print(w io.Writer, colored bool, set *rules.Set, addr net.Addr) {
	rule, body := soonest(set)
	if rule == nil {
		return
	}
	bold, plain := "", ""
	if colored && os.Getenv("NO_COLOR") == "" {
		bold, plain = "\x1b[1;32m", "\x1b[0m"
	}
	url := "localhost/json"
	if tcp, ok := addr.(*net.TCPAddr); ok {
		host := "localhost"
		if !tcp.IP.IsUnspecified() && !tcp.IP.IsLoopback() {
			host = tcp.IP.String()
		}
		url = net.JoinHostPort(host, strconv.Itoa(tcp.Port)) + "/json"
	}
	fmt.Fprintf(w, `
The rule %s lets %d pass in a window of 1 %s, which begins when the
clock does. Run this, and see 200 turn into 429:

  %sfor i in $(seq %d); do curl -s -o /dev/null -w '%%{http_code}\n' %s -d '%s'; done%s

The whole answer to one request:

  %scurl -s %s -d '%s'%s

Ctrl-C stops the service.
`, rule.Key, rule.Requests, strings.ToLower(rule.Unit.String()), bold, rule.Requests+1, url, body, plain, bold, url, body, plain)
}

// soonest finds the rule that shows best what a limit is: few entries to type,
// a small limit that lets something pass, a window longer than the demonstration.
// It returns nil if there is none, else also a request that the rule matches, as JSON.
func soonest(set *rules.Set) (best *rules.Rule, body string) {
	cost := func(r *rules.Rule) uint64 { return uint64(r.Requests) + 10*uint64(len(r.Path)+len(matchOf(r))) }
	for _, r := range set.Rules() {
		if r.Unlimited || r.Shadow || r.Requests < 2 || best != nil && cost(r) >= cost(best) {
			continue
		}
		if r.Limit.Kind != algorithm.FixedWindow || r.Multiplier > 1 || r.Unit == rules.Second || r.Charges != nil {
			continue // the words below are not true of it
		}
		if text, ok := example(set, r); ok {
			best, body = r, text
		}
	}
	return best, body
}

// matchOf returns the pairs that a rule of an ordered list matches; nil for other rules.
func matchOf(r *rules.Rule) []rules.Pair {
	if r.Listed == nil {
		return nil
	}
	return r.Listed.Match
}

// example returns a request that r matches; not ok if another rule matches it first.
func example(set *rules.Set, r *rules.Rule) (body string, ok bool) {
	type entry struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	var shown []entry
	for _, l := range r.Path {
		e := entry{Key: strings.ReplaceAll(l.Key(), "*", ""), Value: strings.ReplaceAll(l.Value(), "*", "1")}
		if l.Value() == "" {
			e.Value = "any"
		}
		shown = append(shown, e)
	}
	for _, p := range matchOf(r) {
		shown = append(shown, entry{p.Key, strings.ReplaceAll(p.Pattern, "*", "1")})
	}
	if len(shown) == 0 {
		return "", false
	}
	var asked []rules.Entry
	for _, e := range shown {
		asked = append(asked, rules.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
	}
	if found, _ := set.Domain([]byte(r.Domain)).Find(asked, &rules.Scratch{}, nil); found != r {
		return "", false
	}
	type descriptor struct {
		Entries []entry `json:"entries"`
	}
	text, err := json.Marshal(struct {
		Domain      string       `json:"domain"`
		Descriptors []descriptor `json:"descriptors"`
	}{r.Domain, []descriptor{{shown}}})
	if err != nil || strings.Contains(string(text), "'") { // it will stand between quotes in a shell
		return "", false
	}
	return string(text), true
}
