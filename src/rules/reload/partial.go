package reload

import "slices"

// choose returns the parts that can be in force when the parts named in bad have problems: those of now that are not held back,
// and those of before that are. nowIDs and beforeIDs are their identities.
func choose(now, before []Part, nowIDs, beforeIDs []Identity, bad map[string]bool) (kept []Part) {
	held := heldBack(nowIDs, beforeIDs, bad)
	for i, p := range now {
		if !held[nowIDs[i].Name] {
			kept = append(kept, p)
		}
	}
	for i, p := range before {
		if held[beforeIDs[i].Name] {
			kept = append(kept, p)
		}
	}
	return kept
}

// heldBack returns the names of the parts that have to stay as they were when the parts in bad have problems: the bad parts, and
// all parts that share a domain with one, directly or through other parts. The names are of now, of before, or of both.
//
//	before   a.yaml: web    b.yaml: api    c.yaml: jobs
//	now      a.yaml: web    b.yaml: web    c.yaml: jobs
//	bad      b.yaml: web is defined twice
//	held     a.yaml, b.yaml: both define web now
//
// A bad part of unknown domain that has no earlier version may be a renamed part, so all parts that are gone are held back too.
func heldBack(now, before []Identity, bad map[string]bool) map[string]bool {
	held, domains := make(map[string]bool, len(bad)), make(map[string]bool)
	present, known := make(map[string]bool, len(now)), make(map[string]bool, len(now))
	for _, id := range now {
		present[id.Name] = true
	}
	all := slices.Concat(now, before)
	for _, id := range all {
		known[id.Name] = known[id.Name] || id.Domain != ""
	}
	unknown := false
	for name := range bad {
		held[name], unknown = true, unknown || !known[name]
	}
	for _, id := range before {
		if unknown && !present[id.Name] {
			held[id.Name] = true
		}
	}
	for changed := true; changed; {
		changed = false
		for _, id := range all {
			if id.Domain != "" && held[id.Name] != domains[id.Domain] {
				held[id.Name], domains[id.Domain], changed = true, true, true
			}
		}
	}
	return held
}
