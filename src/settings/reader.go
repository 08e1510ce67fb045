package settings

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// reader reads variables, and collects problems and warnings on the way.
type reader struct {
	lookup     func(string) (string, bool)
	defaults   map[string]string // that depend on other variables, by name
	unreadable map[string]bool   // variables whose values were refused, by name
	problems   []problem
	warnings   []string
}

// problem is a mistake in a variable, or, without a name, in several.
type problem struct{ name, value, fix string }

func newReader(lookup func(string) (string, bool)) *reader {
	r := &reader{lookup: lookup, unreadable: make(map[string]bool)}
	r.defaults = r.memoryDefaults()
	return r
}

// err joins all problems; nil if there are none.
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

// problem notes what is wrong with a variable, unless it could not even be read: one
// mistake is one problem.
func (r *reader) problem(name, value, fix string) {
	if !r.unreadable[name] {
		r.problems = append(r.problems, problem{name, value, fix})
	}
}

func (r *reader) warn(format string, args ...any) {
	r.warnings = append(r.warnings, fmt.Sprintf(format, args...))
}

// isSet reports whether a variable is set, and not empty.
func (r *reader) isSet(name string) bool {
	value, _ := r.lookup(name)
	return value != ""
}

// isOn reports whether a variable is set to more than "off".
func (r *reader) isOn(name string) bool {
	value, _ := r.lookup(name)
	on, err := strconv.ParseBool(value)
	return value != "" && (err != nil || on)
}

// optionalPort reports whether a port is on, or else whether it is not even off.
func (r *reader) optionalPort(name string) (on, unset bool) {
	value, _ := r.lookup(name)
	return value != "" && value != "off", value == ""
}

// part is a part of the service that is off, and its variables, which have no effect then.
type part struct {
	off  bool
	flag string // the variable that turns it on: the part is not off if that is unreadable
	why  string // it is off
	fix  string // what to do instead of removing a variable
	// named are variables, separated by spaces, of which each that is on gets a warning.
	named string
	// prefixes are beginnings of variables, separated by spaces, whose problems become
	// warnings: a mistake in a variable that envoyproxy/ratelimit does not read must not end
	// the start.
	prefixes string
}

// warnUnused warns of the variables of parts that are off.
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
			begins := func(prefix string) bool { return strings.HasPrefix(x.name, prefix) }
			if !slices.ContainsFunc(strings.Fields(p.prefixes), begins) {
				return false
			}
			if r.isSet(x.name) {
				r.noEffect(x.name, x.value, p.why, x.fix)
			}
			return true
		})
	}
}

// noEffect warns once of a variable that is set and has no effect: why, and what to do
// instead of removing it.
func (r *reader) noEffect(name, value, why, fix string) {
	begin := name + "=" + value + " has no effect: "
	if !slices.ContainsFunc(r.warnings, func(w string) bool { return strings.HasPrefix(w, begin) }) {
		r.warnings = append(r.warnings, begin+why+"; remove it, or "+fix)
	}
}
