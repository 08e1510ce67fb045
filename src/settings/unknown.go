package settings

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"ratelimit/src/settings/nearest"
)

// maxUnknown bounds the warnings about unknown variables.
const maxUnknown = 20

// Unknown returns warnings about names of environment variables that are probably mistyped
// names of table. Such a name differs in one or two letters, or starts with the same word as
// several variables. Warnings contain no values.
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

// minName is the length of the shortest name that may be a mistyped one. Shorter names, such as
// POST and HOST, are too similar to each other.
const minName = 6

// meantVariable returns the name of known that was probably meant by name, or "".
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

// generic lists first words that variables of other programs have as well.
var generic = []string{"CONFIG", "DEBUG", "LOG", "USE"}

// prefixesOf returns the words that are the first word of three or more names of known, without
// the generic ones. The first word of REDIS_URL is REDIS.
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
	// others matches variables of libraries and of other programs, and mogrifiers' variables,
	// which this package finds by their prefix.
	others = regexp.MustCompile(`^(HTTP_PROXY|OTEL_.*|DOG_STATSD_MOGRIFIER_.*|GRPC_(GO|XDS|DEFAULT_SSL|SSL|POLL|ENABLE|BINARY|PYTHON|NODE|EXPERIMENTAL|ENFORCE|TRACE|VERBOSITY|DNS|PROXY|STACKTRACE|CLIENT_CHANNEL|ALTS)(_.*)?)$`)
	// ofService matches variables that Kubernetes and Docker set for each service.
	ofService = regexp.MustCompile(`^(.+?)_(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)
)

// isForeign reports whether Unknown ignores name: it is not meant for this program, or
// warnSilent warns of it. names are all names of the environment.
func isForeign(name string, names []string) bool {
	if others.MatchString(name) {
		return true
	}
	if m := ofService.FindStringSubmatch(name); m != nil && slices.Contains(names, m[1]+"_SERVICE_HOST") {
		return true
	}
	return silent[name] != ""
}
