package settings

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// reader reads variables and collects problems and warnings.
type reader struct {
	lookup     func(string) (string, bool) // such as os.LookupEnv
	defaults   map[string]string           // replace those of the table; by name
	unreadable map[string]bool             // variables with a value that was refused; by name
	problems   []problem
	warnings   []string
}

// problem is a mistake in the value of a variable, and how to fix it. A mistake in several
// variables has no name and no value.
type problem struct{ name, value, fix string }

func newReader(lookup func(string) (string, bool)) *reader {
	r := &reader{lookup: lookup, unreadable: make(map[string]bool)}
	r.defaults = r.memoryDefaults()
	return r
}

// err returns all problems as one error, or nil.
func (r *reader) err() error {
	var list []error
	for _, p := range r.problems {
		text := p.fix
		if p.name != "" {
			text = p.name + "=" + p.value + ": " + p.fix
		}
		list = append(list, errors.New(text))
	}
	return errors.Join(list...)
}

// problem records a problem of a variable. It ignores further problems of a variable whose
// value was refused.
func (r *reader) problem(name, value, fix string) {
	if !r.unreadable[name] {
		r.problems = append(r.problems, problem{name, value, fix})
	}
}

// warn records a warning.
func (r *reader) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// isSet reports whether a variable is set and not empty.
func (r *reader) isSet(name string) bool {
	value, _ := r.lookup(name)
	return value != ""
}

// isOn reports whether a variable is set to anything except an empty text or false.
func (r *reader) isOn(name string) bool {
	value, _ := r.lookup(name)
	on, err := strconv.ParseBool(value)
	return value != "" && (err != nil || on)
}

// optionalPort reports whether the variable of a port names a port. unset reports whether the
// variable is not set or empty. Both are false for "off".
func (r *reader) optionalPort(name string) (on, unset bool) {
	value, _ := r.lookup(name)
	return value != "" && value != "off", value == ""
}

// part is a part of the service that may be off. Its variables have no effect while it is off.
type part struct {
	off  bool
	flag string // the variable that turns the part on; there are no warnings if its value was refused
	why  string // the reason why the part is off
	fix  string // how to turn it on, as an alternative to removing the variable
	// named lists variables, separated by spaces. Each one that is on causes a warning.
	named string
	// prefixes lists starts of names, separated by spaces. A mistake in these variables is a
	// warning instead of an error, because envoyproxy/ratelimit does not read them either.
	prefixes string
}

// warnUnused warns of variables that are set although their part is off. It removes the
// problems of variables that start with one of the prefixes of such a part.
func (r *reader) warnUnused(parts []part) {
	for _, p := range parts {
		if !p.off || r.unreadable[p.flag] {
			continue
		}
		for name := range strings.FieldsSeq(p.named) {
			if r.isOn(name) {
				value, _ := r.lookup(name)
				if strings.Contains(name, "_URL") { // may hold a password
					value = "…"
				}
				r.noEffect(name, value, p.why, p.fix)
			}
		}
		r.problems = slices.DeleteFunc(r.problems, func(x problem) bool {
			matches := func(prefix string) bool { return strings.HasPrefix(x.name, prefix) }
			if !slices.ContainsFunc(strings.Fields(p.prefixes), matches) {
				return false
			}
			if r.isSet(x.name) {
				r.noEffect(x.name, x.value, p.why, x.fix)
			}
			return true
		})
	}
}

// noEffect warns that a variable has no effect, once for each variable and value. why is the
// reason, and fix an alternative to removing the variable.
func (r *reader) noEffect(name, value, why, fix string) {
	start := name + "=" + value + " has no effect: "
	if !slices.ContainsFunc(r.warnings, func(w string) bool { return strings.HasPrefix(w, start) }) {
		r.warnings = append(r.warnings, start+why+"; remove it, or "+fix)
	}
}
