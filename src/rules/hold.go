package rules

import (
	"fmt"
	"slices"
)

// HoldActionKey is the key of the entry that settles or releases a hold: `hold=settle` or `hold=release`.
const HoldActionKey = "hold"

// HoldAction is what a request does with the hold that it names.
type HoldAction uint8

const (
	TakeHold    HoldAction = iota // opens the hold. It is the action of a request without an entry `hold`.
	SettleHold                    // SettleHold replaces the hold by the amount that was used.
	ReleaseHold                   // ReleaseHold gives the whole hold back.
)

// String returns the action as the entry `hold` has it; "take" for TakeHold, which has no such entry.
func (a HoldAction) String() string { return [...]string{"take", "settle", "release"}[a] }

// parseHoldAction returns the action that the value of an entry `hold` names.
func parseHoldAction(value []byte) (a HoldAction, known bool) {
	switch string(value) {
	case "settle":
		return SettleHold, true
	case "release":
		return ReleaseHold, true
	}
	return TakeHold, false
}

// HoldOf returns the name of the hold that a request's entries name, and what they do with it. m is what FindRule
// returned for the entries, or a canary. Of its Limits, those with a HoldIDKey have holds. The name is empty for a
// request that names no hold, and for a match without holds.
//
// An error says what is wrong with the request: an unknown action, an action without the name of a hold, or a missing
// name of a hold where one of the limits is a concurrency. HoldOf allocates nothing unless it returns an error.
func (m *Match) HoldOf(entries []Entry) (name []byte, action HoldAction, err error) {
	if m.HoldIDKey == "" {
		return nil, TakeHold, nil
	}
	var actionEntry *Entry
	if m.ListSettings != nil {
		name = lastValueOfKey(entries, m.HoldIDKey)
		if i := lastIndexOfKey(entries, HoldActionKey); i >= 0 {
			actionEntry = &entries[i]
		}
	} else if below := entries[min(len(m.Path), len(entries)):]; len(below) > 0 {
		if string(below[0].Key) == m.HoldIDKey {
			name, below = below[0].Value, below[1:]
		}
		switch len(below) {
		case 1:
			actionEntry = &below[0]
		case 2:
			return nil, TakeHold, fmt.Errorf("rule %s: the entry %s, which names the hold, comes after the entry hold: "+
				"send %[2]s=<an id of the call> before it", m.FullName, m.HoldIDKey)
		}
	}
	if actionEntry != nil {
		var known bool
		if action, known = parseHoldAction(actionEntry.Value); !known {
			return nil, TakeHold, unknownHoldAction(m, string(actionEntry.Value))
		}
	}
	if len(name) == 0 && (actionEntry != nil || m.HasConcurrency) {
		return nil, TakeHold, fmt.Errorf("rule %s: the entry %s, which names the hold, is missing or empty: "+
			"send %[2]s=<an id of the call>", m.FullName, m.HoldIDKey)
	}
	return name, action, nil
}

// unknownHoldAction returns the error of a request whose entry hold has an unknown value.
func unknownHoldAction(m *Match, value string) error {
	hint := ""
	if meant := NearestWord(value, slices.Values([]string{SettleHold.String(), ReleaseHold.String()})); meant != "" {
		hint = "did you mean hold=" + meant + "? "
	}
	return fmt.Errorf("rule %s: hold=%s is unknown: %ssend hold=settle or hold=release, or no such entry to take a hold",
		m.FullName, Shorten(value), hint)
}

// WithoutHold returns the entries of a request that do not name a hold or say what to do with it. m is what
// FindRule returned.
func (m *Match) WithoutHold(entries []Entry) []Entry {
	switch {
	case m.HoldIDKey == "":
		return entries
	case m.ListSettings == nil:
		return entries[:min(len(m.Path), len(entries))]
	}
	return slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool {
		return string(e.Key) == m.HoldIDKey || string(e.Key) == HoldActionKey
	})
}

// AcceptsBelow reports whether entries, which follow those that lead to m in a tree of descriptors, name a hold and
// perhaps an action. HoldOf reports an empty name and an unknown action. m must have a hold.
func (m *Match) AcceptsBelow(entries []Entry) bool {
	return string(entries[0].Key) == m.HoldIDKey &&
		(len(entries) == 1 || len(entries) == 2 && string(entries[1].Key) == HoldActionKey)
}

// LacksHoldName reports whether entries, which no descriptor below m matches, have an action before the name of a hold,
// or without it, which HoldOf reports. m must have a hold.
func (m *Match) LacksHoldName(entries []Entry) bool {
	return string(entries[0].Key) == HoldActionKey &&
		(len(entries) == 1 || len(entries) == 2 && string(entries[1].Key) == m.HoldIDKey)
}
