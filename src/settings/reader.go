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

// forgive turns the problems of variables that have no effect into warnings: a mistake
// in a variable that envoyproxy/ratelimit does not read must not end the start. why is
// the reason for having no effect.
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

// warnUnused warns of those variables that are set, to more than "off", and have no
// effect.
func (r *reader) warnUnused(why, fix string, names ...string) {
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

// noEffect warns once of a variable that is set and has no effect: why, and what to do
// instead of removing it.
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

// read adds v to the table and returns the variable's value, if it has one. A variable
// that is set but empty has its default; for anything but text that is worth a warning,
// because it was probably meant to be set, unless the default is nothing.
func (r *reader) read(v Variable) (string, bool) {
	v.Section = r.current
	r.table = append(r.table, v)
	text, set := r.lookup(v.Name)
	if set && text == "" && v.Type != "text" {
		if v.Default != "" {
			r.warnings = append(r.warnings, fmt.Sprintf("%s is set but empty; its default %s is used", v.Name, v.Default))
		}
		return "", false
	}
	return text, set
}

// declare adds a line to the table and sets *to to the value of the variable, or to
// fallback without one. If parse refuses the value, the problem says fix, and declare
// returns false.
func declare[T any](r *reader, to *T, v Variable, fallback T, parse func(text string) (T, error), fix string) bool {
	*to = fallback
	v.Default = fmt.Sprint(fallback)
	if d, ok := any(fallback).(time.Duration); ok {
		v.Default = brief(d)
	}
	text, set := r.read(v)
	if !set {
		return true
	}
	var err error
	if *to, err = parse(text); err != nil {
		r.problem(v.Name, text, fix)
	}
	return err == nil
}

func (r *reader) text(to *string, name, fallback, meaning string) {
	declare(r, to, Variable{Name: name, Type: "text", Meaning: meaning}, fallback, asText, "")
}

func asText(text string) (string, error) { return text, nil }

// secret is a text of another kind that is never shown.
func (r *reader) secret(to *string, name, kind, meaning string) {
	*to, _ = r.read(Variable{Name: name, Type: kind, Meaning: meaning})
}

// oneOf reads one of words, in any case; *to is the word as it stands in words.
func (r *reader) oneOf(to *string, name, fallback, meaning string, words ...string) {
	list := strings.Join(words, ", ")
	declare(r, to, Variable{Name: name, Type: "word", Meaning: meaning + ": " + list}, fallback, asText, "")
	i := slices.IndexFunc(words, func(w string) bool { return strings.EqualFold(w, *to) })
	if i < 0 {
		r.problem(name, *to, "write one of "+list)
		return
	}
	*to = words[i]
}

func (r *reader) flag(to *bool, name string, fallback bool, meaning string) {
	declare(r, to, Variable{Name: name, Type: "bool", Meaning: meaning}, fallback, strconv.ParseBool, "write true or false")
}

// errRefused is an error that problems do not show.
var errRefused = errors.New("refused")

// wholeFrom returns a parser of whole numbers from least up to most; 0x, 0b and 0 stand
// for other bases, as in envoyproxy/ratelimit.
func wholeFrom[N int | int64](least, most int64) func(text string) (N, error) {
	return func(text string) (N, error) {
		n, err := strconv.ParseInt(text, 0, 64)
		if err == nil && (n < least || n > most) {
			err = errRefused
		}
		return N(n), err
	}
}

// number declares a whole number from least up to most.
func number[N int | int64](r *reader, to *N, name, kind string, fallback N, least, most int64, fix, meaning string) limit {
	ok := declare(r, to, Variable{Name: name, Type: kind, Meaning: meaning}, fallback, wholeFrom[N](least, most), fix)
	return limit{r, name, ok, int64(*to), func(n int64) string { return strconv.FormatInt(n, 10) }}
}

func (r *reader) port(to *int, name string, fallback int, meaning string) {
	number(r, to, name, "port", fallback, 0, math.MaxUint16, portFix, meaning)
}

const portFix = "write a port number, 0 to 65535"

// optionalPort reports whether the port is set, or else whether it is neither set nor
// off. usual is its value then.
func (r *reader) optionalPort(to *int, name string, usual int, meaning string) (on, maybe bool) {
	*to = usual
	v, set := r.read(Variable{Name: name, Type: "port", Meaning: meaning})
	if !set || v == "off" {
		return false, !set
	}
	var err error
	if *to, err = wholeFrom[int](0, math.MaxUint16)(v); err != nil {
		r.problem(name, v, portFix)
	}
	return true, false
}

func (r *reader) bytes(to *int64, name string, fallback int64, meaning string) limit {
	return number(r, to, name, "bytes", fallback, 1, math.MaxInt64, "write a number of bytes, such as "+strconv.FormatInt(fallback, 10), meaning)
}

func (r *reader) size(to *int64, name string, fallback int64, meaning string) limit {
	return number(r, to, name, "bytes", fallback, 0, math.MaxInt64, "write a number of bytes, or 0", meaning)
}

func (r *reader) integer(to *int, name string, fallback int, meaning string) limit {
	return number(r, to, name, "integer", fallback, math.MinInt32, math.MaxInt32, "write a whole number", meaning)
}

func (r *reader) count(to *int, name string, fallback int, meaning string) limit {
	return number(r, to, name, "count", fallback, 1, math.MaxInt32, "write a whole number above 0", meaning)
}

// decimal declares a number that in accepts.
func (r *reader) decimal(to *float32, name string, fallback float32, in func(float64) bool, fix, meaning string) {
	declare(r, to, Variable{Name: name, Type: "number", Meaning: meaning}, fallback, func(text string) (float32, error) {
		f, err := strconv.ParseFloat(text, 32)
		if err == nil && !in(f) {
			err = errRefused
		}
		return float32(f), err
	}, fix)
}

func (r *reader) duration(to *time.Duration, name string, fallback time.Duration, meaning string) limit {
	ok := declare(r, to, Variable{Name: name, Type: "duration", Meaning: meaning}, fallback, func(text string) (time.Duration, error) {
		d, err := time.ParseDuration(text)
		if err == nil && d < 0 {
			err = errRefused
		}
		return d, err
	}, "write a duration with its unit, such as 500ms, 30s, 1h30m")
	return limit{r, name, ok, int64(*to), func(n int64) string { return brief(time.Duration(n)) }}
}

// limit checks the bounds of a number that was declared.
type limit struct {
	r    *reader
	name string
	ok   bool // the variable could be read
	n    int64
	text func(n int64) string
}

func (l limit) refuse(bad bool, fix string) limit {
	if bad && l.ok {
		l.r.problem(l.name, l.text(l.n), "write "+fix)
		l.ok = false
	}
	return l
}

func (l limit) atLeast(n int64) limit { return l.refuse(l.n < n, l.text(n)+" or more") }

func (l limit) atMost(n int64) limit { return l.refuse(l.n > n, l.text(n)+" or less") }

// pause is atLeast for the time between two attempts of something.
func (l limit) pause(least time.Duration) limit { return l.atLeast(int64(least)) }

// pauseOr0 is pause for a time that is off with 0.
func (l limit) pauseOr0(least time.Duration) limit {
	return l.refuse(l.n != 0 && l.n < int64(least), brief(least)+" or more, or 0")
}

// minPause keeps a setting from making the service do something without a pause.
const minPause = 10 * time.Millisecond

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

// document adds a line to the table for variables with a part in the name that varies.
func (r *reader) document(name, kind, meaning string) {
	r.table = append(r.table, Variable{r.current, name, kind, "", meaning})
}

func (r *reader) list(to *[]string, name, meaning string) {
	if v, set := r.read(Variable{Name: name, Type: "list", Meaning: meaning}); set {
		*to = list(v)
	}
}

func (r *reader) tags(to *map[string]string, name, meaning string) {
	if v, set := r.read(Variable{Name: name, Type: "map", Meaning: meaning}); set {
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
	var m Mogrifier
	pattern, _ := r.lookup(prefix + "_PATTERN")
	var err error
	if m.Pattern, err = regexp.Compile(pattern); err != nil || pattern == "" {
		r.problem(prefix+"_PATTERN", pattern, "write a regular expression that matches the names to change")
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

// sink returns where statistics go. statsd is on unless USE_STATSD is false or another
// sink is on.
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

// silent are variables of envoyproxy/ratelimit, of its documentation and of projects
// that deploy it, which have no effect here. Each that is set to more than "off" gets
// one warning.
var silent = []struct{ advice, names string }{
	{"envoyproxy/ratelimit never read it; its list is named USE_DOG_STATSD_MOGRIFIERS", "DOG_STATSD_MOGRIFIERS"},
	{"envoyproxy/ratelimit no longer reads it", "REDIS_POOL_ON_EMPTY_WAIT_DURATION REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION"},
	{"envoyproxy/ratelimit never read it; with GRPC_CLIENT_TLS_CACERT clients need a certificate, without it they need none", "GRPC_SERVER_TLS_CA_CERT"},
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
