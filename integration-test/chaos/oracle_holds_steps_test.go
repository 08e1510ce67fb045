package chaos

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// holdCalls reads calls, one a line: the hold, what is asked, when it was sent and answered in milliseconds from
// midnight, and the answer, "local" behind it if the process gave it. Holds take 5 units and expire after 1,000 ms,
// windows last 2,000 ms, the limit is 20.
func holdCalls(t *testing.T, text string) (calls []call) {
	t.Helper()
	for line := range strings.SplitSeq(text, ";") {
		var action, what, where string
		var sent, answered int
		var c call
		if n, err := fmt.Sscanf(line, "%d %s %d-%d %s %s", &c.hold.id, &action, &sent, &answered, &what, &where); n < 5 {
			t.Fatalf("%q: %v", line, err)
		}
		if units, settles := strings.CutPrefix(action, "settle:"); settles {
			c.hold.action = settle
			if _, err := fmt.Sscan(units, &c.hold.units); err != nil {
				t.Fatal(err)
			}
		} else {
			c.hold.action = map[string]holdAction{"take": take, "release": release}[action]
		}
		c.sent, c.took = midnight.Add(time.Duration(sent)*time.Millisecond), time.Duration(answered-sent)*time.Millisecond
		c.what, c.locally = outcome(slices.Index(outcomeNames[:], what)), where == "local"
		calls = append(calls, c)
	}
	return calls
}

// four holds of 5 units each use up the limit.
const four = "1 take 0-5 OK; 2 take 0-5 OK; 3 take 0-5 OK; 4 take 0-5 OK; "

func TestFullestHeld(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		kind  kind
		calls string
		want  int
	}{
		{"four at a time", slots, four + "5 take 10-15 OVER", 20},
		{"five at a time", slots, four + "5 take 10-15 OK", 25},
		{"a released slot", slots, four + "1 release 8-9 OK; 5 take 10-15 OK", 20},
		{"a slot whose release may have come later", slots, four + "1 release 12-90 ERROR; 5 take 14-15 OK", 20},
		{"an expired slot", slots, four + "5 take 990-1000 OK", 20},
		{"a slot that did not expire", slots, four + "5 take 980-999 OK", 25},
		{"a repeat is no other slot", slots, four + "1 take 10-15 OK; 2 take 10-15 OK", 20},
		{"a slot taken without an answer", slots, four + "5 take 10-15 LATE", 20},
		{"a slot that came after its release", slots, four + "5 release 6-7 OK; 5 take 10-15 OK", 20},

		{"the rest of a settlement is free", reservations, four + "1 settle:3 8-9 OK; 5 take 10-15 OK", 3 + 20},
		{"more than was reserved may exceed the limit", reservations, four + "1 settle:9 8-9 OK", 20},
		{
			"a settlement is charged to the end of the window", reservations,
			"1 take 0-5 OK; 1 settle:4 100-105 OK; 2 take 1800-1805 OK", 4 + 5,
		},
		{"and no longer", reservations, "1 take 0-5 OK; 1 settle:4 100-105 OK; 2 take 2000-2005 OK", 5},
		{
			"a settlement in one of two windows", reservations,
			"1 take 1900-1905 OK; 1 settle:4 1990-2010 OK; 2 take 2020-2025 OK", 5,
		},
		{"a reservation without a settlement is charged", reservations, "1 take 0-5 OK; 2 take 1500-1505 OK", 10},
		{"a released one is not", reservations, "1 take 0-5 OK; 1 release 10-15 OK; 2 take 1500-1505 OK", 5},
		{"an open one counts in the next window, too", reservations, "1 take 1900-1905 OK; 2 take 2100-2105 OK", 10},
		{"a settlement without a reservation", reservations, "1 take 0-5 OVER; 1 settle:9 10-15 OK", 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if got, _ := fullestHeld(test.kind, 1, holdsOf(holdCalls(t, test.calls))); got.admitted != test.want ||
				got.most != limit {
				t.Errorf("got %+v, want %d of %d", got, test.want, limit)
			}
		})
	}
}

// The calls of what is too full are told as this test reads them.
func TestFullestHeldTells(t *testing.T) {
	t.Parallel()
	const calls = "1 take 0-5 OK; 1 settle:3 8-9 ERROR; 1 settle:3 12-15 OK local; 2 take 20-25 OK"
	_, got := fullestHeld(reservations, 1, holdsOf(holdCalls(t, calls+"; 3 take 1-2 OVER; 4 take 3-4 LATE")))
	if want := "\n" + strings.ReplaceAll(calls, "; ", "\n"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestWronglyRefused(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		kind  kind
		calls string
		lossy bool // before 100 ms
		want  string
	}{
		{"four are taken", slots, four + "5 take 10-15 OVER", false, ""},
		{
			"three are taken", slots, "1 take 0-5 OK; 2 take 0-5 OK; 3 take 0-5 OK; 5 take 10-15 OVER", false,
			"hold 5 was refused although at most 15 of 20 were taken",
		},
		{"a slot was released", slots, four + "1 release 6-8 OK; 5 take 10-15 OVER", false, "at most 15 of 20"},
		{"a slot was being released", slots, four + "1 release 6-12 OK; 5 take 10-15 OVER", false, ""},
		{"a slot may not be released", slots, four + "1 release 6-8 ERROR; 5 take 10-15 OVER", false, ""},
		{"a slot of a dead caller returns", slots, four + "5 take 1006-1010 OVER", false, "at most 0 of 20"},
		{"a slot of a dead caller has not returned", slots, four + "5 take 1005-1010 OVER", false, ""},
		{
			"one without an answer may be taken late", slots,
			"1 take 0-5 OK; 2 take 0-5 OK; 3 take 0-5 OK; 4 take 0-5 ERROR; 5 take 1004-1010 OVER", false, "",
		},
		{
			"one without an answer is taken by then", slots, "4 take 0-5 ERROR; 5 take 2200-2210 OVER", false,
			"at most 0 of 20",
		},
		{"a refused one is not taken", slots, "1 take 0-5 OVER", false, "at most 0 of 20"},
		{"a repeat", slots, four + "1 take 10-15 OVER", false, "hold 1 was refused although it was open"},
		{
			"a repeat after its time", slots,
			"1 take 0-5 OK; 2 take 500-505 OK; 3 take 500-505 OK; 4 take 500-505 OK; 5 take 1006-1007 OK; 1 take 1008-1010 OVER",
			false, "",
		},
		{"a release", slots, "1 take 0-5 OK; 1 release 10-15 OVER", false, "the end of hold 1 was refused"},
		{
			"a repeat after the release takes no slot", slots, four + "1 release 6-7 OK; 1 take 8-9 OK; 5 take 10-15 OVER",
			false, "at most 15 of 20",
		},
		{"but may if the release was lost", slots, four + "1 release 6-7 OK; 1 take 8-9 OK; 5 take 10-15 OVER", true, ""},

		{"the store does not count what the process took", slots, four + "5 take 10-15 OVER local", false, "at most 0 of 20"},
		{
			"the process counts what it took", slots, strings.ReplaceAll(four, "OK", "OK local") + "5 take 10-15 OVER local",
			false, "",
		},
		{
			"the store may, if the process did", slots, strings.ReplaceAll(four, "OK", "OK local") + "5 take 10-15 OVER",
			false, "",
		},
		{"a release elsewhere", slots, four + "1 release 6-8 OK local; 5 take 10-15 OVER", false, ""},

		{
			"the rest of a settlement is free", reservations, four + "1 settle:0 6-8 OK; 5 take 10-15 OVER", false,
			"at most 15 of 20",
		},
		{"what was settled is not", reservations, four + "1 settle:1 6-8 OK; 5 take 10-15 OVER", false, ""},
		{
			"what was settled is, in the next window", reservations, "1 take 0-5 OK; 1 settle:99 6-8 OK; 5 take 2001-2015 OVER",
			false, "at most 0 of 20",
		},
		{"what was not settled", reservations, four + "5 take 1900-1905 OVER", false, ""},
		{"what was not settled, in the next window", reservations, four + "5 take 2001-2005 OVER", false, "at most 0 of 20"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			x := circumstances{recovery: midnight.Add(100 * time.Millisecond), lossy: test.lossy}
			got, _ := wronglyRefused(test.kind, holdsOf(holdCalls(t, test.calls)), x)
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
