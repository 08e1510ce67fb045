package settings

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"ratelimit/src/settings/units"
)

// Environment has the values of environment variables by name.
type Environment map[string]string

// NewEnvironment returns the variables of environ, a list of NAME=value such as os.Environ.
func NewEnvironment(environ []string) Environment {
	env := make(Environment)
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	return env
}

// reader reads variables and collects problems and warnings.
type reader struct {
	env             Environment
	defaultByName   map[string]string // replaces defaults of the table, by name of the variable.
	hasRefusedValue map[string]bool   // true for variables whose value was refused.
	problems        []problem
	warnings        []string
}

// problem is a mistake in the value of a variable, and how to fix it. A mistake in several variables has no name and no
// value.
type problem struct {
	name, value, fix string
	// instead says what the service does instead of ending the start, such as "10ms is used". It is empty if the start
	// ends.
	instead string
}

func (p problem) String() string {
	text := p.fix
	if p.name != "" {
		text = p.name + "=" + p.value + ": " + text
	}
	if p.instead != "" {
		text += "; " + p.instead
	}
	return text
}

// newReader returns a reader of the variables in table. It does not change env.
func newReader(env Environment, table []Variable) *reader {
	r := &reader{
		env: maps.Clone(env), hasRefusedValue: make(map[string]bool),
		defaultByName: memoryDefaults(env.memoryLimit()),
	}
	for _, v := range table {
		r.removeServiceLink(v.Name)
		r.trimLineBreak(v.Name)
	}
	return r
}

// serviceLink matches the value that Kubernetes gives to X_PORT for a Service x, such as tcp://10.96.0.7:8321.
var serviceLink = regexp.MustCompile(`^(tcp|udp|sctp)://`)

// removeServiceLink removes the variable if Kubernetes set it for a Service whose name is like ours: DIVVY_PORT for the
// Service divvy.
func (r *reader) removeServiceLink(name string) {
	service, isPort := strings.CutSuffix(name, "_PORT")
	if value := r.env[name]; isPort && r.isSet(service+"_SERVICE_HOST") && serviceLink.MatchString(value) {
		delete(r.env, name)
		r.warn("%s=%s has no effect: it is Kubernetes' link to a Service, not a port of this service; set "+
			"enableServiceLinks: false in the pod", name, value)
	}
}

// trimLineBreak removes line breaks at the end of the value, which come from `echo` and from the last line of a file.
// CACHE_KEY_PREFIX keeps them, because envoyproxy/ratelimit has them in its keys.
func (r *reader) trimLineBreak(name string) {
	if trimmed := strings.TrimRight(r.env[name], "\r\n"); trimmed != r.env[name] && name != "CACHE_KEY_PREFIX" {
		r.env[name] = trimmed
		r.warn("%s ends with a line break, which is left out", name)
	}
}

// result returns all warnings, and the problems that end the start as one error.
func (r *reader) result() (warnings []string, err error) {
	var list []error
	warnings = r.warnings
	for _, p := range r.problems {
		if p.instead != "" {
			warnings = append(warnings, p.String())
		} else {
			list = append(list, errors.New(p.String()))
		}
	}
	return warnings, errors.Join(list...)
}

// problem records a problem of a variable, which ends the start. It ignores further problems of a variable whose value
// was refused.
func (r *reader) problem(name, value, fix string) { r.forgive(name, value, fix, "") }

// forgive records a problem that does not end the start, because envoyproxy/ratelimit serves with such a value. instead
// says what the service does instead.
func (r *reader) forgive(name, value, fix, instead string) {
	if !r.hasRefusedValue[name] {
		r.problems = append(r.problems, problem{name, value, fix, instead})
	}
}

// isForgiven reports whether forgive was called for a variable.
func (r *reader) isForgiven(name string) bool {
	return slices.ContainsFunc(r.problems, func(p problem) bool { return p.name == name && p.instead != "" })
}

func (r *reader) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

func (r *reader) warnEmpty(name, fallback string) {
	r.warn("%s is set but empty; its default %s is used", name, fallback)
}

// useDefaultUnless replaces the value of a variable of the type text by its default, and warns of it, unless isValid
// returns true.
func (r *reader) useDefaultUnless(isValid func(string) bool, name string, value *string, fix string) {
	if isValid(*value) {
		return
	}
	table := Table()
	fallback := table[slices.IndexFunc(table, func(v Variable) bool { return v.Name == name })].Default
	if *value == "" {
		r.warnEmpty(name, fallback)
	} else {
		r.forgive(name, *value, fix, fallback+" is used")
	}
	*value = fallback
}

// isSet reports whether a variable is set and not empty.
func (r *reader) isSet(name string) bool { return r.env[name] != "" }

// isOn reports whether a variable is set to anything except an empty text or false.
func (r *reader) isOn(name string) bool {
	on, err := strconv.ParseBool(r.env[name])
	return r.isSet(name) && (err != nil || on)
}

// optionalPart is a part of the service that may be off. Its variables have no effect while it is off.
type optionalPart struct {
	isOff bool
	// the variable that turns the part on if it is true; there are no warnings if its value was refused.
	toggle string
	reason string // why the part is off; empty if toggle is not true.
	fix    string // says how to turn the part on; empty if toggle does that.
	// names lists variables, separated by spaces. Each one that is on causes a warning.
	names string
	// prefixes lists starts of names, separated by spaces. A mistake in these variables is a warning instead of an
	// error, because envoyproxy/ratelimit does not read them either.
	prefixes string
}

// warnUnused warns of variables that are set although their part is off. It removes the problems of variables that
// start with one of the prefixes of such a part.
func (r *reader) warnUnused(parts []optionalPart) {
	for _, p := range parts {
		if !p.isOff || r.hasRefusedValue[p.toggle] {
			continue
		}
		reason, fix := cmp.Or(p.reason, p.toggle+" is not true"), cmp.Or(p.fix, "set "+p.toggle+"=true")
		for name := range strings.FieldsSeq(p.names) {
			if r.isOn(name) {
				value := r.env[name]
				if strings.Contains(name, "_URL") { // may hold a password
					value = "…"
				}
				r.warnNoEffect(name, value, reason, fix)
			}
		}
		r.problems = slices.DeleteFunc(r.problems, func(x problem) bool {
			isPrefix := func(prefix string) bool { return strings.HasPrefix(x.name, prefix) }
			if !slices.ContainsFunc(strings.Fields(p.prefixes), isPrefix) {
				return false
			}
			if r.isSet(x.name) {
				r.warnNoEffect(x.name, x.value, reason, x.fix)
			}
			return true
		})
	}
}

// warnNoEffect warns that a variable has no effect, once for each variable and value. fix is an alternative to removing
// it.
func (r *reader) warnNoEffect(name, value, reason, fix string) {
	start := name + "=" + value + " has no effect: "
	if !slices.ContainsFunc(r.warnings, func(w string) bool { return strings.HasPrefix(w, start) }) {
		r.warnings = append(r.warnings, start+reason+"; remove it, or "+fix)
	}
}

// Bounds on the defaults of MEMORY_MAX_BYTES and MAX_BUFFERED_BYTES, in bytes.
const (
	minMemoryBytes     = 128 << 10 // the size of the empty tables of the memory store: the least MEMORY_MAX_BYTES
	minBufferedBytes   = 1 << 20   // the largest body of an HTTP request: the least MAX_BUFFERED_BYTES
	defaultMemoryBytes = 256 << 20 // the default of both without GOMEMLIMIT, as in settings.txt
)

// memoryDefaults returns the defaults that depend on GOMEMLIMIT, by name of the variable. With 400 MiB,
// MEMORY_MAX_BYTES is half of it (at most 256 MiB), 200 MiB, and MAX_BUFFERED_BYTES is a quarter, 100 MiB. It returns
// nil without a limit.
func memoryDefaults(limit int64) map[string]string {
	if limit == math.MaxInt64 {
		return nil
	}
	return map[string]string{
		"MEMORY_MAX_BYTES":   units.FormatBytes(max(min(limit/2, defaultMemoryBytes), minMemoryBytes)),
		"MAX_BUFFERED_BYTES": units.FormatBytes(max(limit/4, minBufferedBytes)),
	}
}

// memoryLimit returns GOMEMLIMIT in bytes: a number, alone or with the unit B, KiB, MiB, GiB or TiB. It returns
// math.MaxInt64 if there is no limit, and for invalid texts, with which the Go runtime does not start the process.
func (e Environment) memoryLimit() int64 {
	text := e["GOMEMLIMIT"]
	number, shift := text, 0
	for i, unit := range []string{"B", "KiB", "MiB", "GiB", "TiB"} {
		if n, found := strings.CutSuffix(text, unit); found {
			number, shift = n, 10*i
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return math.MaxInt64
	}
	return n << shift
}
