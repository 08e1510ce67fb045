package rules

import "slices"

// Source is one file or resource of a load of rules, which is accepted or refused as
// a whole.
type Source struct {
	Name   string // tells it from the others of the load
	Domain string // whose rules it has; empty if that cannot be read
}

// InPart returns what may be in force when the sources named in bad have problems: of
// now all that is not held back, and of before all that is.
func Partial[T any](now, before []T, source func(T) Source, bad map[string]bool) []T {
	sources := func(list []T) []Source {
		all := make([]Source, 0, len(list))
		for _, v := range list {
			all = append(all, source(v))
		}
		return all
	}
	fresh, old := sources(now), sources(before) // once: source may have to parse a file
	held := heldBack(fresh, old, bad)
	var kept []T
	for i, v := range now {
		if !held[fresh[i].Name] {
			kept = append(kept, v)
		}
	}
	for i, v := range before {
		if held[old[i].Name] {
			kept = append(kept, v)
		}
	}
	return kept
}

// heldBack returns the names of the sources that have to stay as they were when those
// in bad have problems: the bad ones, and all whose domains touch. Others may change
// on their own.
//
//	before   a.yaml: web    b.yaml: api    c.yaml: jobs
//	now      a.yaml: web    b.yaml: web    c.yaml: jobs
//	bad      b.yaml: web is defined twice
//	held     a.yaml, b.yaml: they have to agree on who has web
//
// The names are of now, of before, or of both. A bad source of which neither the
// domain nor a version before is known may be any source of before that is gone, so
// those are held back too.
func heldBack(now, before []Source, bad map[string]bool) map[string]bool {
	held := make(map[string]bool, len(bad))
	known := make(map[string]bool, len(bad)) // bad sources of which a domain is known
	for name := range bad {
		held[name] = true
	}
	for _, s := range slices.Concat(now, before) {
		if s.Domain != "" {
			known[s.Name] = true
		}
	}
	for name := range bad {
		if known[name] {
			continue
		}
		present := make(map[string]bool, len(now))
		for _, s := range now {
			present[s.Name] = true
		}
		for _, s := range before {
			if !present[s.Name] {
				held[s.Name] = true
			}
		}
		break
	}
	domains := make(map[string]bool)
	for changed := true; changed; {
		changed = false
		for _, s := range slices.Concat(now, before) {
			switch {
			case s.Domain == "":
			case held[s.Name] && !domains[s.Domain]:
				domains[s.Domain], changed = true, true
			case !held[s.Name] && domains[s.Domain]:
				held[s.Name], changed = true, true
			}
		}
	}
	return held
}
