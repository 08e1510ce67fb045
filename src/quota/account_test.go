package quota

import (
	"testing"
	"time"
)

// accountStep is what happens to an account at a time, and what it knows then.
type accountStep struct {
	at                 time.Duration
	assign             uint32 // how many units are assigned, for 10 s; 0: a report instead.
	report             uint64
	inUse, outstanding uint64
}

func TestAccount(t *testing.T) {
	t.Parallel()
	const s, ms = time.Second, time.Millisecond
	for name, steps := range map[string][]accountStep{
		"the example of the type": {
			{at: 1 * s, assign: 100, inUse: 100, outstanding: 100},
			{at: 1100 * ms, report: 60, inUse: 100, outstanding: 40},
			{at: 1200 * ms, assign: 50, inUse: 150, outstanding: 90},
			{at: 2200 * ms, report: 40, inUse: 50, outstanding: 50},
			{at: 3 * s, report: 10, inUse: 40, outstanding: 40},
			{at: 12200 * ms, report: 5, inUse: 0, outstanding: 35},
		},
		"a report just before the settle time": {
			{at: 1 * s, assign: 100, inUse: 100, outstanding: 100},
			{at: 2 * s, assign: 10, inUse: 110, outstanding: 110},
			{at: 3*s - 1, report: 0, inUse: 110, outstanding: 110},
			{at: 3 * s, report: 0, inUse: 10, outstanding: 110},
		},
		"expired, but not settled": {
			{at: 1 * s, assign: 100, inUse: 100, outstanding: 100},
			{at: 12*s - 1, report: 0, inUse: 100, outstanding: 100},
			{at: 12 * s, report: 0, inUse: 0, outstanding: 100},
		},
		"a report while a newer assignment is on its way": {
			{at: 1 * s, assign: 100, inUse: 100, outstanding: 100},
			{at: 2 * s, report: 0, inUse: 100, outstanding: 100},
			{at: 3 * s, assign: 50, inUse: 150, outstanding: 150},
			{at: 3100 * ms, report: 30, inUse: 150, outstanding: 120},
			{at: 4 * s, report: 10, inUse: 50, outstanding: 110},
			{at: 4100 * ms, report: 10, inUse: 40, outstanding: 100},
		},
		"more assignments than are known one by one": {
			{at: 1000 * ms, assign: 1, inUse: 1, outstanding: 1},
			{at: 1001 * ms, assign: 2, inUse: 3, outstanding: 3},
			{at: 1002 * ms, assign: 4, inUse: 7, outstanding: 7},
			{at: 1003 * ms, assign: 8, inUse: 15, outstanding: 15},
			{at: 1004 * ms, assign: 16, inUse: 31, outstanding: 31},
			{at: 1005 * ms, report: 5, inUse: 31, outstanding: 26},
			{at: 2003 * ms, report: 0, inUse: 24, outstanding: 26},
			{at: 2004 * ms, report: 0, inUse: 16, outstanding: 26},
		},
		"more units than one assignment can have": {
			{at: 1000 * ms, assign: 1<<32 - 1, inUse: 1<<32 - 1, outstanding: 1<<32 - 1},
			{at: 1001 * ms, assign: 1<<32 - 1, inUse: 1<<33 - 2, outstanding: 1<<33 - 2},
			{at: 1002 * ms, assign: 1, inUse: 1<<33 - 1, outstanding: 1<<33 - 1},
			{at: 1003 * ms, assign: 1, inUse: 1 << 33, outstanding: 1 << 33},
			{at: 1004 * ms, assign: 1, inUse: 1<<33 + 1, outstanding: 1<<33 + 1},
			{at: 1005 * ms, report: 1 << 33, inUse: 1<<33 + 1, outstanding: 1},
		},
	} {
		m := &member{outstanding: make([]uint64, 1)}
		for i, step := range steps {
			now := int64(step.at)
			if step.assign > 0 {
				m.assign(step.assign, now, now+int64(10*s))
				m.outstanding[0] += uint64(step.assign)
				m.unreported += uint64(step.assign)
			} else if unassigned := m.report(step.report, 0, now); unassigned > 0 {
				t.Errorf("%s, step %d: %d units without an assignment", name, i, unassigned)
			}
			if m.inUse() != step.inUse || m.outstanding[0] != step.outstanding {
				t.Errorf("%s, step %d: in use %d, outstanding %d; want %d, %d", name, i, m.inUse(), m.outstanding[0], step.inUse,
					step.outstanding)
			}
		}
	}
}

// What a proxy reports after its assignment has expired was used without one.
func TestUseAfterExpiry(t *testing.T) {
	t.Parallel()
	m := &member{outstanding: make([]uint64, 1)}
	m.assign(100, 1, int64(10*time.Second))
	m.outstanding[0], m.unreported = 100, 100
	for i, step := range []struct {
		at               time.Duration
		allowed, without uint64
	}{
		{5 * time.Second, 10, 0},
		{11*time.Second - 1, 10, 0},
		{11 * time.Second, 10, 0},
		{12 * time.Second, 10, 10},
	} {
		if got := m.report(step.allowed, 0, int64(step.at)); got != step.without {
			t.Errorf("step %d: %d units without an assignment, want %d", i, got, step.without)
		}
	}
}

// A proxy that reports the largest numbers has used what it had, and the rest without an assignment.
func TestReportOfLargestNumbers(t *testing.T) {
	t.Parallel()
	m := &member{outstanding: make([]uint64, 1)}
	m.assign(100, 1, int64(time.Minute))
	m.outstanding[0], m.unreported = 100, 100
	for i, want := range []uint64{1<<64 - 101, 1<<64 - 1} {
		if got := m.report(1<<64-1, 1<<64-1, int64(i+1)*int64(time.Second)); got != want || m.outstanding[0] != 0 {
			t.Errorf("report %d: %d units without an assignment, %d outstanding; want %d and 0", i, got, m.outstanding[0], want)
		}
	}
	q := quantities{terms: terms{AssignUnits, 600, 10}, windowSeconds: 60, floor: 1}
	if units, most := m.needs(&q); units != 600 || most != 600 {
		t.Errorf("needs %d and %d, want the capacity of 600", units, most)
	}
}
