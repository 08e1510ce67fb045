package algorithm

import (
	"testing"
	"time"
)

func TestBatchCheck(t *testing.T) {
	limit := &Limit{Max: 1, Period: time.Second}
	good := Hit{Limit: limit, Amount: 1}
	at := func(s string) time.Time {
		at, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			t.Fatal(err)
		}
		return at
	}
	tests := []struct {
		name     string
		hits     []Hit
		verdicts int
		now      time.Time
		want     string // empty: it is fine
	}{
		{name: "empty"},
		{name: "good", hits: []Hit{good, good}, verdicts: 2},
		{name: "the largest amount", hits: []Hit{{Limit: limit, Amount: MaxAmount, Op: Force}}, verdicts: 1},
		{name: "tags", hits: []Hit{{Key: []byte("abc"), Tag: 1, Limit: limit}, {Key: []byte("abc"), Tag: 3, Limit: limit}}, verdicts: 2},
		{name: "first instant", hits: []Hit{good}, verdicts: 1, now: at("1970-01-01T00:00:00Z")},
		{name: "last instant", hits: []Hit{good}, verdicts: 1, now: at("2150-01-01T00:00:00Z")},
		{
			name: "too few verdicts", hits: []Hit{good, good}, verdicts: 1,
			want: "algorithm: 1 verdicts for 2 hits",
		},
		{
			name: "too many verdicts", verdicts: 1,
			want: "algorithm: 1 verdicts for 0 hits",
		},
		{
			name: "too early", hits: []Hit{good}, verdicts: 1, now: at("1969-12-31T23:59:59.999999999Z"),
			want: "algorithm: the instant 1969-12-31 23:59:59.999999999 +0000 UTC is not between the years 1970 and 2150",
		},
		{
			name: "too late", hits: []Hit{good}, verdicts: 1, now: at("2150-01-01T00:00:00.000000001Z"),
			want: "algorithm: the instant 2150-01-01 00:00:00.000000001 +0000 UTC is not between the years 1970 and 2150",
		},
		{
			name: "no limit", hits: []Hit{good, {}}, verdicts: 2,
			want: "algorithm: a hit without a limit",
		},
		{
			name: "no period", hits: []Hit{{Limit: &Limit{Max: 1}}}, verdicts: 1,
			want: "algorithm: a limit without a period",
		},
		{
			name: "a tag below nothing", hits: []Hit{{Key: []byte("abc"), Tag: -1, Limit: limit}}, verdicts: 1,
			want: "algorithm: a tag of -1 bytes for a key of 3",
		},
		{
			name: "a tag beyond the key", hits: []Hit{{Key: []byte("abc"), Tag: 4, Limit: limit}}, verdicts: 1,
			want: "algorithm: a tag of 4 bytes for a key of 3",
		},
		{
			name: "too much", hits: []Hit{{Limit: limit, Amount: MaxAmount + 1}}, verdicts: 1,
			want: "algorithm: an amount of 281474976710657 is above 2^48",
		},
		{
			name: "unknown operation", hits: []Hit{{Limit: limit, Op: 99}}, verdicts: 1,
			want: "algorithm: op 99 is not known",
		},
		{
			name: "unknown arithmetic", hits: []Hit{{Limit: &Limit{Kind: 200, Period: time.Second}}}, verdicts: 1,
			want: "algorithm: kind 200 is not known",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			b := Batch{Hits: test.hits, Verdicts: make([]Verdict, test.verdicts), Now: test.now}
			if got := words(b.Check()); got != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

func words(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestGroupEnd(t *testing.T) {
	var b Batch
	for _, group := range []uint16{7, 7, 0, 1, 1, 1, 7} {
		b.Hits = append(b.Hits, Hit{Group: group})
	}
	for i, want := range []int{2, 2, 3, 6, 6, 6, 7} { // the last group is another one of the same number
		if got := b.GroupEnd(i); got != want {
			t.Errorf("the group of hit %d ends at %d, want %d", i, got, want)
		}
	}
}

func TestAsLook(t *testing.T) {
	limit := &Limit{Max: 1, Period: time.Second}
	for op, amount := range map[Op]uint64{Charge: 5, Look: 5, Refund: 0, Force: 0} {
		got := Hit{Limit: limit, Amount: 5, Op: op, Atomic: true, NoVeto: true}.AsLook()
		if got.Op != Look || got.Amount != amount || got.Atomic || !got.NoVeto || got.Limit != limit {
			t.Errorf("%v: %+v, want a look at %d", op, got, amount)
		}
	}
}

func TestAnyAtomic(t *testing.T) {
	if AnyAtomic(nil) || AnyAtomic([]Hit{{}, {}}) || !AnyAtomic([]Hit{{}, {Atomic: true}}) {
		t.Error("a group stands or falls together if one of its hits is atomic")
	}
}

func TestUncharged(t *testing.T) {
	const s = time.Second
	tests := []struct {
		name              string
		kind              Kind
		look, tried, want Verdict
	}{
		{
			name:  "it would have passed",
			look:  Verdict{Before: 2, After: 2, Remaining: 3, ResetAfter: s},
			tried: Verdict{Before: 2, After: 4, Remaining: 1, ResetAfter: s, Charged: true},
			want:  Verdict{Before: 2, After: 2, Remaining: 3, ResetAfter: s},
		},
		{
			name:  "it is over",
			look:  Verdict{Over: true, Interval: true, Before: 5, After: 5, RetryAfter: s, ResetAfter: 2 * s},
			tried: Verdict{Over: true, Interval: true, Before: 5, After: 6, RetryAfter: 2 * s, ResetAfter: 2 * s, Charged: true},
			want:  Verdict{Over: true, Interval: true, Before: 5, After: 5, RetryAfter: s, ResetAfter: 2 * s},
		},
		{
			name:  "it is over for those before it alone",
			look:  Verdict{Before: 2, After: 2, Remaining: 3, ResetAfter: s},
			tried: Verdict{Over: true, Before: 4, After: 4, RetryAfter: 2 * s, ResetAfter: 2 * s},
			want:  Verdict{Over: true, Before: 2, After: 2, RetryAfter: 2 * s, ResetAfter: s},
		},
		{
			name:  "it is over for those before it alone, in a bucket",
			kind:  GCRA,
			look:  Verdict{Before: 2, After: 2, Remaining: 3, ResetAfter: s},
			tried: Verdict{Over: true, Before: 4, After: 4, Remaining: 1, RetryAfter: 2 * s, ResetAfter: 2 * s},
			want:  Verdict{Over: true, Before: 2, After: 2, Remaining: 3, RetryAfter: 2 * s, ResetAfter: s},
		},
		{
			name:  "a refund on a state that is over",
			look:  Verdict{Over: true, Before: 5, After: 5, RetryAfter: s, ResetAfter: s},
			tried: Verdict{Before: 5, After: 3, ResetAfter: s, Charged: true},
			want:  Verdict{Before: 5, After: 5, ResetAfter: s},
		},
	}
	for _, test := range tests {
		if got := Uncharged(&Limit{Kind: test.kind}, test.look, test.tried); got != test.want {
			t.Errorf("%s:\n got %+v\nwant %+v", test.name, got, test.want)
		}
	}
}

func TestOpNames(t *testing.T) {
	for op, want := range map[Op]string{Charge: "charge", Look: "look", Refund: "refund", Force: "force", 4: "op 4"} {
		if got := op.String(); got != want {
			t.Errorf("%d is %q, want %q", uint8(op), got, want)
		}
	}
}
