package datafile

import (
	"fmt"
	"slices"
)

// maxFirst is the most values of a Changed.
const maxFirst = 3

// Difference is what differs between two versions of a file.
type Difference struct{ Added, Removed, Raised, Lowered Changed }

// Changed are the values of a file that changed in one way.
type Changed struct {
	Count int
	First []ChangedValue // at most three of them, in the order of their lines
}

// ChangedValue is a value that was added, removed, or got another limit.
type ChangedValue struct {
	Value    string
	Old, New string // the limits in words, such as "600" or "unlimited"; empty for none

	line int
}

// add counts a value, which the table of has. If the value is one of the first so far, it returns its place in First,
// and else nil.
func (c *Changed) add(of *Table, value []byte) *ChangedValue {
	c.Count++
	line, i := of.Line(value), len(c.First)
	for i > 0 && c.First[i-1].line > line {
		i--
	}
	if i == maxFirst {
		return nil
	}
	c.First = slices.Insert(c.First, i, ChangedValue{Value: string(value), line: line})
	c.First = c.First[:min(len(c.First), maxFirst)]
	return &c.First[i]
}

// CompareTo returns what differs in after, as fast as pacer allows.
func (t *Table) CompareTo(after *Table, pacer *Pacer) (d Difference) {
	n := 0
	step := func() {
		if n++; n%linesPerStep == 0 {
			pacer.Step()
		}
	}
	for value, limit := range after.All() {
		step()
		before, found := t.Find(value)
		if !found {
			if v := d.Added.add(after, value); v != nil {
				v.New = after.limitText(limit)
			}
			continue
		}
		if after.limits == nil {
			continue
		}
		changed := &d.Raised
		switch sign := after.limits[limit].compare(&t.limits[before].Numbers); {
		case sign == 0:
			continue
		case sign < 0:
			changed = &d.Lowered
		}
		if v := changed.add(after, value); v != nil {
			v.Old, v.New = t.limitText(before), after.limitText(limit)
		}
	}
	if t.len+d.Added.Count == after.len {
		return d // Nothing was removed.
	}
	for value, limit := range t.All() {
		step()
		if _, found := after.Find(value); found {
			continue
		}
		if v := d.Removed.add(t, value); v != nil {
			v.Old = t.limitText(limit)
		}
	}
	return d
}

// limitText returns a limit in words; empty in a table of values.
func (t *Table) limitText(limit int) string {
	if t.limits == nil {
		return ""
	}
	switch l := &t.limits[limit]; {
	case l.Unlimited:
		return "unlimited"
	case l.HasBurst:
		return fmt.Sprintf("%d with a burst of %d", l.Requests, l.Burst)
	default:
		return fmt.Sprint(l.Requests)
	}
}
