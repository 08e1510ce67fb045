package model

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Kind is an algorithm, by the word of rule files.
type Kind string

// The kinds of limit.
const (
	Fixed    Kind = "fixed_window"
	FirstHit Kind = "first_hit_window"
	Sliding  Kind = "sliding_window"
	Counter  Kind = "sliding_window_counter"
	GCRA     Kind = "gcra"
	// Concurrency counts only what is held.
	Concurrency Kind = "concurrency"
)

// Kinds are all of them.
func Kinds() []Kind { return []Kind{Fixed, FirstHit, Sliding, Counter, GCRA, Concurrency} }

// Limit is a rate_limit.
type Limit struct {
	Kind   Kind
	Max    int64
	Period time.Duration
	// Burst is what a GCRA lets pass at once beyond the first unit.
	Burst int64
	// Interval is min_interval, of a Sliding or a GCRA.
	Interval time.Duration
	// Counting is count_blocked.
	Counting bool
	// UpstreamCounts says that the store keeps only the count of a Fixed, and not what was refused. It is not part of a
	// rule: the checker sets it.
	UpstreamCounts bool
	// Calendar is that of a Fixed without a Period.
	Calendar Calendar
	// Hold is how long a hold is open; 0: there are none. Release is unsettled: release.
	Hold    time.Duration
	Release bool
	// Fallback is on_store_failure; "" leaves it out.
	Fallback string
}

// sharesCounter reports whether the two limits of one rule would count in the same place.
func (l *Limit) sharesCounter(o *Limit) bool {
	return counterName(&Descriptor{}, l) == counterName(&Descriptor{}, o)
}

// capacity is the most that passes at once.
func (l *Limit) capacity() int64 {
	if l.Kind == GCRA && l.Max > 0 {
		return l.Burst + 1
	}
	return l.Max
}

// canPass says whether amount passes an empty counter. A limit of 0 refuses even 0 units.
func (l *Limit) canPass(amount int64) bool { return max(amount, 1) <= l.capacity() }

// Rule is a descriptor of one entry; each of its values is counted apart.
type Rule struct {
	Key string
	// None is on_reject: none.
	None bool
	// Shadow is shadow_mode.
	Shadow bool
	// Percent is enforce_percent of all limits, 1 to 99; 0: they are enforced for all values.
	Percent int
	Limits  []Limit
}

// enforcedFrom is the enforce_percent from which a limit is enforced for a descriptor, rounded up. All replicas and
// versions of the service have to agree with it; for other descriptors it is not known.
var enforcedFrom = map[string]int{"a=1": 43, "a=2": 75, "b=1": 43, "b=2": 53, "c=1": 46, "c=2": 16}

// shadows reports whether the limits of r never refuse d.
func (r *Rule) shadows(d *Descriptor) bool {
	return r.Shadow || r.Percent > 0 && r.Percent < enforcedFrom[d.Key+"="+d.Value]
}

// Rules are what is configured.
type Rules []Rule

func (rs Rules) find(key string) *Rule {
	for i := range rs {
		if rs[i].Key == key {
			return &rs[i]
		}
	}
	return nil
}

// of is the rule for a descriptor: one that names a hold is only matched by a rule that has holds.
func (rs Rules) of(d *Descriptor) *Rule {
	r := rs.find(d.Key)
	if r != nil && d.Hold != "" && !r.any(func(l *Limit) bool { return l.Hold > 0 }) {
		return nil
	}
	return r
}

func (r *Rule) any(is func(l *Limit) bool) bool {
	return slices.ContainsFunc(r.Limits, func(l Limit) bool { return is(&l) })
}

// asked are the limits that a descriptor is about: with an action, those that have holds.
func (r *Rule) asked(d *Descriptor) (limits []*Limit) {
	for i := range r.Limits {
		if l := &r.Limits[i]; d.Action == "" || l.Hold > 0 {
			limits = append(limits, l)
		}
	}
	return limits
}

// invalid reports whether a request is an error: only by its name can a slot be released.
func (rs Rules) invalid(ask Ask) bool {
	return slices.ContainsFunc(ask, func(d Descriptor) bool {
		r := rs.of(&d)
		return r != nil && d.Hold == "" && r.any(func(l *Limit) bool { return l.Kind == Concurrency })
	})
}

// HoldID is the hold_id of all rules that have holds.
const HoldID = "id"

// Domain is what the rules are for, and Probe a key in it that is not counted by
// the model: requests for it test whether the store works again.
const Domain, Probe = "model", "probe"

// YAML is a rule file that says the same.
func (rs Rules) YAML() string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", Domain)
	fmt.Fprintf(&b, "  - key: %s\n    rate_limit: {unit: day, requests_per_unit: 1000000}\n", Probe)
	for i := range rs {
		r := &rs[i]
		fmt.Fprintf(&b, "  - key: %s\n", r.Key)
		if r.None {
			b.WriteString("    on_reject: none\n")
		}
		if r.Shadow {
			b.WriteString("    shadow_mode: true\n")
		}
		b.WriteString("    rate_limits:\n")
		for j := range r.Limits {
			l := &r.Limits[j]
			fmt.Fprintf(&b, "      - {algorithm: %s, requests_per_unit: %d", l.Kind, l.Max)
			switch {
			case l.Calendar != (Calendar{}):
				fmt.Fprintf(&b, ", %s", l.Calendar.yaml())
			case l.Kind != Concurrency:
				fmt.Fprintf(&b, ", period: %v", l.Period)
			}
			if l.Hold > 0 {
				fmt.Fprintf(&b, ", hold: %v, hold_id: %s", l.Hold, HoldID)
			}
			if l.Release {
				b.WriteString(", unsettled: release")
			}
			// The default; beside on_reject: none true is refused.
			if l.Hold == 0 && (!r.None || l.Kind != Fixed || !l.Counting) {
				fmt.Fprintf(&b, ", count_blocked: %t", l.Counting)
			}
			if l.Kind == GCRA {
				fmt.Fprintf(&b, ", burst: %d", l.Burst)
			}
			if l.Interval > 0 {
				fmt.Fprintf(&b, ", min_interval: %v", l.Interval)
			}
			if l.Fallback != "" {
				fmt.Fprintf(&b, ", on_store_failure: %s", l.Fallback)
			}
			if r.Percent > 0 {
				fmt.Fprintf(&b, ", enforce_percent: %d", r.Percent)
			}
			b.WriteString("}\n")
		}
	}
	return b.String()
}

// String is the rule as a line of a script.
func (r *Rule) String() string {
	var b strings.Builder
	b.WriteString(r.Key)
	for _, flag := range []struct {
		on   bool
		word string
	}{{r.None, "none"}, {r.Shadow, "shadow"}} {
		if flag.on {
			b.WriteString(" " + flag.word)
		}
	}
	if r.Percent > 0 {
		fmt.Fprintf(&b, " %d%%", r.Percent)
	}
	b.WriteString(":")
	for i := range r.Limits {
		if i > 0 {
			b.WriteString(" +")
		}
		b.WriteString(" " + r.Limits[i].String())
	}
	return b.String()
}

// String is the limit as a script has it.
func (l *Limit) String() string {
	text := fmt.Sprintf("%s %d", l.Kind, l.Max)
	switch {
	case l.Calendar != (Calendar{}):
		text += "/" + l.Calendar.String()
	case l.Kind != Concurrency:
		text += fmt.Sprintf("/%v", l.Period)
	}
	if l.Hold > 0 {
		text += fmt.Sprintf(" hold %v", l.Hold)
	}
	if l.Release {
		text += " release"
	}
	if l.Kind == GCRA {
		text += fmt.Sprintf(" burst %d", l.Burst)
	}
	if l.Interval > 0 {
		text += fmt.Sprintf(" interval %v", l.Interval)
	}
	if l.Counting {
		text += " counting"
	}
	if l.Fallback != "" {
		text += " " + l.Fallback
	}
	return text
}
