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

// Print writes shell commands that exceed the limit of a rule with few requests, and where to see them. httpAddr and debugAddr are the
// addresses of these ports; nil if there is none. Print writes nothing if no rule is suited.
func Print(w io.Writer, colored bool, set *rules.Set, httpAddr, debugAddr net.Addr) {
	rule, request := bestExample(set)
	if rule == nil {
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
	fmt.Fprintf(w, `
The rule %s allows %d requests per %s, by the clock (UTC). Run this,
and see 200 turn into 429:

  %sfor i in $(seq %d); do curl -s -o /dev/null -w '%%{http_code}\n' %s -d '%s'; done%s

The body of the answer to one request:

  %scurl -s %s -d '%s'%s

%sCtrl-C stops the service.
`, rule.FullName, rule.Requests, strings.ToLower(rule.Unit.String()), bold, rule.Requests+1, url, request, plain, bold, url, request, plain, page)
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

// bestExample returns the rule that shows best what a limit is, and a request as JSON that the rule matches. Such a rule has few
// entries to type, a small limit that lets some requests pass, and a window that is longer than the demonstration. It returns nil if
// there is none.
func bestExample(set *rules.Set) (best *rules.Rule, request string) {
	cost := func(r *rules.Rule) uint64 { return uint64(r.Requests) + 10*uint64(len(matchingEntries(r))) }
	for _, r := range set.Rules() {
		if r.Unlimited || r.ShadowMode || r.Requests < 2 || best != nil && cost(r) >= cost(best) {
			continue
		}
		if r.Limit.Kind != algorithm.FixedWindow || r.UnitMultiplier > 1 || r.Unit == rules.UnitSecond || r.ChargedLimits != nil {
			continue // The text that Print writes describes other limits.
		}
		if text, ok := exampleRequest(set, r); ok {
			best, request = r, text
		}
	}
	return best, request
}

// matchingEntries returns the entries of a descriptor that matches the patterns of r.
func matchingEntries(r *rules.Rule) (entries []rules.EntryText) {
	for _, l := range r.Path {
		e := rules.EntryText{Key: strings.ReplaceAll(l.Key(), "*", ""), Value: strings.ReplaceAll(l.Value(), "*", "1")}
		if l.Value() == "" {
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

// exampleRequest returns a request as JSON that r matches. ok is false if another rule matches it first.
func exampleRequest(set *rules.Set, r *rules.Rule) (request string, ok bool) {
	type descriptor struct {
		Entries []rules.EntryText `json:"entries"`
	}
	d := descriptor{matchingEntries(r)}
	var entries []rules.Entry
	for _, e := range d.Entries {
		entries = append(entries, rules.Entry{Key: []byte(e.Key), Value: []byte(e.Value)})
	}
	if len(entries) == 0 {
		return "", false
	}
	if found, _ := set.Domain([]byte(r.Domain)).FindRule(entries, &rules.SearchScratch{}, nil); found != r {
		return "", false
	}
	text, err := json.Marshal(struct {
		Domain      string       `json:"domain"`
		Descriptors []descriptor `json:"descriptors"`
	}{r.Domain, []descriptor{d}})
	if err != nil || strings.Contains(string(text), "'") { // Print puts the text between single quotes, for a shell.
		return "", false
	}
	return string(text), true
}
