package settings

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"ratelimit/src/settings/nearest"
)

// maxUnknown bounds the warnings about variables that are no settings.
const maxUnknown = 20

// Unknown returns a warning for each of names, those of the environment, that is
// probably meant to be one of table, and is not: it is an edit or two away, or begins
// like several of them. No warning has a value in it.
func Unknown(names []string, table []Variable) []string {
	known := make([]string, 0, len(table))
	for _, v := range table {
		known = append(known, v.Name)
	}
	prefixes := prefixesOf(known)
	var warnings []string
	for _, name := range slices.Sorted(slices.Values(names)) {
		if slices.Contains(known, name) || isForeign(name, names) {
			continue
		}
		if meant := meantVariable(name, known); meant != "" {
			warnings = append(warnings, fmt.Sprintf("%s is no setting; did you mean %s?", name, meant))
		} else if word, _, _ := strings.Cut(name, "_"); prefixes[word] {
			warnings = append(warnings, fmt.Sprintf("%s is no setting; `ratelimit serve --help` lists those that begin with %s_", name, word))
		}
	}
	if n := len(warnings) - maxUnknown; n > 0 {
		warnings = append(warnings[:maxUnknown], fmt.Sprintf("and %d more variables that are no settings", n))
	}
	return warnings
}

// minName is the length from which a name may be a mistyped one: shorter ones, such as
// POST and HOST, are all alike.
const minName = 6

// meantVariable returns which of known was meant by name; empty: none.
func meantVariable(name string, known []string) string {
	upper := strings.ToUpper(name)
	if slices.Contains(known, upper) && strings.Contains(upper, "_") {
		return upper
	}
	if meant := nearest.Word(name, known); len(name) >= minName && meant != "" {
		return meant
	}
	only := ""
	for _, k := range known {
		if strings.HasPrefix(k, name+"_") {
			if only != "" {
				return ""
			}
			only = k
		}
	}
	return only
}

// generic are words that variables of others begin with, too.
var generic = []string{"CONFIG", "DEBUG", "LOG", "USE"}

// prefixesOf returns the words that three or more of known begin with, but no generic
// ones.
func prefixesOf(known []string) map[string]bool {
	count := make(map[string]int)
	for _, k := range known {
		word, _, _ := strings.Cut(k, "_")
		count[word]++
	}
	prefixes := make(map[string]bool)
	for word, n := range count {
		prefixes[word] = n >= 3 && !slices.Contains(generic, word)
	}
	return prefixes
}

var (
	// others read these, or this package does by a part of the name.
	others = regexp.MustCompile(`^(HTTP_PROXY|OTEL_.*|DOG_STATSD_MOGRIFIER_.*|GRPC_(GO|XDS|DEFAULT_SSL|SSL|POLL|ENABLE|BINARY|PYTHON|NODE|EXPERIMENTAL|ENFORCE|TRACE|VERBOSITY|DNS|PROXY|STACKTRACE|CLIENT_CHANNEL|ALTS)(_.*)?)$`)
	// ofService are those by which Kubernetes and Docker tell of a service.
	ofService = regexp.MustCompile(`^(.+?)_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
)

// isForeign reports whether name is not meant for this program, or is warned of by
// its name.
func isForeign(name string, names []string) bool {
	if others.MatchString(name) {
		return true
	}
	if m := ofService.FindStringSubmatch(name); m != nil && slices.Contains(names, m[1]+"_SERVICE_HOST") {
		return true
	}
	return silent[name] != ""
}
