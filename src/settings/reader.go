package settings

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Variable is one line of the table of settings.
type Variable struct {
	Section string
	Name    string
	Type    string
	Default string
	Meaning string
}

// reader reads variables as they are declared, and collects the table, the
// problems and the warnings on the way.
type reader struct {
	lookup   func(string) (string, bool)
	current  string
	table    []Variable
	problems []problem
	parsed   int // so many of problems are of single variables, which cannot be read
	warnings []string
}

// problem is a mistake in a variable, or, without a name, in several.
type problem struct{ name, value, fix string }

func (p problem) String() string {
	if p.name == "" {
		return p.fix
	}
	return p.name + "=" + p.value + ": " + p.fix
}

// err joins all problems; nil if there are none.
func (r *reader) err() error {
	var list []error
	for _, p := range r.problems {
		list = append(list, errors.New(p.String()))
	}
	return errors.Join(list...)
}

func (r *reader) section(name string) { r.current = name }

// problem notes what is wrong with a variable, unless it could not even be read: one
// mistake is one problem.
func (r *reader) problem(name, value, fix string) {
	if !r.unreadable(name) {
		r.problems = append(r.problems, problem{name, value, fix})
	}
}

// unreadable reports whether the variable has a value that cannot be read.
func (r *reader) unreadable(name string) bool {
	return slices.ContainsFunc(r.problems[:r.parsed], func(p problem) bool { return p.name == name })
}

// forgive turns the problems of variables that have no effect into warnings: what
// envoyproxy/ratelimit never looks at does not end the start. why says why they have
// none.
func (r *reader) forgive(why string, noEffect func(name string) bool) {
	kept, parsed := r.problems[:0], 0
	for i, p := range r.problems {
		if p.name != "" && noEffect(p.name) {
			if v, _ := r.lookup(p.name); v != "" {
				r.noEffect(p.name, p.value, why, p.fix)
			}
			continue
		}
		if i < r.parsed {
			parsed++
		}
		kept = append(kept, p)
	}
	r.problems, r.parsed = kept, parsed
}

// idle warns of those variables that are set, to more than "off", and have no effect.
func (r *reader) idle(why, fix string, names ...string) {
	for _, name := range names {
		value, _ := r.lookup(name)
		if on, err := strconv.ParseBool(value); value != "" && (err != nil || on) {
			if strings.Contains(name, "_URL") { // may hold a password
				value = "…"
			}
			r.noEffect(name, value, why, fix)
		}
	}
}

// noEffect warns once of a variable that is set and has no effect. It says why that
// is, and what to do instead of removing it.
func (r *reader) noEffect(name, value, why, fix string) {
	begin := name + "=" + value + " has no effect: "
	if slices.ContainsFunc(r.warnings, func(w string) bool { return strings.HasPrefix(w, begin) }) {
		return
	}
	r.warnings = append(r.warnings, begin+why+"; remove it, or "+fix)
}

// begins returns a test for names that begin with one of prefixes.
func begins(prefixes ...string) func(name string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	}
}

// read adds a line to the table and returns the variable's value, if it has
// one. A variable that is set but empty means its default; for anything but
// text that is worth a warning, since it was probably meant to be set, unless
// the default is nothing.
func (r *reader) read(name, kind, fallback, meaning string) (string, bool) {
	r.table = append(r.table, Variable{r.current, name, kind, fallback, meaning})
	v, set := r.lookup(name)
	if set && v == "" && kind != "text" {
		if fallback == "" {
			return "", false
		}
		r.warnings = append(r.warnings, fmt.Sprintf("%s is set but empty; its default %s is used", name, fallback))
		return "", false
	}
	return v, set
}

func (r *reader) text(to *string, name, fallback, meaning string) {
	*to = fallback
	if v, set := r.read(name, "text", fallback, meaning); set {
		*to = v
	}
}

// secret is a text of another kind that is taken apart later and never shown.
func (r *reader) secret(to *string, name, kind, meaning string) {
	*to, _ = r.read(name, kind, "", meaning)
}

func (r *reader) oneOf(to *string, name, fallback, meaning string, words ...string) {
	*to = fallback
	list := strings.Join(words, ", ")
	if v, set := r.read(name, "word", fallback, meaning+": "+list); set {
		*to = v
		if !slices.ContainsFunc(words, func(w string) bool { return strings.EqualFold(w, v) }) {
			r.problem(name, v, "write one of "+list)
		}
	}
}

func (r *reader) flag(to *bool, name string, fallback bool, meaning string) {
	*to = fallback
	if v, set := r.read(name, "bool", strconv.FormatBool(fallback), meaning); set {
		b, err := strconv.ParseBool(v)
		if err != nil {
			r.problem(name, v, "write true or false")
		}
		*to = b
	}
}

func (r *reader) port(to *int, name string, fallback int, meaning string) {
	*to = fallback
	if v, set := r.read(name, "port", strconv.Itoa(fallback), meaning); set {
		r.portNumber(to, name, v)
	}
}

func (r *reader) portNumber(to *int, name, text string) {
	n, err := strconv.ParseInt(text, 0, 64) // 0x, 0b and 0 for octal, as upstream
	if err != nil || n < 0 || n > math.MaxUint16 {
		r.problem(name, text, "write a port number, 0 to 65535")
	}
	*to = int(n)
}

// optionalPort reports whether there is to be a port, or else whether there may
// be one, since nobody says. That would be usual.
func (r *reader) optionalPort(to *int, name string, usual int, meaning string) (on, maybe bool) {
	*to = usual
	v, set := r.read(name, "port", "", meaning)
	if !set || v == "off" {
		return false, !set
	}
	r.portNumber(to, name, v)
	return true, false
}

func (r *reader) bytes(to *int64, name string, fallback int64, meaning string) {
	*to = fallback
	if v, set := r.read(name, "bytes", strconv.FormatInt(fallback, 10), meaning); set {
		n, err := strconv.ParseInt(v, 0, 64)
		if err != nil || n <= 0 {
			r.problem(name, v, "write a number of bytes, such as "+strconv.FormatInt(fallback, 10))
		}
		*to = n
	}
}

// document adds a line to the table for variables whose names are not fixed.
func (r *reader) document(name, kind, meaning string) {
	r.table = append(r.table, Variable{r.current, name, kind, "", meaning})
}

func (r *reader) list(to *[]string, name, meaning string) {
	*to = nil
	if v, set := r.read(name, "list", "", meaning); set {
		for item := range strings.SplitSeq(v, ",") {
			if item = strings.TrimSpace(item); item != "" {
				*to = append(*to, item)
			}
		}
	}
}

func (r *reader) tags(to *map[string]string, name, meaning string) {
	*to = nil
	if v, set := r.read(name, "map", "", meaning); set {
		*to = r.pairs(name, v)
	}
}

// pairs reads "key:value,key:value".
func (r *reader) pairs(name, text string) map[string]string {
	if text == "" {
		return nil
	}
	m := make(map[string]string)
	for pair := range strings.SplitSeq(text, ",") {
		key, value, ok := strings.Cut(pair, ":")
		if !ok || key == "" || strings.Contains(value, ":") {
			r.problem(name, text, "write key:value, separated by commas, with one colon in each")
			return nil
		}
		m[key] = value
	}
	return m
}

// mogrifier reads the variables of one mogrifier.
func (r *reader) mogrifier(id string) Mogrifier {
	prefix := "DOG_STATSD_MOGRIFIER_" + strings.ToUpper(id) // as upstream's library has it
	m := Mogrifier{ID: id}
	m.Pattern, _ = r.lookup(prefix + "_PATTERN")
	if _, err := regexp.Compile(m.Pattern); err != nil || m.Pattern == "" {
		r.problem(prefix+"_PATTERN", m.Pattern, "write a regular expression that finds the names it is for")
	}
	m.Name, _ = r.lookup(prefix + "_NAME")
	if m.Name == "" {
		r.problem(prefix+"_NAME", "", "write the new name; $1 is the first group of the pattern")
	}
	tags, _ := r.lookup(prefix + "_TAGS")
	m.Tags = r.pairs(prefix+"_TAGS", tags)
	for _, value := range m.Tags {
		if value == "" {
			r.problem(prefix+"_TAGS", tags, "write a value behind each colon")
			break
		}
	}
	return m
}

// sink decides where statistics go. statsd is on unless somebody says
// otherwise, which choosing another sink does.
func (r *reader) sink(statsd, dogStatsd, prometheus, disable bool) Sink {
	if asked, _ := r.lookup("USE_STATSD"); asked == "" && (dogStatsd || prometheus) {
		statsd = false
	}
	chosen := 0
	for _, on := range []bool{statsd, dogStatsd, prometheus} {
		if on {
			chosen++
		}
	}
	switch {
	case disable:
		return SinkNone
	case chosen > 1:
		r.problems = append(r.problems, problem{fix: "more than one of USE_STATSD, USE_DOG_STATSD and USE_PROMETHEUS is true: choose one"})
		return SinkNone
	case statsd:
		return SinkStatsd
	case dogStatsd:
		return SinkDogStatsd
	case prometheus:
		return SinkPrometheus
	}
	return SinkLog
}

func (r *reader) integer(to *int, name string, fallback int, meaning string) {
	*to = fallback
	if v, set := r.read(name, "integer", strconv.Itoa(fallback), meaning); set {
		n, err := strconv.ParseInt(v, 0, 32)
		if err != nil {
			r.problem(name, v, "write a whole number")
		}
		*to = int(n)
	}
}

func (r *reader) size(to *int64, name string, fallback int64, meaning string) {
	*to = fallback
	if v, set := r.read(name, "bytes", strconv.FormatInt(fallback, 10), meaning); set {
		n, err := strconv.ParseInt(v, 0, 64)
		if err != nil || n < 0 {
			r.problem(name, v, "write a number of bytes, or 0")
		}
		*to = n
	}
}

func (r *reader) count(to *int, name string, fallback int, meaning string) {
	*to = fallback
	if v, set := r.read(name, "count", strconv.Itoa(fallback), meaning); set {
		n, err := strconv.ParseInt(v, 0, 32)
		if err != nil || n <= 0 {
			r.problem(name, v, "write a whole number above 0")
		}
		*to = int(n)
	}
}

// countUpTo reads a whole number from 1 to most, which is the default.
func (r *reader) countUpTo(to *int, name string, most int, meaning string) {
	r.count(to, name, most, meaning)
	if *to > most {
		r.problem(name, strconv.Itoa(*to), fmt.Sprintf("write a whole number from 1 to %d", most))
	}
}

func (r *reader) ratio(to *float32, name string, fallback float32, meaning string) {
	*to = fallback
	if v, set := r.read(name, "number", strconv.FormatFloat(float64(fallback), 'g', -1, 32), meaning); set {
		f, err := strconv.ParseFloat(v, 32)
		if err != nil || math.IsNaN(f) {
			r.problem(name, v, "write a number such as 0.8")
		}
		*to = float32(f)
	}
}

// fraction reads a number up to 1 and above 0, or from 0 with zeroToo.
func (r *reader) fraction(to *float32, name string, fallback float32, zeroToo bool, meaning string) {
	*to = fallback
	v, set := r.read(name, "number", strconv.FormatFloat(float64(fallback), 'g', -1, 32), meaning)
	if !set {
		return
	}
	fix := "write a number above 0, up to 1, such as 0.8"
	if zeroToo {
		fix = "write a number from 0 to 1, such as 0.8"
	}
	f, err := strconv.ParseFloat(v, 32)
	if in := f > 0 && f <= 1 || zeroToo && f == 0; err != nil || !in {
		r.problem(name, v, fix)
	}
	*to = float32(f)
}

func (r *reader) duration(to *time.Duration, name string, fallback time.Duration, meaning string) {
	*to = fallback
	if v, set := r.read(name, "duration", brief(fallback), meaning); set {
		d, err := time.ParseDuration(v)
		if err != nil || d < 0 {
			r.problem(name, v, "write a duration with its unit, such as 500ms, 30s, 1h30m")
		}
		*to = d
	}
}

// minPause keeps a setting from having the service do something without a pause.
const minPause = 10 * time.Millisecond

// atLeast notes a duration below least, but for 0 if that means something else.
func (r *reader) atLeast(name string, d, least time.Duration, zeroToo bool) {
	fix := "write " + brief(least) + " or more"
	if zeroToo {
		fix += ", or 0"
	}
	if d < least && (d != 0 || !zeroToo) {
		r.problem(name, d.String(), fix)
	}
}

// brief is d without the zero minutes and seconds that Duration.String adds.
func brief(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// silent are variables of envoyproxy/ratelimit, of its documentation and of
// projects that deploy it, which have no effect here. Whoever sets one to more
// than "off" expects something, so each gets one warning.
var silent = []struct{ advice, names string }{
	{"envoyproxy/ratelimit never read it; its list is named USE_DOG_STATSD_MOGRIFIERS", "DOG_STATSD_MOGRIFIERS"},
	{"envoyproxy/ratelimit no longer reads it", "REDIS_POOL_ON_EMPTY_WAIT_DURATION REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION"},
	{"envoyproxy/ratelimit never read it; with GRPC_CLIENT_TLS_CACERT clients need a certificate, so far nobody is asked for one", "GRPC_SERVER_TLS_CA_CERT"},
}

func (r *reader) silent() {
	for _, group := range silent {
		for name := range strings.FieldsSeq(group.names) {
			v, set := r.lookup(name)
			if on, err := strconv.ParseBool(v); set && v != "" && (err != nil || on) {
				r.warnings = append(r.warnings, fmt.Sprintf("%s has no effect: %s", name, group.advice))
			}
		}
	}
}
